"""The CPU's backends by name. A backend is one file and one line here; `decoder/gpu/gpu_numerics.py` has the GPU's."""

from collections.abc import Callable

from dunlin.engine.attention.base import Attention
from dunlin.engine.attention.deterministic import DeterministicAttention
from dunlin.engine.attention.fused import FusedAttention
from dunlin.engine.attention.paged import PagedAttention

ATTENTION_BACKENDS: dict[str, Callable[[], Attention]] = {
    "torch": FusedAttention,
    "paged": PagedAttention,
    "deterministic": DeterministicAttention,
}
