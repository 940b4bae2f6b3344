"""LoongServe's plan for one moment: the four steps, one after the other.

Deterministic: ties go to what comes first in the inputs. Nothing of an instance's or a batch's is changed by planning.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.policies.loongserve.allocation import Allocation, KvMove, allocate
from dunlin.policies.loongserve.batching import BatchPlan
from dunlin.policies.loongserve.coarse import batch_within
from dunlin.policies.loongserve.dispatching import Dispatched, Weighing, dispatch
from dunlin.policies.loongserve.inputs import (
    NO_BATCH,
    DecodeBatch,
    ElasticInstance,
    GroupTimes,
    PendingRequest,
    PlanLimits,
)
from dunlin.policies.loongserve.scaling import KvShare, ScaleUp, keep_after_prefill, scale_up

PLAN_LIMITS = PlanLimits()


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """`requests` (indices of pending ones) are prefilled together on `instances`, the first of which leads, in about
    `step_s` seconds. Their KV stays at `kept`: the group has that degree of parallelism afterwards.
    """

    requests: tuple[int, ...]
    instances: tuple[int, ...]
    step_s: float
    kept: tuple[KvShare, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one moment. `moves` come before the prefills; `preempted` batches wait for them. `weighed` says what
    was compared.
    """

    prefills: tuple[PrefillPlan, ...] = ()
    moves: tuple[KvMove, ...] = ()
    preempted: tuple[int, ...] = ()
    scale_ups: tuple[ScaleUp, ...] = ()
    weighed: tuple[Weighing, ...] = ()


def plan(
    pending: Sequence[PendingRequest],
    batches: Sequence[DecodeBatch],
    instances: Sequence[ElasticInstance],
    times: GroupTimes,
    limits: PlanLimits = PLAN_LIMITS,
) -> Plan:
    """What is prefilled next, where and how, and which decoding batches grow.

    `pending` in order of arrival; `instances` without those that compute a prefill, and `batches` with theirs.
    """
    dispatched = dispatch(pending, batches, instances, times, limits)
    found = allocate(dispatched, batches, instances, times, limits)
    prefills = _prefills(pending, dispatched, found, instances, times, limits)
    used = {one for prefill in prefills for one in prefill.instances}
    spare = [index for index, each in enumerate(instances) if each.batch == NO_BATCH and index not in used]
    ups = []
    for index, batch in enumerate(batches):
        if index not in found.preempted and used.isdisjoint(batch.instances):
            up = scale_up(index, batch, instances, spare, times, limits)
            ups += [up] if up is not None else []
    return Plan(prefills, found.moves, found.preempted, tuple(ups), (*dispatched.weighed, *found.weighed))


def _prefills(
    pending: Sequence[PendingRequest],
    dispatched: Dispatched,
    found: Allocation,
    instances: Sequence[ElasticInstance],
    times: GroupTimes,
    limits: PlanLimits,
) -> tuple[PrefillPlan, ...]:
    """The batches of the dispatched requests."""
    if not dispatched.count:
        return ()
    longest_first = sorted(range(dispatched.count), key=lambda one: (-pending[one].tokens, one))
    unused = dict(zip(found.instances, found.unused, strict=True))
    order = sorted(unused, key=lambda one: (instances[one].location, unused[one], one))
    lengths = [pending[index].tokens for index in longest_first]
    batches = batch_within(lengths, [unused[one] for one in order], times, limits)
    return tuple(_prefill(batch, longest_first, order, unused, pending) for batch in batches)


def _prefill(
    batch: BatchPlan,
    longest_first: Sequence[int],
    order: Sequence[int],
    unused: dict[int, int],
    pending: Sequence[PendingRequest],
) -> PrefillPlan:
    requests = tuple(longest_first[batch.start : batch.stop])
    members = tuple(order[batch.first : batch.last])
    tokens = sum(pending[index].tokens for index in requests)
    kept = keep_after_prefill(tokens, members, [unused[one] for one in members])
    # The member that keeps most leads: it is there after the prefill, too.
    leader = kept[0].instance
    return PrefillPlan(requests, (leader, *(one for one in members if one != leader)), batch.step_s, kept)
