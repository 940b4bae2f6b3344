"""Batching within a millisecond: cuts at few places, then each batch as even parts where that is better.

Where there are more requests or instances than cuts, those that lie between two cuts stay together. Cuts are placed so
that each part has about as much of the tokens and of the number; so the longest requests stand alone. What that loses
against all cuts: docs/measurements/2026-11-23-group-planning.md.
"""

from collections.abc import Sequence
from math import fsum

from dunlin.policies.loongserve.batching import BatchingProblem, BatchPlan, best_batches
from dunlin.policies.loongserve.inputs import GroupTimes, PlanLimits


def batch_within(
    lengths: Sequence[int], room: Sequence[int], times: GroupTimes, limits: PlanLimits, needs: Sequence[int] = ()
) -> list[BatchPlan]:
    """Batches of requests, in descending order of length, on instances with so much room. `needs`: the slots that each
    request needs, if they are not its length.

    Raises ValueError where there is less room than the requests need in all.
    """
    requests = even_cuts([each / max(1, sum(lengths)) + 1.0 / len(lengths) for each in lengths], limits.request_cuts)
    instances = even_cuts([1.0] * len(room), limits.instance_cuts)
    problem = BatchingProblem(
        lengths, room, times, requests, instances, _sizes(max(needs or lengths), room, times), needs
    )
    found = best_batches(problem)
    if found is None:  # all requests on all instances are one of the choices
        raise ValueError(f"{sum(needs or lengths)} slots are needed: there is no room in {sum(room)} slots")
    return [part for batch in found for part in _even_parts(problem, batch)]


def _sizes(most_slots: int, room: Sequence[int], times: GroupTimes) -> tuple[int, ...]:
    """Sizes of batches that are weighed: the measured degrees, all instances, and where one request may need more
    slots, multiples of the largest degree. Others compute as the degree below, and are of use for slots alone.
    """
    largest = times.degrees[-1]
    more = range(largest, len(room), largest) if most_slots > largest * min(room) else ()
    return (*times.degrees, *more, len(room))


def even_cuts(weights: Sequence[float], parts: int) -> list[int]:
    """0, the number of weights, and at most `parts` - 1 places between, so that parts weigh about the same."""
    if len(weights) <= parts:
        return list(range(len(weights) + 1))
    whole = fsum(weights)
    cuts, passed = [0], 0.0
    for at, each in enumerate(weights[:-1], start=1):
        passed += each
        if passed * parts >= whole * len(cuts) and len(cuts) < parts:
            cuts.append(at)
    return [*cuts, len(weights)]


def _even_parts(problem: BatchingProblem, batch: BatchPlan) -> list[BatchPlan]:
    """The batch, or the best of what 2, 4, 8 … even parts of it would be."""
    best, parts = [batch], 2
    while parts <= min(batch.stop - batch.start, batch.last - batch.first):
        found = _cut(problem, batch, parts)
        if found is not None and _latency_s(found) < _latency_s(best):
            best = found
        parts *= 2
    return best


def _cut(problem: BatchingProblem, batch: BatchPlan, parts: int) -> list[BatchPlan] | None:
    requests = [batch.start + (batch.stop - batch.start) * part // parts for part in range(parts + 1)]
    instances = [batch.first + (batch.last - batch.first) * part // parts for part in range(parts + 1)]
    found = []
    for part in range(parts):
        one = problem.batch(requests[part], requests[part + 1], instances[part], instances[part + 1])
        if one is None:
            return None
        found.append(one)
    return found


def _latency_s(batches: Sequence[BatchPlan]) -> float:
    return fsum(batch.latency_s for batch in batches)
