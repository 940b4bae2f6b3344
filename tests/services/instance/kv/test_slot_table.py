"""The slot table: long extents, conservation, generations; and a machine that compares it with a list of slots."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.instance.kv.slot_table import Extent, SlotTable, SlotUse

CAPACITY = 48


def make_table(capacity: int = CAPACITY, **held: int) -> SlotTable:
    """A table in which owner `o<n>` holds so many slots, given in this order."""
    table = SlotTable(capacity)
    for name, count in held.items():
        assert table.allocate(int(name[1:]), count)
    return table


def extents(table: SlotTable, owner: int) -> list[Extent]:
    return table.holding(owner).extents


def test_an_empty_slab_is_one_extent() -> None:
    table = make_table(o1=CAPACITY)
    assert extents(table, 1) == [(0, CAPACITY)]
    assert table.free == 0


def test_a_holding_that_can_grow_in_place_stays_one_extent() -> None:
    table = make_table(o1=4)
    assert table.allocate(1, 5)
    assert extents(table, 1) == [(0, 9)]


def test_a_holding_with_a_neighbour_gets_a_second_extent_after_it() -> None:
    table = make_table(o1=4, o2=4)
    assert table.allocate(1, 2)
    assert extents(table, 1) == [(0, 4), (8, 2)]


def test_the_smallest_free_extent_that_fits_is_used() -> None:
    table = make_table(20, o1=5, o2=1, o3=3, o4=1, o5=10)
    table.release(1)
    table.release(3)
    assert table.allocate(6, 3)
    assert extents(table, 6) == [(6, 3)]


def test_where_none_fits_the_longest_come_first() -> None:
    table = make_table(20, o1=2, o2=1, o3=5, o4=1, o5=3, o6=8)
    for owner in (1, 3, 5):
        table.release(owner)
    assert table.allocate(7, 9)
    assert extents(table, 7) == [(3, 5), (9, 3), (0, 1)]


@pytest.mark.parametrize("order", [(1, 2, 3), (1, 3, 2), (2, 1, 3), (2, 3, 1), (3, 1, 2), (3, 2, 1)])
def test_released_neighbours_become_one_extent_in_any_order(order: tuple[int, ...]) -> None:
    table = make_table(9, o1=3, o2=3, o3=3)
    for owner in order:
        assert table.release(owner) == 3
        table.check_integrity()
    assert table.allocate(4, 9)
    assert extents(table, 4) == [(0, 9)]


def test_more_than_is_free_is_not_given_in_part() -> None:
    table = make_table(10, o1=7)
    assert not table.allocate(2, 4)
    assert (table.free, table.held(2)) == (3, 0)
    assert table.allocate(2, 3)


@pytest.mark.parametrize("count", [0, -1])
def test_asking_for_nothing_is_an_error(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} slots"):
        make_table().allocate(1, count)


def test_a_use_moves_a_holding_from_one_count_to_another() -> None:
    table = make_table(10, o1=4, o2=3)
    table.set_use(1, SlotUse.MOVING)
    assert (table.count(SlotUse.OWNED), table.count(SlotUse.MOVING), table.free) == (3, 4, 3)
    assert table.allocate(1, 2)
    assert (table.count(SlotUse.MOVING), table.free) == (6, 1)
    table.release(1)
    assert (table.count(SlotUse.MOVING), table.free) == (0, 7)


def test_slots_can_be_set_aside_from_the_start() -> None:
    table = make_table(10)
    table.allocate(1, 4, SlotUse.RESERVED)
    assert (table.count(SlotUse.RESERVED), table.count(SlotUse.OWNED)) == (4, 0)


def test_an_owner_that_comes_again_has_a_new_generation() -> None:
    table = make_table(o1=4)
    first = table.holding(1).generation
    table.release(1)
    table.allocate(1, 4)
    assert table.holding(1).generation > first


def test_releasing_twice_frees_nothing_more() -> None:
    table = make_table(10, o1=4)
    assert (table.release(1), table.release(1), table.free) == (4, 0, 10)


def test_the_slots_of_positions_are_found_across_extents() -> None:
    table = make_table(20, o1=4, o2=4)
    table.allocate(1, 4)
    holding = table.holding(1)
    assert holding.slots_of(0, 8) == [(0, 4), (8, 4)]
    assert holding.slots_of(3, 6) == [(3, 1), (8, 2)]
    assert holding.slots_of(4, 5) == [(8, 1)]
    assert holding.slots_of(2, 2) == []


@pytest.mark.parametrize("span", [(0, 9), (-1, 2), (5, 4)])
def test_positions_without_slots_are_an_error(span: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="of a holding of 8 slots"):
        make_table(o1=8).holding(1).slots_of(*span)


def test_a_slab_without_slots_gives_none() -> None:
    table = SlotTable(0)
    assert not table.allocate(1, 1)
    table.check_integrity()


def test_the_check_sees_a_lost_extent_a_shared_slot_and_a_wrong_count() -> None:
    table = make_table(o1=4)
    del table._holdings[1]
    with pytest.raises(AssertionError, match="held twice or lost"):
        table.check_integrity()
    table = make_table(o1=4, o2=4)
    table.holding(2).extents[0] = (3, 4)
    with pytest.raises(AssertionError, match="held twice or lost"):
        table.check_integrity()
    table = make_table(o1=4)
    table.free -= 1
    with pytest.raises(AssertionError, match="counted free"):
        table.check_integrity()
    table = make_table(o1=4)
    table.holding(1).use = SlotUse.MOVING
    with pytest.raises(AssertionError, match="counted"):
        table.check_integrity()


class SlotMachine(RuleBasedStateMachine):
    """The model: whose each slot is, and what each owner's slots are used for."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(CAPACITY)
        self.slots: list[int | None] = [None] * CAPACITY
        self.order: dict[int, list[int]] = {}
        self.uses: dict[int, SlotUse] = {}
        self.generations: list[int] = []

    @rule(owner=st.integers(1, 6), count=st.integers(1, 20), use=st.sampled_from(SlotUse))
    def grow(self, owner: int, count: int, use: SlotUse) -> None:
        free = self.slots.count(None)
        longest = self.longest_free()
        is_new = owner not in self.order
        before = [] if is_new else list(self.order[owner])
        assert self.table.allocate(owner, count, use) == (count <= free)
        if count > free:
            return
        holding = self.table.holding(owner)
        now = [slot for first, length in holding.extents for slot in range(first, first + length)]
        assert now[: len(before)] == before, "what a sequence has stays where it is"
        added = now[len(before) :]
        assert len(added) == count
        assert all(self.slots[slot] is None for slot in added)
        if is_new:
            assert len(holding.extents) == 1 or longest < count, "one extent would have been enough"
            assert holding.generation not in self.generations
            self.generations.append(holding.generation)
            self.uses[owner] = use
        for slot in added:
            self.slots[slot] = owner
        self.order[owner] = now

    @precondition(lambda self: self.order)
    @rule(data=st.data(), use=st.sampled_from(SlotUse))
    def mark(self, data: st.DataObject, use: SlotUse) -> None:
        owner = data.draw(st.sampled_from(sorted(self.order)))
        self.table.set_use(owner, use)
        self.uses[owner] = use

    @rule(owner=st.integers(1, 6))
    def release(self, owner: int) -> None:
        assert self.table.release(owner) == len(self.order.pop(owner, []))
        self.uses.pop(owner, None)
        self.slots = [None if slot == owner else slot for slot in self.slots]

    @precondition(lambda self: self.order)
    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.order)))
        mine = self.order[owner]
        start = data.draw(st.integers(0, len(mine)))
        stop = data.draw(st.integers(start, len(mine)))
        spans = self.table.holding(owner).slots_of(start, stop)
        assert [slot for first, length in spans for slot in range(first, first + length)] == mine[start:stop]

    @invariant()
    def conserves(self) -> None:
        self.table.check_integrity()
        assert self.table.free == self.slots.count(None)
        for use in SlotUse:
            held = [len(slots) for owner, slots in self.order.items() if self.uses[owner] is use]
            assert self.table.count(use) == sum(held)
        assert self.table.free + sum(self.table.count(use) for use in SlotUse) == self.table.capacity

    def longest_free(self) -> int:
        longest = run = 0
        for slot in self.slots:
            run = run + 1 if slot is None else 0
            longest = max(longest, run)
        return longest


TestSlotMachine = SlotMachine.TestCase
TestSlotMachine.settings = settings(max_examples=60, stateful_step_count=40)
