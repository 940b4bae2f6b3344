"""Section 5.2: the instances of the next prefill. Idle ones first; then some of interrupted batches; then more, as long
as the prefill gets faster by more than the KV that lies there takes to move.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.policies.loongserve.dispatching import Dispatched, Weighing
from dunlin.policies.loongserve.inputs import NO_BATCH, DecodeBatch, ElasticInstance, GroupTimes, PlanLimits


@dataclass(frozen=True, slots=True)
class KvMove:
    """Move `tokens` tokens of KV of the batch `batch` from one instance to another before the prefill begins there."""

    batch: int
    source: int
    target: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Allocation:
    """`instances` compute the prefill, with `unused` slots each. `preempted` batches wait until it is through."""

    instances: tuple[int, ...]
    unused: tuple[int, ...]
    moves: tuple[KvMove, ...] = ()
    preempted: tuple[int, ...] = ()
    weighed: tuple[Weighing, ...] = ()


class _Slots:
    """The slots of all instances while instances are taken: `taken`, and those that go on decoding (`active`)."""

    def __init__(self, instances: Sequence[ElasticInstance]) -> None:
        self.unused = [each.unused_slots for each in instances]
        self.used = [each.used_slots for each in instances]
        self.batch = [each.batch for each in instances]
        self.taken = [index for index, each in enumerate(instances) if each.batch == NO_BATCH]
        self.active = [index for index, each in enumerate(instances) if each.batch != NO_BATCH]
        self.moves: list[KvMove] = []
        self.preempted: list[int] = []
        self.targets: list[int] = []

    def room_elsewhere(self, leaving: Sequence[int]) -> int:
        """Unused slots of the instances that go on decoding, without those."""
        return sum(self.unused[index] for index in self.active if index not in leaving)

    def take(self, index: int) -> None:
        """Take an active instance; what lies there has to be moved, or its batch waits."""
        self.active.remove(index)
        self.taken.append(index)

    def clear(self, index: int, leaving: Sequence[int] = ()) -> None:
        """Move what lies at a taken instance to those with the most unused slots, which must have room for it; to none
        of those that may be taken next.
        """
        left = self.used[index]
        while left > 0:
            stay = [one for one in self.active if one not in leaving]
            target = max(stay, key=lambda one: (self.unused[one], self.used[one], -one))
            tokens = min(left, self.unused[target])
            self.moves.append(KvMove(self.batch[index], index, target, tokens))
            self.targets.append(target)
            self.unused[target] -= tokens
            self.used[target] += tokens
            left -= tokens
        self.unused[index] += self.used[index]
        self.used[index] = 0


def allocate(
    dispatched: Dispatched,
    batches: Sequence[DecodeBatch],
    instances: Sequence[ElasticInstance],
    times: GroupTimes,
    limits: PlanLimits,
) -> Allocation:
    """The instances for the dispatched requests."""
    if not dispatched.count:
        return Allocation((), ())
    slots = _Slots(instances)
    _take_until_it_fits(slots, dispatched, batches)
    reserve = limits.steps_ahead * sum(batch.rows for batch in batches)
    weighed = _grow(slots, dispatched, times, reserve)
    unused = tuple(slots.unused[index] for index in slots.taken)
    return Allocation(tuple(slots.taken), unused, tuple(slots.moves), tuple(slots.preempted), tuple(weighed))


def _take_until_it_fits(slots: _Slots, dispatched: Dispatched, batches: Sequence[DecodeBatch]) -> None:
    """Instances of the borrowed batches, those with most unused slots first, until the prompts have room."""
    borrowed = [index for batch in dispatched.borrowed for index in batches[batch].instances]
    for index in sorted(borrowed, key=lambda one: (-slots.unused[one], one)):
        if sum(slots.unused[one] for one in slots.taken) >= dispatched.tokens:
            return
        slots.take(index)
        if slots.batch[index] not in slots.preempted and slots.room_elsewhere(borrowed) >= slots.used[index]:
            slots.clear(index, borrowed)
        elif slots.batch[index] not in slots.preempted:
            slots.preempted.append(slots.batch[index])


def _grow(slots: _Slots, dispatched: Dispatched, times: GroupTimes, reserve: int) -> list[Weighing]:
    """Equations 3 and 4: further instances, those with the fewest used slots first; `reserve` slots stay for decoding.

    Σ 1 / input length stands on both sides and is left out. Where the next measured degree is more than one instance
    away, as many are weighed together: the time does not change before.
    """
    weighed: list[Weighing] = []
    for degree in times.degrees:
        more = degree - len(slots.taken)
        if more <= 0:
            continue
        kept = slots.targets
        free = [one for one in slots.active if one not in kept and slots.batch[one] not in slots.preempted]
        chosen = sorted(free, key=lambda one: (slots.used[one], one))[:more]
        used = sum(slots.used[index] for index in chosen)
        if len(chosen) < more or used + reserve > slots.room_elsewhere(chosen):
            break
        now_s = times.prefill_s(len(slots.taken), dispatched.tokens, dispatched.squares)
        gain = now_s - times.prefill_s(degree, dispatched.tokens, dispatched.squares)
        cost = used / times.move_tokens_per_s
        weighed.append(Weighing("grow", tuple(chosen), gain, cost, gain > cost))
        if not gain > cost:
            break
        for index in chosen:
            slots.take(index)
        for index in chosen:
            slots.clear(index)
    return weighed
