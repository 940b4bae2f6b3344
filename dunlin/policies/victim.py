"""Which sequence gives up its slots when they run out: functions over the holders of slots. Knows no slot table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dunlin.messages.types import Figure, RejectedOption, RequestClass, Why

MAX_ALTERNATIVES = 3


@dataclass(frozen=True, slots=True)
class VictimCandidate:
    """A sequence that holds slots. `turn_rank` is greater the later its turn: new requests are in order of arrival,
    behind all answers that were interrupted elsewhere and go on here.

    `is_parked`: its row waits in the engine to be resumed, and would be discarded. `may_preempt`: work of the batch
    class may be preempted for it.
    """

    name: str
    turn_rank: int
    slots: int
    request_class: RequestClass = RequestClass.INTERACTIVE
    may_preempt: bool = False
    is_parked: bool = False


@dataclass(frozen=True, slots=True)
class VictimChoice:
    """The candidate's index, and why."""

    index: int
    why: Why


VictimPolicy = Callable[[Sequence[VictimCandidate]], VictimChoice]
"""Maps candidates, at least one, to a choice."""


def youngest(candidates: Sequence[VictimCandidate]) -> VictimChoice:
    """The sequence whose turn is last: the oldest is preempted last, and gets to its end whatever arrives behind it."""
    order = sorted(range(len(candidates)), key=lambda index: -candidates[index].turn_rank)
    chosen = candidates[order[0]]
    figures = (Figure("held_slots", chosen.slots),)
    rejected = tuple(RejectedOption(candidates[index].name, "older") for index in order[1 : 1 + MAX_ALTERNATIVES])
    return VictimChoice(order[0], Why("youngest", chosen.name, figures, rejected))


VICTIM_POLICIES: dict[str, VictimPolicy] = {"youngest": youngest}
