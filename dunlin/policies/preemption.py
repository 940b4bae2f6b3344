"""Chooses what becomes of a preempted sequence's KV: functions over its figures. Knows no host tier."""

from collections.abc import Callable
from dataclasses import dataclass

from dunlin.messages.types import RejectedOption


@dataclass(frozen=True, slots=True)
class PreemptionCandidate:
    """A sequence about to lose its slots: the KV of `computed_tokens`, of which the host tier has `kept_tokens`."""

    computed_tokens: int
    kept_tokens: int


@dataclass(frozen=True, slots=True)
class PreemptionChoice:
    """`spills`: what the host tier lacks is copied there, and all of it comes back; else all of it is dropped.

    `instead` is the alternative and the reason against it.
    """

    spills: bool
    rejected: RejectedOption


PreemptionMode = Callable[[PreemptionCandidate], PreemptionChoice]


def spill(candidate: PreemptionCandidate) -> PreemptionChoice:
    """To the host tier and back, where it has room."""
    return PreemptionChoice(
        True, RejectedOption("recompute", f"{candidate.computed_tokens} tokens are computed already")
    )


def recompute(candidate: PreemptionCandidate) -> PreemptionChoice:
    """Drop it, with what was copied earlier: it is computed anew from the tokens (the default of vLLM)."""
    return PreemptionChoice(False, RejectedOption("spill", "this preset computes what was dropped anew"))


def swap(candidate: PreemptionCandidate) -> PreemptionChoice:
    """As `spill`, but no step is composed meanwhile: vLLM's swap before its version 1, ConServe's baseline."""
    return spill(candidate)


PREEMPTION_MODES: dict[str, PreemptionMode] = {"spill": spill, "recompute": recompute, "swap": swap}
