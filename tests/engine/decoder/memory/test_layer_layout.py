"""Whatever changes of layers follow one another: no granule is lost or used twice, and valid KV keeps its granules."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dunlin.engine.decoder.memory.granule_ledger import (
    OUTER,
    LedgerPhase,
    LedgerRecord,
    check_record,
    decode_record,
    encode_record,
    kv_of,
    weights_of,
)
from dunlin.engine.decoder.memory.layer_layout import (
    GRANULE_BYTES,
    ArenaPlan,
    LayoutError,
    aborted,
    file_runs,
    first_record,
    granules_for,
    recovered,
    slot_capacity,
    slots_of,
    with_layers,
    with_room,
    without_kv,
    without_weights,
)

SLOT = GRANULE_BYTES // 4
PLAN = ArenaPlan(3 + 4 * 5 + 4 * 2, outer=3, weights=(5, 5, 5, 5), slot_bytes=SLOT)
ALL = (0, 1, 2, 3)


def loaded(record: LedgerRecord) -> LedgerRecord:
    """The same once the weights of all layers held or coming are there."""
    record = replace(record, outer_loaded=True)
    for layer in (*record.held, *record.coming):
        record = record.with_layer(layer, loaded=True)
    return record


def kv(record: LedgerRecord, layer: int) -> list[int]:
    return [int(granule) for granule in record.granules(kv_of(layer))]


def free(plan: ArenaPlan, record: LedgerRecord) -> int:
    return plan.granules - sum(len(granules) for granules in record.ranges.values())


def test_a_fresh_arena_is_filled_lowest_first() -> None:
    record = first_record(PLAN, ALL)
    assert record.granules(OUTER).tolist() == [0, 1, 2]
    assert record.granules(weights_of(1)).tolist() == [8, 9, 10, 11, 12]
    assert [kv(record, layer) for layer in ALL] == [[23, 24], [25, 26], [27, 28], [29, 30]]
    assert (record.held, record.coming, record.retained, record.layout) == (ALL, (), (), 0)
    assert not any(state.loaded for state in record.layers)
    assert (slot_capacity(PLAN, record), PLAN.quantum) == (8, 4)


def test_a_fresh_arena_may_hold_some_layers() -> None:
    record = first_record(PLAN, (1, 2))
    assert record.held == (1, 2)
    assert slot_capacity(PLAN, record) == (31 - 3 - 10) // 2 * 4
    assert [slots_of(PLAN, record, layer) for layer in ALL] == [0, 36, 36, 0]


def test_dropped_weights_become_the_tails_of_the_kv_that_stays() -> None:
    before = loaded(first_record(PLAN, ALL))
    after = without_weights(PLAN, before, (0, 1), 7)
    assert (after.held, after.retained, after.layout, after.phase) == ((0, 1), (2, 3), 7, LedgerPhase.DROPPED)
    assert kv(after, 0) == [23, 24, 13, 14, 15, 16, 17]
    assert kv(after, 1) == [25, 26, 18, 19, 20, 21, 22]
    assert (kv(after, 2), kv(after, 3)) == (kv(before, 2), kv(before, 3)), "their KV stays until it is released"
    assert [state.loaded for state in after.layers] == [True, True, False, False]
    assert [slots_of(PLAN, after, layer) for layer in ALL] == [28, 28, 8, 8]
    assert slot_capacity(PLAN, after) == 28
    released = without_kv(PLAN, after)
    assert (released.phase, released.retained, slot_capacity(PLAN, released)) == (LedgerPhase.SETTLED, (), 36)
    assert kv(released, 0) == [*kv(after, 0), 27, 28]
    assert slots_of(PLAN, released, 2) == 0


def test_layers_come_back_into_tails_of_kv() -> None:
    small = loaded(without_kv(PLAN, without_weights(PLAN, loaded(first_record(PLAN, ALL)), (2, 3), 1)))
    room = with_room(PLAN, small, ALL)
    assert (room.held, room.coming, room.phase, room.layout) == ((2, 3), ALL, LedgerPhase.LOADING, 1)
    assert slot_capacity(PLAN, room) == 8
    assert all(kv(small, layer)[:2] == kv(room, layer) for layer in (2, 3))
    assert len(room.granules(weights_of(0))) == len(room.granules(weights_of(1))) == 5
    assert not room.layers[0].loaded
    back = with_layers(loaded(room), 2)
    assert (back.held, back.coming, back.layout, back.phase) == (ALL, (), 2, LedgerPhase.SETTLED)
    assert slot_capacity(PLAN, back) == 8
    for ended in (aborted(PLAN, room), recovered(PLAN, room), aborted(PLAN, loaded(room))):
        assert (ended.held, ended.coming, ended.layout, ended.phase) == ((2, 3), (), 1, LedgerPhase.SETTLED)
        assert slot_capacity(PLAN, ended) == slot_capacity(PLAN, small)
        assert [state.loaded for state in ended.layers] == [False, False, True, True]


def test_retained_kv_comes_back_with_its_layer() -> None:
    dropped = without_weights(PLAN, loaded(first_record(PLAN, ALL)), (0, 1), 1)
    ended = aborted(PLAN, dropped)
    assert (ended.phase, ended.retained, ended.held) == (LedgerPhase.SETTLED, (2, 3), (0, 1))
    assert recovered(PLAN, dropped) is dropped, "it still waits to be released"
    room = with_room(PLAN, ended, (0, 1, 2))
    assert [slots_of(PLAN, room, layer) for layer in ALL] == [12, 12, 8, 8]
    assert kv(room, 2)[:2] == kv(dropped, 2)
    assert kv(room, 3) == kv(dropped, 3)
    back = aborted(PLAN, room)
    assert (kv(back, 2), kv(back, 3), back.retained) == (kv(dropped, 2), kv(dropped, 3), (2, 3))
    held = with_layers(loaded(room), 2)
    assert (held.retained, slots_of(PLAN, held, 2)) == ((3,), 12)


def test_retained_kv_beyond_the_coming_capacity_is_given_up() -> None:
    small = loaded(first_record(PLAN, (0, 1)))
    dropped = aborted(PLAN, without_weights(PLAN, small, (0,), 1))
    assert slots_of(PLAN, dropped, 1) == 36
    room = with_room(PLAN, dropped, ALL)
    assert slots_of(PLAN, room, 1) == 8
    back = aborted(PLAN, room)
    assert kv(back, 1) == kv(dropped, 1)[:2]


def test_no_slot_is_refused() -> None:
    tight = replace(PLAN, granules=3 + 20 + 3)
    text = "the weights of 4 layers take 23 of 26 granules and leave 3 for KV, less than one slot in each"
    with pytest.raises(LayoutError, match=text):
        first_record(tight, ALL)
    small = loaded(first_record(tight, (0,)))
    with pytest.raises(LayoutError, match="leave 3 for KV"):
        with_room(tight, small, ALL)
    assert slot_capacity(tight, with_room(tight, small, (0, 1, 2))) == 2 * 4
    larger = replace(PLAN, slot_bytes=2 * GRANULE_BYTES + 1)
    with pytest.raises(LayoutError, match="less than one slot"):
        first_record(larger, ALL)


def test_where_bytes_lie() -> None:
    record = without_weights(PLAN, loaded(first_record(PLAN, ALL)), (0, 1), 7)
    start = 2 * GRANULE_BYTES - 10
    runs = file_runs(PLAN, record, kv_of(0), start, 2 * GRANULE_BYTES)
    assert runs == [(25 * GRANULE_BYTES - 10, 10), (13 * GRANULE_BYTES, 2 * GRANULE_BYTES - 10)]
    assert file_runs(PLAN, record, kv_of(0), 5, 0) == []
    for outside in ((-1, 5), (7 * GRANULE_BYTES, 1)):
        with pytest.raises(LayoutError, match="lie outside 7 granules"):
            file_runs(PLAN, record, kv_of(0), *outside)


def test_sizes() -> None:
    assert [granules_for(size) for size in (0, 1, GRANULE_BYTES, GRANULE_BYTES + 1)] == [0, 1, 1, 2]
    assert replace(PLAN, slot_bytes=GRANULE_BYTES + 1).quantum == 1
    assert replace(PLAN, slot_bytes=GRANULE_BYTES // 3 * 2).slots(2) == 3, "a slot may lie in two granules"
    record = first_record(PLAN, ALL)
    uneven = replace(record, ranges={**record.ranges, kv_of(2): record.granules(kv_of(2))[:1]})
    assert slot_capacity(PLAN, uneven) == 4
    assert PLAN.digest == replace(PLAN).digest != replace(PLAN, model="other").digest


class Changes(RuleBasedStateMachine):
    """Any legal sequence of changes. `valid` has the granules of each layer's KV that must not be lost."""

    @initialize(
        weights=st.lists(st.integers(1, 6), min_size=1, max_size=5), outer=st.integers(1, 3), spare=st.integers(0, 30)
    )
    def begin(self, weights: list[int], outer: int, spare: int) -> None:
        total = outer + sum(weights) + 2 * len(weights) + spare
        self.plan = ArenaPlan(total, outer, tuple(weights), SLOT)
        self.record = loaded(first_record(self.plan, range(len(weights))))
        self.before: LedgerRecord | None = None

    def step(self, record: LedgerRecord) -> None:
        for layer in range(len(self.plan.weights)):
            kept = min(slots_of(self.plan, self.record, layer), slots_of(self.plan, record, layer)) // 4
            assert kv(record, layer)[:kept] == kv(self.record, layer)[:kept], "valid KV keeps its granules"
        self.record = record

    @precondition(lambda self: self.record.phase is LedgerPhase.SETTLED)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        held = self.record.held
        keep = data.draw(st.lists(st.sampled_from(held), min_size=1, unique=True).map(sorted))
        slots, kvs = slot_capacity(self.plan, self.record), {layer: kv(self.record, layer) for layer in held}
        self.step(without_weights(self.plan, self.record, keep, self.record.layout + 1))
        assert slot_capacity(self.plan, self.record) >= slots
        assert self.record.held == tuple(keep)
        assert all(kv(self.record, layer) == kvs[layer] for layer in held if layer not in keep)

    @precondition(lambda self: self.record.phase is LedgerPhase.DROPPED)
    @rule()
    def release(self) -> None:
        slots = slot_capacity(self.plan, self.record)
        self.step(without_kv(self.plan, self.record))
        assert slot_capacity(self.plan, self.record) >= slots
        assert not self.record.retained

    @precondition(lambda self: self.record.phase is LedgerPhase.SETTLED and not all(s.held for s in self.record.layers))
    @rule(data=st.data())
    def make_room(self, data: st.DataObject) -> None:
        others = [layer for layer, state in enumerate(self.record.layers) if not state.held]
        more = data.draw(st.lists(st.sampled_from(others), min_size=1, unique=True))
        try:
            room = with_room(self.plan, self.record, sorted([*self.record.held, *more]))
        except LayoutError:
            assert self.record.retained, "without KV retained elsewhere they fit, for all did"
            return
        self.before = self.record
        self.step(room)

    @precondition(lambda self: self.record.phase is LedgerPhase.LOADING)
    @rule(data=st.data())
    def load_some(self, data: st.DataObject) -> None:
        self.step(self.record.with_layer(data.draw(st.sampled_from(self.record.coming)), loaded=True))

    @precondition(lambda self: self.record.phase is LedgerPhase.LOADING)
    @rule()
    def hold(self) -> None:
        coming, slots = self.record.coming, slot_capacity(self.plan, self.record)
        self.step(with_layers(loaded(self.record), self.record.layout + 1))
        assert self.record.held == coming
        assert slot_capacity(self.plan, self.record) == slots, "PREPARE has said it"

    @rule(crashed=st.booleans())
    def end(self, crashed: bool) -> None:
        held, layout, phase, slots = self.record.held, self.record.layout, self.record.phase, self.capacity()
        self.step((recovered if crashed else aborted)(self.plan, self.record))
        assert (self.record.held, self.record.layout) == (held, layout)
        if not crashed:
            assert self.record.phase is LedgerPhase.SETTLED
        if phase is LedgerPhase.LOADING:
            assert self.before is not None
            assert self.record.retained == self.before.retained
            assert self.capacity() >= slot_capacity(self.plan, self.before)
        else:
            assert self.capacity() == slots

    def capacity(self) -> int:
        return slot_capacity(self.plan, self.record)

    @invariant()
    def nothing_is_lost_or_used_twice(self) -> None:
        plan, record = self.plan, self.record
        check_record(record, plan.granules)
        back = decode_record(encode_record(record, plan.granules), len(plan.weights), plan.granules)
        assert encode_record(back, plan.granules) == encode_record(record, plan.granules)
        owned = np.concatenate(list(record.ranges.values()))
        assert len(set(owned.tolist())) == len(owned)
        present = set(record.held) | set(record.coming)
        assert 0 <= free(plan, record) < len(present), "what cannot be shared out is less than one for each layer"
        for layer in range(len(plan.weights)):
            assert len(record.granules(weights_of(layer))) == (plan.weights[layer] if layer in present else 0)
        assert len({len(kv(record, layer)) for layer in present}) == 1


Changes.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestChanges = Changes.TestCase
