"""The backends by name. A backend is one file and one line here."""

from dunlin.engine.attention import deterministic, fused
from dunlin.engine.attention.base import Attention

ATTENTION_BACKENDS: dict[str, Attention] = {
    "torch": fused.plan,
    "deterministic": deterministic.plan,
}
