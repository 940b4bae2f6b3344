"""Which sequence gives up its slots to another: functions over the holders of slots. Knows no slot table."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dunlin.messages.types import MAX_ALTERNATIVES, Figure, RejectedOption, RequestClass, Why


@dataclass(frozen=True, slots=True)
class SlotNeed:
    """What the slots are for. `is_waiting`: a sequence of the queue that should start; else a running one that grows,
    which is one of the candidates itself. `may_preempt`: work of the batch class may be preempted for it.
    """

    request_class: RequestClass = RequestClass.INTERACTIVE
    may_preempt: bool = False
    is_waiting: bool = False


@dataclass(frozen=True, slots=True)
class VictimCandidate:
    """A sequence that holds slots. `turn_rank` is greater the later its turn: new requests are in order of arrival,
    behind all answers that were interrupted elsewhere and go on here.

    `is_parked`: its row waits in the engine to be resumed, and would be discarded. `may_preempt`: as in `SlotNeed`.
    `is_checkpointed`: the host tier has its KV, so that its slots are free at once and nothing is computed again.
    """

    name: str
    turn_rank: int
    slots: int
    request_class: RequestClass = RequestClass.INTERACTIVE
    may_preempt: bool = False
    is_parked: bool = False
    is_checkpointed: bool = False


@dataclass(frozen=True, slots=True)
class VictimChoice:
    """The candidate's index, and why."""

    index: int
    why: Why


VictimPolicy = Callable[[Sequence[VictimCandidate], SlotNeed], VictimChoice | None]
"""Maps (candidates, what needs their slots) to a choice; None: what needs them waits.

A running sequence that grows always gets a choice, which may be itself.
"""


def youngest(candidates: Sequence[VictimCandidate], need: SlotNeed) -> VictimChoice | None:
    """The sequence whose turn is last: the oldest is preempted last, and gets to its end whatever arrives behind it.

    Nothing is preempted for a sequence that waits.
    """
    if need.is_waiting:
        return None
    order = sorted(range(len(candidates)), key=lambda index: -candidates[index].turn_rank)
    return _choose("youngest", candidates, order, "older")


def batch_first(candidates: Sequence[VictimCandidate], need: SlotNeed) -> VictimChoice | None:
    """A sequence of the batch class, also for an interactive one that waits; among them those that are checkpointed,
    and of these the youngest (ConServe 4.2 and 4.4). Without batch work: as `youngest`.
    """
    batch = [index for index, each in enumerate(candidates) if each.request_class is RequestClass.BATCH]
    if need.is_waiting and not need.may_preempt:
        batch = []
    if not batch:
        return youngest(candidates, need)
    order = sorted(batch, key=lambda index: (not candidates[index].is_checkpointed, -candidates[index].turn_rank))
    return _choose("batch_first", candidates, order, "not checkpointed, or older")


def _choose(policy: str, candidates: Sequence[VictimCandidate], order: list[int], because: str) -> VictimChoice:
    chosen = candidates[order[0]]
    rejected = tuple(RejectedOption(candidates[index].name, because) for index in order[1 : 1 + MAX_ALTERNATIVES])
    return VictimChoice(order[0], Why(policy, chosen.name, (Figure("held_slots", chosen.slots),), rejected))


VICTIM_POLICIES: dict[str, VictimPolicy] = {"youngest": youngest, "batch_first": batch_first}
