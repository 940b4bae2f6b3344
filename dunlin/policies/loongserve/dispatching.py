"""Section 5.1: which pending requests are prefilled next, and which decoding batches may be interrupted for them.

Pending requests are taken in the order of their arrival, and none overtakes another. Memory: a request is admitted only
where its maximum length has room, besides what all that run may still grow by. Compute: requests are added until the
iteration turns compute-bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum

from dunlin.policies.loongserve.inputs import (
    NO_BATCH,
    DecodeBatch,
    ElasticInstance,
    GroupTimes,
    PendingRequest,
    PlanLimits,
)


@dataclass(frozen=True, slots=True)
class Weighing:
    """One comparison of a gain with a cost: `what` was weighed, of batches (or instances) `of`, and whether it was
    `taken`.
    """

    what: str
    of: tuple[int, ...]
    gain: float
    cost: float
    taken: bool


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The first `count` pending requests are prefilled. `borrowed`: the batches whose instances may be used for it."""

    count: int
    tokens: int
    squares: int
    borrowed: tuple[int, ...] = ()
    weighed: tuple[Weighing, ...] = ()


@dataclass(frozen=True, slots=True)
class _Trial:
    """Requests that are admitted on `instances` instances, of whose slots `room` are not promised to any."""

    count: int
    tokens: int
    squares: int
    instances: int
    room: int
    batches: tuple[int, ...] = ()


def dispatch(
    pending: Sequence[PendingRequest],
    batches: Sequence[DecodeBatch],
    instances: Sequence[ElasticInstance],
    times: GroupTimes,
    limits: PlanLimits,
) -> Dispatched:
    """The requests of the next prefill: on idle instances, and on those of batches where equation 2 exceeds 1."""
    waiting = pending[: limits.requests]
    spare = [sum(instances[index].unused_slots for index in batch.instances) - batch.growth_tokens for batch in batches]
    idle = [each.unused_slots for each in instances if each.batch == NO_BATCH]
    # What batches will need beyond their own slots comes out of the idle ones.
    room = sum(idle) + sum(left for left in spare if left < 0)
    taken = _admit(waiting, _Trial(0, 0, 0, len(idle), room), times)
    trial, weighed = taken, []
    for index in sorted(range(len(batches)), key=lambda one: (-spare[one], one)):
        if spare[index] <= 0 or taken.count == len(waiting) or _is_compute_bound(taken, times):
            break
        trial = _with_batch(trial, index, len(batches[index].instances), spare[index])
        found = _admit(waiting, trial, times)
        if found.count == taken.count:
            continue  # the next request needs the slots of a further batch besides
        weighing = _weigh(waiting[taken.count : found.count], found, taken, batches, times)
        weighed.append(weighing)
        taken = found if weighing.taken else taken
        trial = taken
    return Dispatched(taken.count, taken.tokens, taken.squares, taken.batches, tuple(weighed))


def _with_batch(trial: _Trial, index: int, instances: int, room: int) -> _Trial:
    return replace(
        trial, instances=trial.instances + instances, room=trial.room + room, batches=(*trial.batches, index)
    )


def _is_compute_bound(trial: _Trial, times: GroupTimes) -> bool:
    return times.prefill_s(trial.instances, trial.tokens, trial.squares) > times.tipping_s


def _admit(waiting: Sequence[PendingRequest], trial: _Trial, times: GroupTimes) -> _Trial:
    """Requests after those of the trial, as long as there is room and the iteration is memory-bound."""
    count, tokens, squares, room = trial.count, trial.tokens, trial.squares, trial.room
    if not trial.instances:
        return trial
    prices = times.prices(trial.instances)
    while count < len(waiting) and waiting[count].longest <= room:
        if tokens and prices.step_s(tokens, squares) > times.tipping_s:
            break
        request = waiting[count]
        count += 1
        tokens += request.tokens
        squares += request.tokens * request.tokens
        room -= request.longest
    return replace(trial, count=count, tokens=tokens, squares=squares, room=room)


def _weigh(
    more: Sequence[PendingRequest],
    found: _Trial,
    taken: _Trial,
    batches: Sequence[DecodeBatch],
    times: GroupTimes,
) -> Weighing:
    """Equations 1 and 2: the batches' rows wait for a prefill, or the further requests for the batches."""
    borrowed = found.batches[len(taken.batches) :]
    step_s = times.prefill_s(found.instances, found.tokens, found.squares)
    cost = step_s * fsum(batches[index].inverse_outputs for index in borrowed)
    wait_s = max(0.0, times.decode_s - min(batches[index].executed_s for index in borrowed))
    gain = wait_s * fsum(1.0 / request.tokens for request in more)
    return Weighing("preempt", borrowed, gain, cost, gain > cost)
