"""LoongServe's plan as a manager of leases uses it: new elastic groups for requests that wait for one.

Dispatching and batching as in `plan`; what waits is dispatched on instances without requests of their own first, and on
others only for their slots. Nothing is moved and no batch waits: a member's engine alternates between steps of its
group and its own, and its unused slots are all that a group takes. Memory is for the maximum length, so a group never
has to evict. The degree of parallelism is the number of members; how a leader spreads a prompt is its own policy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.types import Figure, RejectedOption, Why
from dunlin.policies.groups.elastic_groups import pools_of
from dunlin.policies.groups.group_plan import GroupCandidate
from dunlin.policies.loongserve.batching import BatchPlan
from dunlin.policies.loongserve.coarse import batch_within
from dunlin.policies.loongserve.dispatching import Dispatched, dispatch
from dunlin.policies.loongserve.inputs import (
    NO_BATCH,
    DecodeBatch,
    ElasticInstance,
    GroupTimes,
    PendingRequest,
    PlanLimits,
)
from dunlin.policies.loongserve.plan import PLAN_LIMITS


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A new group of `members`, the leader first, for `requests` (indices of those that wait)."""

    requests: tuple[int, ...]
    members: tuple[Address, ...]
    why: Why


def plan_groups(
    waiting: Sequence[PendingRequest],
    free: Sequence[GroupCandidate],
    times: GroupTimes,
    across_nodes: bool = False,
    limits: PlanLimits = PLAN_LIMITS,
) -> list[PlannedGroup]:
    """Groups for the first of the waiting requests, in order of arrival, of instances that are in no group.

    What is left out waits, or has room in a group that there is.
    """
    groups: list[PlannedGroup] = []
    first = 0
    pools = [[one for one in pool if one.free_slots > 0] for pool in pools_of(free, across_nodes)]
    for pool in sorted(pools, key=lambda one: -sum(each.free_slots for each in one)):  # stable: then by address
        found = list(_plan_pool(waiting[first:], pool, times, limits)) if pool else []
        groups += [_group(batch, order, members, waiting, first, times) for batch, order, members in found]
        first += sum(batch.stop - batch.start for batch, _, _ in found)
    return groups


_Planned = tuple[BatchPlan, Sequence[int], Sequence[GroupCandidate]]


def _plan_pool(
    waiting: Sequence[PendingRequest], pool: Sequence[GroupCandidate], times: GroupTimes, limits: PlanLimits
) -> Iterator[_Planned]:
    """Batches on instances that may be one group: each with the order of its requests and of the instances."""
    busy = [index for index, one in enumerate(pool) if one.requests]
    instances = [
        ElasticInstance(one.address, 0, one.free_slots, busy.index(index) if one.requests else NO_BATCH, one.node)
        for index, one in enumerate(pool)
    ]
    # Its rows do not wait, so they weigh nothing.
    batches = [DecodeBatch((index,), pool[index].requests, 0, 0.0, 0.0) for index in busy]
    found = dispatch(waiting, batches, instances, times, limits)
    if not found.count:
        return
    order = sorted(range(found.count), key=lambda one: (-waiting[one].tokens, one))
    members = _members(waiting[: found.count], pool, busy, found)
    lengths, needs = [waiting[one].tokens for one in order], [waiting[one].longest for one in order]
    for batch in batch_within(lengths, [one.free_slots for one in members], times, limits, needs):
        yield batch, order, members


def _members(
    requests: Sequence[PendingRequest], pool: Sequence[GroupCandidate], busy: Sequence[int], found: Dispatched
) -> list[GroupCandidate]:
    """All idle instances, and as many of those borrowed as the requests need, those with most room first."""
    chosen = [one for one in pool if not one.requests]
    needed = sum(request.longest for request in requests) - sum(one.free_slots for one in chosen)
    borrowed = [pool[busy[number]] for number in found.borrowed]
    for one in sorted(borrowed, key=lambda each: (-each.free_slots, each.address)):
        if needed <= 0:
            break
        chosen.append(one)
        needed -= one.free_slots
    return sorted(chosen, key=lambda one: (one.node, one.free_slots, one.address))


def _group(
    batch: BatchPlan,
    order: Sequence[int],
    pool: Sequence[GroupCandidate],
    waiting: Sequence[PendingRequest],
    first: int,
    times: GroupTimes,
) -> PlannedGroup:
    requests = tuple(first + one for one in order[batch.start : batch.stop])
    # The one with most room leads; so it does not run out first.
    members = sorted(pool[batch.first : batch.last], key=lambda one: (-one.free_slots, one.address))
    tokens = [waiting[one].tokens for one in requests]
    alone_s = times.prefill_s(1, sum(tokens), sum(each * each for each in tokens))
    figures = (
        Figure("slots", sum(waiting[one].longest for one in requests)),
        Figure("group_free_slots", sum(one.free_slots for one in members)),
        Figure("group_members", len(members)),
        Figure("group_requests", len(requests)),
        Figure("group_prefill_s", batch.step_s),
    )
    rejected = (RejectedOption("one instance", f"{alone_s:.3g} s of prefill"),) if len(members) > 1 else ()
    names = " and ".join(one.address.name for one in members)
    why = Why("loongserve", f"form a group of {names}", figures, rejected)
    return PlannedGroup(requests, tuple(one.address for one in members), why)
