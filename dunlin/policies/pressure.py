"""Chooses what becomes of a preempted sequence's KV: functions over its figures. Knows no host tier."""

from collections.abc import Callable
from dataclasses import dataclass

from dunlin.messages.types import Rejected


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence about to lose its slots: the KV of `computed_tokens`, of which the host tier has `kept_tokens`."""

    computed_tokens: int
    kept_tokens: int


@dataclass(frozen=True, slots=True)
class Choice:
    """`spills`: what the host tier lacks is copied there, and all of it comes back; else all of it is dropped.

    `instead` is the alternative and the reason against it.
    """

    spills: bool
    instead: Rejected


PressurePolicy = Callable[[Candidate], Choice]


def spill(candidate: Candidate) -> Choice:
    """To the host tier and back, where it has room."""
    return Choice(True, Rejected("recompute", f"{candidate.computed_tokens} tokens are computed already"))


def recompute(candidate: Candidate) -> Choice:
    """Drop it, with what was copied earlier: it is computed anew from the tokens (the default of vLLM)."""
    return Choice(False, Rejected("spill", "this preset computes what was dropped anew"))


PRESSURE_POLICIES: dict[str, PressurePolicy] = {"spill": spill, "recompute": recompute}
