"""The slot table: long extents, conservation, generations; and a machine that compares it with a list of slots."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.instance.kv.residency import Extent, SlotUse
from services.instance.kv.slot_table import SlotTable

CAPACITY = 48


def make_table(capacity: int = CAPACITY, **held: int) -> SlotTable:
    """A table in which owner `o<n>` holds so many slots, given in this order."""
    table = SlotTable(capacity)
    for name, count in held.items():
        assert table.allocate(int(name[1:]), count)
    return table


def extents(table: SlotTable, owner: int | str) -> list[Extent]:
    return table.residency(owner).extents


def test_an_empty_slab_is_one_extent() -> None:
    table = make_table(o1=CAPACITY)
    assert extents(table, 1) == [(0, CAPACITY)]
    assert table.free == 0


def test_a_holding_that_can_grow_in_place_stays_one_extent() -> None:
    table = make_table(o1=4)
    assert table.allocate(1, 5)
    assert extents(table, 1) == [(0, 9)]


def test_a_holding_grows_in_place_also_where_a_smaller_extent_would_fit() -> None:
    table = make_table(20, o1=4, o2=2, o3=1)
    table.release(2)
    table.allocate(4, 6)
    table.release(3)
    assert table.allocate(4, 3)
    assert extents(table, 4) == [(7, 9)]


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


@pytest.mark.parametrize(("count", "slots"), [(3, [(0, 3)]), (4, [(14, 4)]), (5, [(14, 5)]), (7, [(6, 6), (0, 1)])])
def test_free_extents_are_chosen_by_length_wherever_they_lie(count: int, slots: list[tuple[int, int]]) -> None:
    table = SlotTable(19)  # free: 3, 6 and 5 slots, in this order
    for owner, length in enumerate((3, 3, 6, 2, 5)):
        table.allocate(owner, length)
    for owner in (0, 2, 4):
        table.release(owner)
    table.allocate(9, count)
    assert table.residency(9).extents == slots


@pytest.mark.parametrize(("count", "slots"), [(2, [(0, 2)]), (4, [(0, 3), (4, 1)])])
def test_of_free_extents_that_are_equally_good_the_first_is_used(count: int, slots: list[Extent]) -> None:
    table = make_table(9, o1=3, o2=1, o3=3, o4=2)
    table.release(1)
    table.release(3)
    assert table.allocate(5, count)
    assert extents(table, 5) == slots


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
    first = table.residency(1).generation
    table.release(1)
    table.allocate(1, 4)
    assert table.residency(1).generation > first


def test_releasing_twice_frees_nothing_more() -> None:
    table = make_table(10, o1=4)
    assert (table.release(1), table.release(1), table.free) == (4, 0, 10)


def test_the_slots_of_positions_are_found_across_extents() -> None:
    table = make_table(20, o1=4, o2=4)
    table.allocate(1, 4)
    holding = table.residency(1)
    assert holding.slots_of(0, 8) == [(0, 4), (8, 4)]
    assert holding.slots_of(3, 6) == [(3, 1), (8, 2)]
    assert holding.slots_of(4, 5) == [(8, 1)]
    assert holding.slots_of(2, 2) == []


@pytest.mark.parametrize("span", [(0, 9), (-1, 2), (8, 9)])
def test_positions_without_slots_are_an_error(span: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="of a residency of \\[\\(0, 8\\)\\]"):
        make_table(o1=8).residency(1).slots_of(*span)


def test_a_slab_without_slots_gives_none() -> None:
    table = SlotTable(0)
    assert not table.allocate(1, 1)
    table.check_integrity()


def test_the_check_sees_a_lost_extent_a_shared_slot_and_a_wrong_count() -> None:
    table = make_table(o1=4)
    del table._residencies[1]
    with pytest.raises(AssertionError, match="held twice or lost"):
        table.check_integrity()
    table = make_table(o1=4, o2=4)
    table.residency(2).extents[0] = (3, 4)
    with pytest.raises(AssertionError, match="held twice or lost"):
        table.check_integrity()
    table = make_table(o1=4)
    table.free -= 1
    with pytest.raises(AssertionError, match="counted free"):
        table.check_integrity()
    table = make_table(o1=4)
    table.residency(1).use = SlotUse.MOVING
    with pytest.raises(AssertionError, match="counted"):
        table.check_integrity()


def test_counts_that_add_up_to_another_capacity_or_below_none_are_not_conserved() -> None:
    table = make_table(o1=4)
    assert table.is_conserved
    table.free -= 1
    assert not table.is_conserved
    table.free, table.withheld = -1, CAPACITY - 3
    assert not table.is_conserved


def test_positions_released_in_the_middle_leave_a_gap_that_can_be_filled_again() -> None:
    table = make_table(20, o1=9)
    assert table.release_span(1, 3, 5) == 2
    assert (table.residency(1).spans, table.free) == ([(0, 3), (5, 9)], 13)
    assert table.allocate(2, 2)
    assert table.allocate(1, 2, at=3)
    assert table.residency(1).slots_of(2, 6) == [(2, 1), (9, 2), (5, 1)]
    table.check_integrity()


def test_positions_that_have_slots_get_no_others() -> None:
    table = make_table(20, o1=4)
    with pytest.raises(ValueError, match="positions 3 to 5 are added"):
        table.allocate(1, 2, at=3)
    assert table.free == 16


def test_an_owner_without_a_last_slot_is_forgotten() -> None:
    table = make_table(20, o1=4)
    assert (table.release_span(1, 0, 9), table.use(1), table.release_span(1, 0, 9)) == (4, None, 0)


def test_slots_of_the_tail_are_given_to_no_owner_and_come_back_free_with_the_old_limit() -> None:
    table = make_table(20, o1=4, o2=12)
    table.withhold_beyond(10)
    assert (table.free, table.withheld) == (0, 4)
    assert not table.allocate(3, 1)
    table.release(2)
    assert (table.free, table.withheld) == (6, 10)
    table.withhold_beyond(20)
    assert (table.free, table.withheld) == (16, 0)


@pytest.mark.parametrize(
    ("slots", "is_any_free"),
    [
        ([(0, 4)], False),
        ([(3, 2)], True),
        ([(5, 1)], True),
        ([(7, 3)], True),
        ([(8, 4)], False),
        ([(0, 1), (5, 1)], True),
    ],
)
def test_whether_any_of_some_slots_is_free(slots: list[Extent], is_any_free: bool) -> None:
    table = make_table(12, o1=4, o2=4, o3=4)
    table.release(2)
    assert table.has_free(slots) is is_any_free


def test_slots_before_a_short_free_extent_are_not_free() -> None:
    table = make_table(12, o1=8, o2=2, o3=2)
    table.release(2)
    assert [table.has_free([slots]) for slots in ((0, 8), (0, 9), (10, 2))] == [False, True, False]


def test_what_lies_beyond_a_limit_is_named_by_owner_and_position() -> None:
    table = make_table(20, o1=4, o2=8)
    table.allocate(1, 4)
    assert table.owners_beyond(10) == {1: [(4, 8)], 2: [(6, 8)]}


def test_a_table_shrinks_behind_what_is_held_and_grows_by_free_slots() -> None:
    table = make_table(20, o1=8)
    table.withhold_beyond(8)
    table.resize(8)
    assert (table.capacity, table.free, table.withheld) == (8, 0, 0)
    table.resize(12)
    assert (table.capacity, table.free, table.withheld) == (12, 4, 0)
    assert table.allocate(2, 4)
    assert extents(table, 2) == [(8, 4)]
    table.check_integrity()


def test_a_table_grows_by_a_single_slot() -> None:
    table = make_table(8, o1=8)
    table.resize(9)
    assert (table.capacity, table.free) == (9, 1)
    assert table.allocate(2, 1)
    assert extents(table, 2) == [(8, 1)]


def test_a_table_does_not_shrink_over_slots_that_are_held() -> None:
    table = make_table(20, o1=4, o2=4)
    with pytest.raises(ValueError, match="1 owners have slots beyond 6 of 20"):
        table.resize(6)


class SlotMachine(RuleBasedStateMachine):
    """The model: whose each slot is, where each owner's positions lie, and what its slots are used for."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(CAPACITY)
        self.slots: list[int | None] = [None] * CAPACITY
        self.limit = CAPACITY
        self.places: dict[int, dict[int, int]] = {}
        self.uses: dict[int, SlotUse] = {}
        self.generations: list[int] = []

    @rule(
        owner=st.integers(1, 6),
        count=st.integers(1, 20),
        use=st.sampled_from(SlotUse),
        at=st.none() | st.integers(0, 30),
    )
    def grow(self, owner: int, count: int, use: SlotUse, at: int | None) -> None:
        before = dict(self.places.get(owner, {}))
        start = at if at is not None else max(before, default=-1) + 1
        added = range(start, start + count)
        free, longest = self.slots[: self.limit].count(None), self.longest_free()
        if count <= free and before.keys() & set(added):
            with pytest.raises(ValueError, match="are added"):
                self.table.allocate(owner, count, use, at)
            return
        assert self.table.allocate(owner, count, use, at) == (count <= free)
        if count > free:
            return
        residency = self.table.residency(owner)
        now = self.map_of(owner)
        assert now.keys() == before.keys() | set(added)
        assert before.items() <= now.items(), "what an owner has stays where it is"
        assert all(self.slots[now[position]] is None and now[position] < self.limit for position in added)
        if not before:
            assert len(residency.extents) == 1 or longest < count, "one extent would have been enough"
            assert residency.generation not in self.generations
            self.generations.append(residency.generation)
            self.uses[owner] = use
        self.take(owner, now)

    @precondition(lambda self: self.places)
    @rule(data=st.data(), use=st.sampled_from(SlotUse))
    def mark(self, data: st.DataObject, use: SlotUse) -> None:
        owner = data.draw(st.sampled_from(sorted(self.places)))
        self.table.set_use(owner, use)
        self.uses[owner] = use

    @rule(owner=st.integers(1, 6))
    def release(self, owner: int) -> None:
        assert self.table.release(owner) == len(self.places.get(owner, {}))
        self.take(owner, {})

    @rule(owner=st.integers(1, 6), start=st.integers(0, 40), length=st.integers(0, 20))
    def release_span(self, owner: int, start: int, length: int) -> None:
        left = {at: slot for at, slot in self.places.get(owner, {}).items() if not start <= at < start + length}
        assert self.table.release_span(owner, start, start + length) == len(self.places.get(owner, {})) - len(left)
        self.take(owner, left)

    @rule(limit=st.integers(0, CAPACITY))
    def withhold(self, limit: int) -> None:
        self.table.withhold_beyond(limit)
        self.limit = limit

    @rule(capacity=st.integers(1, CAPACITY + 8))
    def resize(self, capacity: int) -> None:
        if any(slot >= capacity for places in self.places.values() for slot in places.values()):
            with pytest.raises(ValueError, match="have slots beyond"):
                self.table.resize(capacity)
            return
        self.table.resize(capacity)
        self.slots = [*self.slots[:capacity], *[None] * (capacity - len(self.slots))]
        self.limit = capacity

    @precondition(lambda self: self.places)
    @rule(data=st.data())
    def look_up(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from(sorted(self.places)))
        mine = self.places[owner]
        start = data.draw(st.integers(0, 40))
        stop = data.draw(st.integers(start, 44))
        wanted = [mine.get(at) for at in range(start, stop)]
        if None in wanted:
            with pytest.raises(ValueError, match="of a residency of"):
                self.table.residency(owner).slots_of(start, stop)
            return
        found = self.table.residency(owner).slots_of(start, stop)
        assert [slot for first, length in found for slot in range(first, first + length)] == wanted

    @invariant()
    def conserves(self) -> None:
        self.table.check_integrity()
        assert self.table.is_conserved
        assert self.table.free == self.slots[: self.limit].count(None)
        assert self.table.withheld == self.slots[self.limit :].count(None)
        for use in SlotUse:
            held = [len(places) for owner, places in self.places.items() if self.uses[owner] is use]
            assert self.table.count(use) == sum(held)
        beyond = {
            owner: sorted(at for at, slot in places.items() if slot >= 20) for owner, places in self.places.items()
        }
        named = {
            owner: [at for span in spans for at in range(*span)]
            for owner, spans in self.table.owners_beyond(20).items()
        }
        assert named == {owner: positions for owner, positions in beyond.items() if positions}

    def map_of(self, owner: int) -> dict[int, int]:
        residency = self.table.residency(owner)
        return {
            start + i: first + i
            for start, (first, length) in zip(residency.starts, residency.extents, strict=True)
            for i in range(length)
        }

    def take(self, owner: int, places: dict[int, int]) -> None:
        self.slots = [None if slot == owner else slot for slot in self.slots]
        for slot in places.values():
            self.slots[slot] = owner
        if places:
            self.places[owner] = places
        else:
            self.places.pop(owner, None)
            self.uses.pop(owner, None)

    def longest_free(self) -> int:
        longest = run = 0
        for slot in self.slots[: self.limit]:
            run = run + 1 if slot is None else 0
            longest = max(longest, run)
        return longest


TestSlotMachine = SlotMachine.TestCase
TestSlotMachine.settings = settings(max_examples=60, stateful_step_count=40)


def test_slots_for_positions_that_have_some_are_refused_and_nothing_is_taken() -> None:
    table = SlotTable(8)
    assert table.allocate("b", 2)
    assert table.allocate("a", 2, at=2)
    assert table.allocate("c", 2)
    table.release("b")  # so that the first two positions get an extent of their own
    with pytest.raises(ValueError, match="are added"):
        table.allocate("a", 4, at=0)
    assert (table.free, table.held("a"), table.residency("a").spans) == (4, 2, [(2, 4)])
    table.check_integrity()
