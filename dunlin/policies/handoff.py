"""Chooses the decode instance of a sequence that has its first token: functions over their free slots.

Two choices meet here: which decode instances each prefill instance hears of (the manager's), and which of those takes
one sequence (the prefill instance's). Knows no order, no stream and no sequence but its size.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dunlin.messages.types import MAX_ALTERNATIVES, Figure, RejectedOption, Why

MIN_TARGETS = 8
"""A prefill instance hears of as many decode instances, or more where a decode instance would have no prefill one."""


@dataclass(frozen=True, slots=True)
class HandoffCandidate:
    """A decode instance. `free_slots`: less what was promised since they were counted; may be negative."""

    name: str
    capacity_slots: int
    free_slots: int


@dataclass(frozen=True, slots=True)
class HandoffChoice:
    """The candidate's index, and why."""

    index: int
    why: Why


HandoffPolicy = Callable[[int, Sequence[HandoffCandidate]], HandoffChoice | None]
"""Maps (slots that the sequence needs, candidates) to a choice; None: no candidate has room, or it stays."""


def stay_local(slots: int, candidates: Sequence[HandoffCandidate]) -> HandoffChoice | None:
    """It goes on where its prompt was computed."""
    return None


def most_room(slots: int, candidates: Sequence[HandoffCandidate]) -> HandoffChoice | None:
    """The largest share of its slots free: the least loaded decode instance (DistServe). Ties go to the first."""
    shares = [candidate.free_slots / max(1, candidate.capacity_slots) for candidate in candidates]
    order = sorted(range(len(candidates)), key=lambda index: -shares[index])
    fitting = [index for index in order if candidates[index].free_slots >= slots]
    if not fitting:
        return None
    chosen = candidates[fitting[0]]
    figures = (Figure("slots", slots), Figure("free_slots", chosen.free_slots), Figure("candidates", len(candidates)))
    rejected = tuple(
        RejectedOption(candidates[index].name, f"{candidates[index].free_slots} slots free")
        for index in order
        if index != fitting[0]
    )
    return HandoffChoice(fitting[0], Why("most_room", f"go on at {chosen.name}", figures, rejected[:MAX_ALTERNATIVES]))


def assign_targets(givers: int, takers: int) -> list[list[int]]:
    """The takers (indices) that each giver may use: a row of neighbours, so that every taker has as many givers."""
    size = min(takers, max(MIN_TARGETS, -(-takers // max(1, givers))))
    firsts = [giver * takers // givers for giver in range(givers)]
    return [sorted((first + offset) % takers for offset in range(size)) for first in firsts]


HANDOFF_POLICIES: dict[str, HandoffPolicy] = {"none": stay_local, "most_room": most_room}
