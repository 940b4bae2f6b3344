"""The four steps: what is dispatched, on which instances, in which batches, and what grows."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.effects import Address
from dunlin.policies.loongserve.allocation import KvMove, allocate
from dunlin.policies.loongserve.dispatching import Dispatched, dispatch
from dunlin.policies.loongserve.inputs import (
    NO_BATCH,
    DecodeBatch,
    ElasticInstance,
    GroupTimes,
    PendingRequest,
    PlanLimits,
    PrefillPrices,
)
from dunlin.policies.loongserve.plan import Plan, plan
from dunlin.policies.loongserve.scaling import (
    KvShare,
    ScaleUp,
    choose_masters,
    keep_after_prefill,
    scale_up,
    share_evenly,
)

LIMITS = PlanLimits(steps_ahead=4)
TIMES = GroupTimes(
    {size: PrefillPrices(0.01, 0.001 / size, 0.0) for size in (1, 2, 4)},
    tipping_s=0.5,
    decode_s=2.0,
    move_tokens_per_s=10_000.0,
    rows_per_master=8,
)


EXACT = replace(
    TIMES,
    measured={1: PrefillPrices(0.0, 0.5, 0.0), 2: PrefillPrices(0.0, 0.25, 0.0)},
    tipping_s=10.0,
    move_tokens_per_s=8.0,
)


def request(number: int, tokens: int, longest: int = 0) -> PendingRequest:
    return PendingRequest(number, tokens, longest or tokens)


def instance(number: int, unused: int, used: int = 0, batch: int = NO_BATCH) -> ElasticInstance:
    return ElasticInstance(Address("instance", f"i{number}", 1), used, unused, batch)


def batch(*members: int, **overrides: float) -> DecodeBatch:
    values = {"rows": 2, "growth_tokens": 0, "inverse_outputs": 0.1, "executed_s": 0.0, **overrides}
    return DecodeBatch(members, int(values["rows"]), int(values["growth_tokens"]),
                       values["inverse_outputs"], values["executed_s"])  # fmt: skip


def dispatched(
    pending: Sequence[PendingRequest], batches: Sequence[DecodeBatch], instances: Sequence[ElasticInstance]
) -> tuple[int, tuple[int, ...]]:
    found = dispatch(pending, batches, instances, TIMES, LIMITS)
    return found.count, found.borrowed


# --- dispatching ---


def test_requests_are_admitted_with_what_they_may_grow_to() -> None:
    pending = [request(1, 10, 60), request(2, 10, 60)]
    assert dispatched(pending, [], [instance(0, 100)]) == (1, ())
    assert dispatched(pending, [], [instance(0, 120)]) == (2, ())


def test_what_is_dispatched_is_counted_in_tokens_and_in_squares_of_lengths() -> None:
    instances = [instance(0, 100)]
    assert dispatch([request(1, 10), request(2, 20)], [], instances, TIMES, LIMITS) == Dispatched(2, 30, 500)
    assert dispatch([request(1, 101)], [], instances, TIMES, LIMITS) == Dispatched(0, 0, 0)


def test_none_overtakes_another() -> None:
    assert dispatched([request(1, 500), request(2, 10)], [], [instance(0, 100)]) == (0, ())


def test_what_a_batch_may_still_need_is_not_given_away() -> None:
    running = [batch(1, growth_tokens=70, executed_s=9.0)]
    instances = [instance(0, 100), instance(1, 20, 80, 0)]
    assert dispatched([request(1, 51)], running, instances) == (0, ())
    assert dispatched([request(1, 50)], running, instances) == (1, ())


def test_a_compute_bound_iteration_takes_no_more() -> None:
    """0.5 s are 490 tokens: the request that passes the tipping point is the last."""
    pending = [request(number, 300) for number in range(4)]
    assert dispatched(pending, [], [instance(0, 10_000)]) == (2, ())


def test_a_batch_is_interrupted_where_the_wait_for_it_would_cost_more() -> None:
    """Equation 2: (2 - 0) / 100 = 0.02 is more than 0.06 s · 0.1; not where each row waits, nor at the batch's end."""
    instances, pending = [instance(0, 500, 500, 0), instance(1, 500, 500, 0)], [request(1, 100)]
    assert dispatched(pending, [batch(0, 1)], instances) == (1, (0,))
    assert dispatched(pending, [batch(0, 1, inverse_outputs=1.0)], instances) == (0, ())
    assert dispatched(pending, [batch(0, 1, executed_s=1.9)], instances) == (0, ())


def test_a_batch_is_not_interrupted_where_it_is_all_the_same() -> None:
    """A prompt of 4 tokens takes 1 s, and waits for 2 s otherwise: 2 / 4 = 1 · 0.5."""
    instances = [instance(0, 500, 500, 0), instance(1, 500, 500, 0)]
    for inverse_outputs, borrowed in ((0.5, ()), (0.4375, (0,))):
        running = [batch(0, 1, inverse_outputs=inverse_outputs)]
        assert dispatch([request(1, 4)], running, instances, EXACT, LIMITS).borrowed == borrowed


def test_a_long_request_may_need_the_slots_of_several_batches() -> None:
    instances = [instance(number, 100, 10, number) for number in range(3)]
    running = [batch(number, inverse_outputs=0.001) for number in range(3)]
    found = dispatch([request(1, 250)], running, instances, TIMES, LIMITS)
    assert (found.count, found.borrowed) == (1, (0, 1, 2))
    assert [weighing.of for weighing in found.weighed] == [(0, 1, 2)]


def test_batches_with_the_most_room_are_weighed_first_and_each_for_itself() -> None:
    """The last batch has most room, but is about to end; the second is not, and its slots alone are enough."""
    instances = [instance(number, 100 + number, 10, number) for number in range(3)]
    ends = {2: 1.99, 1: 0.0, 0: 0.0}
    running = [batch(number, executed_s=ends[number]) for number in range(3)]
    found = dispatch([request(1, 80)], running, instances, TIMES, LIMITS)
    assert [(weighing.of, weighing.taken) for weighing in found.weighed] == [((2,), False), ((1,), True)]
    assert (found.count, found.borrowed) == (1, (1,))


# --- allocation ---


def test_kv_of_an_interrupted_batch_moves_out_of_the_way_if_it_can() -> None:
    running = [batch(0, 1)]
    instances = [instance(0, 90, 10, 0), instance(1, 60, 40, 0), instance(2, 30, 0)]
    for used, moves, preempted in ((0, (KvMove(0, 0, 1, 10),), ()), (55, (), (0,))):
        others = [*instances[:1], instance(1, 60 - used, 40 + used, 0), *instances[2:]]
        limited = replace(dispatch([request(1, 100)], running, others, TIMES, LIMITS), borrowed=(0,), count=1)
        found = allocate(replace(limited, tokens=100, borrowed=(0,)), [batch(0)], others, SLOW, LIMITS)
        assert (found.instances, found.moves, found.preempted) == ((2, 0), moves, preempted)


def borrowed_by(tokens: int, *batches: int) -> Dispatched:
    return Dispatched(1, tokens, tokens * tokens, batches)


def test_kv_moves_to_no_instance_that_may_be_taken_next() -> None:
    """Both instances of the first batch are needed: what lies there goes to the second's, though that has less room."""
    instances = [instance(0, 90, 10, 0), instance(1, 80, 20, 0), instance(2, 40, 60, 1)]
    found = allocate(borrowed_by(150, 0), [batch(0, 1), batch(2)], instances, SLOW, LIMITS)
    assert found.instances == (0, 1)
    assert found.moves == (KvMove(0, 0, 2, 10), KvMove(0, 1, 2, 20))


def test_a_batch_whose_kv_has_nowhere_to_go_waits() -> None:
    instances = [instance(0, 90, 10, 0), instance(1, 80, 20, 0), instance(2, 5, 95, 1)]
    found = allocate(borrowed_by(150, 0), [batch(0, 1), batch(2)], instances, SLOW, LIMITS)
    assert (found.instances, found.moves, found.preempted) == ((0, 1), (), (0,))


def test_slots_stay_for_the_tokens_that_come_next() -> None:
    """Two rows need 8 slots in the next steps: 8 more than instance 1's KV must be free elsewhere."""
    for free, taken in ((107, (0,)), (108, (0, 1))):
        instances = [instance(0, 5000), instance(1, 5000, 100, 0), instance(2, free, 500, 0)]
        running = [batch(1, 2)]
        assert allocate(borrowed_by(1000), running, instances, TIMES, LIMITS).instances == taken


def test_an_instance_that_got_kv_is_not_taken_itself() -> None:
    """Instance 1's KV goes to 2, which then has the fewest used slots of the batch, and stays."""
    instances = [instance(0, 5000), instance(1, 50, 1, 0), *(instance(n, 900 - n, 10 * n, 0) for n in range(2, 5))]
    found = allocate(borrowed_by(2000), [batch(1, 2, 3, 4)], instances, TIMES, LIMITS)
    assert found.moves[0] == KvMove(0, 1, 2, 1)
    assert found.instances == (0, 1, 3, 4)


SLOW = replace(TIMES, move_tokens_per_s=1e-3)


def test_more_instances_are_taken_while_they_save_more_than_their_kv_costs_to_move() -> None:
    """1,000 tokens: 1.01 s alone, 0.51 s on two, 0.26 s on four; 1,000 tokens of KV move in 0.1 s."""
    running = [batch(1, 2, 3, 4)]
    instances = [instance(0, 5000), *(instance(number, 5000, 100 * number, 0) for number in range(1, 5))]
    found = allocate(dispatch([request(1, 1000)], running, instances, TIMES, LIMITS), running, instances, TIMES, LIMITS)
    assert [(each.of, each.taken) for each in found.weighed] == [((1,), True), ((2, 3), True)]
    assert found.instances == (0, 1, 2, 3)
    assert [(move.source, move.target, move.tokens) for move in found.moves] == [(1, 4, 100), (2, 4, 200), (3, 4, 300)]
    slow = replace(TIMES, move_tokens_per_s=1000.0)
    found = allocate(dispatch([request(1, 1000)], running, instances, slow, LIMITS), running, instances, slow, LIMITS)
    assert found.instances == (0, 1)


def test_no_instance_is_taken_where_its_kv_takes_as_long_to_move_as_it_saves() -> None:
    """4 tokens: 2 s alone and 1 s on two instances; 8 tokens of KV move in 1 s."""
    for used, taken in ((8, (0,)), (7, (0, 1))):
        instances = [instance(0, 5000), instance(1, 5000, used, 0), instance(2, 5000, 500, 0)]
        found = allocate(borrowed_by(4), [batch(1, 2)], instances, EXACT, LIMITS)
        assert found.instances == taken
        assert [each.taken for each in found.weighed] == [len(taken) == 2]


# --- scaling ---


@given(st.integers(0, 200), st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_shares_are_even_as_far_as_there_is_room(amount: int, rooms: list[int]) -> None:
    parts = share_evenly(amount, rooms)
    if parts is None:
        assert amount > sum(rooms)
        return
    assert sum(parts) == amount
    assert all(part <= room for part, room in zip(parts, rooms, strict=True))
    filled = [part for part, room in zip(parts, rooms, strict=True) if part < room]
    assert max(filled, default=0) - min(filled, default=0) <= 1
    assert all(part >= max(filled, default=0) - 1 or part == room for part, room in zip(parts, rooms, strict=True))


def test_kv_stays_at_as_few_instances_as_hold_it() -> None:
    assert keep_after_prefill(90, [4, 5, 6], [50, 100, 60]) == (KvShare(5, 90),)
    assert keep_after_prefill(130, [4, 5, 6], [50, 100, 60]) == (KvShare(5, 70), KvShare(6, 60))
    with pytest.raises(ValueError, match="no room"):
        keep_after_prefill(211, [4, 5, 6], [50, 100, 60])


def test_a_batch_grows_by_slots_or_by_rows() -> None:
    instances = [instance(0, 20, 80, 0), instance(1, 50), instance(2, 90)]
    spare = [1, 2]
    grown = scale_up(0, batch(0, rows=6), instances, spare, TIMES, LIMITS)
    assert grown is not None
    assert (grown.added, grown.reason, spare) == ((2,), "slots", [1])
    assert grown.masters == (KvShare(2, 6),)
    assert scale_up(0, batch(0, rows=5), instances, spare, TIMES, LIMITS) is None
    crowded = [instance(0, 900, 80, 0), *instances[1:]]
    grown = scale_up(0, batch(0, rows=9), crowded, spare, TIMES, LIMITS)
    assert grown is not None
    assert (grown.added, grown.reason) == ((1,), "rows")
    assert grown.masters == (KvShare(0, 4), KvShare(1, 5))


def test_of_idle_instances_with_as_many_slots_the_first_joins_a_batch() -> None:
    instances = [instance(0, 20, 80, 0), instance(1, 50), instance(2, 50)]
    grown = scale_up(0, batch(0, rows=6), instances, [1, 2], TIMES, LIMITS)
    assert grown is not None
    assert grown.added == (1,)


def test_masters_are_as_few_as_have_slots_for_the_next_tokens() -> None:
    instances = [instance(0, 1), instance(1, 2), instance(2, 0)]
    assert choose_masters(3, [0, 1, 2], instances, TIMES) == (KvShare(1, 2), KvShare(0, 1))
    assert choose_masters(7, [0, 1, 2], instances, TIMES) == (KvShare(1, 2), KvShare(0, 1))


# --- all of it ---


def test_a_batch_that_runs_out_of_slots_gets_idle_instances_that_no_prefill_has() -> None:
    instances = [instance(0, 20, 80, 0), instance(1, 50), instance(2, 40)]
    grown = ScaleUp(0, (1,), (KvShare(1, 6),), "slots")
    assert plan([], [batch(0, rows=6)], instances, TIMES, LIMITS).scale_ups == (grown,)
    both_prefill = plan([request(1, 90)], [batch(0, rows=6)], instances, TIMES, LIMITS)
    assert both_prefill.prefills[0].instances == (1, 2)
    assert both_prefill.scale_ups == ()


def test_neighbours_share_a_batch() -> None:
    """Two prompts, and two nodes whose instances are listed in turns."""
    instances = [replace(instance(number, 1000), location=f"node-{number % 2}") for number in range(4)]
    times = replace(TIMES, measured={size: TIMES.measured[size] for size in (1, 2)}, tipping_s=10.0)
    found = plan([request(1, 900), request(2, 900)], [], instances, times, LIMITS)
    assert sorted(sorted(prefill.instances) for prefill in found.prefills) == [[0, 2], [1, 3]]


@st.composite
def moments(draw: st.DrawFn) -> tuple[list[PendingRequest], list[DecodeBatch], list[ElasticInstance]]:
    pending = [
        request(number, tokens, tokens + draw(st.integers(0, 50)))
        for number, tokens in enumerate(draw(st.lists(st.integers(1, 400), max_size=12)))
    ]
    members = draw(st.lists(st.integers(-1, 3), min_size=1, max_size=10))
    known = sorted({each for each in members if each >= 0})
    owner = {each: index for index, each in enumerate(known)}
    instances = [
        instance(
            number, draw(st.integers(0, 500)), draw(st.integers(0, 200)) if each >= 0 else 0, owner.get(each, NO_BATCH)
        )
        for number, each in enumerate(members)
    ]
    batches = [
        DecodeBatch(
            tuple(number for number, each in enumerate(members) if each == name),
            draw(st.integers(1, 30)),
            draw(st.integers(0, 200)),
            draw(st.floats(0.0, 2.0)),
            draw(st.floats(0.0, 3.0)),
        )
        for name in known
    ]
    return pending, batches, instances


@given(moments())
def test_a_plan_holds(moment: tuple[list[PendingRequest], list[DecodeBatch], list[ElasticInstance]]) -> None:
    pending, batches, instances = moment
    found = plan(pending, batches, instances, TIMES, LIMITS)
    assert found == plan(pending, batches, instances, TIMES, LIMITS)
    planned = sorted(index for prefill in found.prefills for index in prefill.requests)
    assert planned == list(range(len(planned)))  # in order of arrival, each once
    taken = [member for prefill in found.prefills for member in prefill.instances]
    added = [member for up in found.scale_ups for member in up.added]
    assert len({*taken, *added}) == len(taken) + len(added)
    check_slots(found, pending, instances)
    for up in found.scale_ups:
        assert sum(share.count for share in up.masters) <= batches[up.batch].rows
        assert {share.instance for share in up.masters} <= {*batches[up.batch].instances, *up.added}
        assert up.batch not in found.preempted
        assert {*taken}.isdisjoint(batches[up.batch].instances)


def check_slots(found: Plan, pending: Sequence[PendingRequest], instances: Sequence[ElasticInstance]) -> None:
    """What the plan puts anywhere has room, and what a prefill leaves is what its requests have."""
    unused = [each.unused_slots for each in instances]
    used = [each.used_slots for each in instances]
    for move in found.moves:
        assert 0 < move.tokens <= min(used[move.source], unused[move.target])
        assert instances[move.source].batch == move.batch
        assert instances[move.target].batch != NO_BATCH
        used[move.source] -= move.tokens
        unused[move.source] += move.tokens
        used[move.target] += move.tokens
        unused[move.target] -= move.tokens
    for prefill in found.prefills:
        assert sum(share.count for share in prefill.kept) == sum(pending[index].tokens for index in prefill.requests)
        assert {share.instance for share in prefill.kept} <= set(prefill.instances)
        assert prefill.instances[0] == prefill.kept[0].instance
        assert all(0 < share.count <= unused[share.instance] for share in prefill.kept)


def test_a_batch_that_lost_an_instance_does_not_grow_at_once() -> None:
    """Instance 0 is idle and too small for the prompt, which gets instance 1; that batch's rows are to go elsewhere."""
    instances = [instance(0, 10), instance(1, 90, 10, 0), instance(2, 500, 10, 1)]
    running = [batch(1, rows=20, inverse_outputs=0.0), batch(2, executed_s=2.0)]
    times = replace(SLOW, measured={1: TIMES.measured[1]})
    found = plan([request(1, 85)], running, instances, times, LIMITS)
    assert [prefill.instances for prefill in found.prefills] == [(1,)]
    assert [move.target for move in found.moves] == [2]
    assert found.scale_ups == ()
