"""The allocator of the host tier: tiling, alignment, generations; and a machine that compares it with a plain model."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, invariant, multiple, rule

from services.kvstore.regions.allocator import AllocatorError, HostRange, RangeAllocator

UNIT = 64


def make_room(units: int = 8, *, alignment_bytes: int = UNIT, max_ranges: int = 100) -> RangeAllocator:
    return RangeAllocator(units * alignment_bytes, alignment_bytes, max_ranges)


def take(room: RangeAllocator, length_bytes: int) -> HostRange:
    taken = room.allocate(length_bytes)
    assert taken is not None
    return taken


def test_a_range_is_aligned_and_padded() -> None:
    room = make_room()
    first, second = take(room, 1), take(room, UNIT + 1)
    assert (first.offset_bytes, first.length_bytes, first.padded_bytes) == (0, 1, UNIT)
    assert (second.offset_bytes, second.padded_bytes) == (UNIT, 2 * UNIT)
    assert room.free_bytes == 5 * UNIT


def test_a_capacity_that_is_no_multiple_loses_its_tail() -> None:
    room = RangeAllocator(3 * UNIT + 5, UNIT, 10)
    assert room.capacity_bytes == 3 * UNIT
    take(room, 3 * UNIT)
    assert room.allocate(1) is None


def test_the_shortest_range_that_fits_is_used() -> None:
    room = make_room(10)
    parts = [take(room, length * UNIT) for length in (3, 1, 2, 1, 3)]
    for index in (0, 2):
        room.free(parts[index].handle, parts[index].generation)
    assert take(room, 2 * UNIT).offset_bytes == 4 * UNIT
    assert room.largest_free_bytes == 3 * UNIT


@pytest.mark.parametrize(
    ("holes", "wanted", "offset"),
    [((1, 2), 1, 0), ((2, 2), 2, 0), ((2, 1), 1, 3), ((3, 2, 2), 2, 4), ((2, 3, 2), 2, 0)],
)
def test_of_ranges_that_fit_alike_the_first_is_used(holes: tuple[int, ...], wanted: int, offset: int) -> None:
    """Holes of these lengths, one unit apart, and none after them."""
    room = make_room(sum(holes) + len(holes))
    parts = [(take(room, hole * UNIT), take(room, UNIT)) for hole in holes]
    for hole, _ in parts:
        room.free(hole.handle, hole.generation)
    assert take(room, wanted * UNIT).offset_bytes == offset * UNIT


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_free_neighbours_become_one_whatever_the_order(order: tuple[int, ...]) -> None:
    room = make_room(3)
    parts = [take(room, UNIT) for _ in range(3)]
    for index in order:
        assert room.free(parts[index].handle, parts[index].generation)
        room.check_integrity()
    assert room.largest_free_bytes == 3 * UNIT


def test_a_handle_used_again_has_a_new_generation_and_the_old_name_means_nothing() -> None:
    room = make_room()
    old = take(room, UNIT)
    assert room.free(old.handle, old.generation)
    new = take(room, UNIT)
    assert (new.handle, new.generation) == (old.handle, old.generation + 1)
    assert not room.free(old.handle, old.generation)
    assert room.find(old.handle, old.generation) is None
    assert room.find(new.handle, new.generation) == new


def test_freeing_twice_changes_nothing() -> None:
    room = make_room()
    taken = take(room, UNIT)
    assert room.free(taken.handle, taken.generation)
    assert not room.free(taken.handle, taken.generation)
    assert room.free_bytes == 8 * UNIT


def test_the_number_of_ranges_is_bounded() -> None:
    room = make_room(max_ranges=2)
    first = take(room, 1)
    take(room, 1)
    assert room.allocate(1) is None
    room.free(first.handle, first.generation)
    assert room.allocate(1) is not None


@pytest.mark.parametrize("length_bytes", [0, -1])
def test_asking_for_nothing_is_an_error(length_bytes: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        make_room().allocate(length_bytes)


def test_the_check_sees_a_lost_range_and_wrong_counts() -> None:
    room = make_room()
    taken = take(room, UNIT)
    del room._held[taken.handle]
    with pytest.raises(AllocatorError, match="should start at 0"):
        room.check_integrity()
    room = make_room()
    room.free_bytes -= UNIT
    with pytest.raises(AllocatorError, match="counted"):
        room.check_integrity()
    room = make_room()
    room._idle_handles.append(1)
    with pytest.raises(AllocatorError, match="0 handles, 0 held, 1 idle"):
        room.check_integrity()


class RoomMachine(RuleBasedStateMachine):
    """Compares with the plainest model: which unit belongs to which (handle, generation)."""

    held: Bundle[HostRange] = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.room = make_room(24, max_ranges=12)
        self.units: list[tuple[int, int] | None] = [None] * 24
        self.seen: dict[tuple[int, int], None] = {}

    @rule(target=held, length_bytes=st.integers(1, 9 * UNIT))
    def take(self, length_bytes: int) -> HostRange | MultipleResults[HostRange]:
        count = -(-length_bytes // UNIT)
        taken = self.room.allocate(length_bytes)
        if taken is None:
            assert len(self.room) == 12 or self.longest_free() < count
            return multiple()
        first = taken.offset_bytes // UNIT
        name = (taken.handle, taken.generation)
        assert name not in self.seen
        assert self.units[first : first + count] == [None] * count
        self.units[first : first + count] = [name] * count
        self.seen[name] = None
        return taken

    @rule(taken=consumes(held))
    def free(self, taken: HostRange) -> None:
        name = (taken.handle, taken.generation)
        assert self.room.free(*name)
        assert not self.room.free(*name)
        self.units = [None if unit == name else unit for unit in self.units]

    @rule(handle=st.integers(0, 14), generation=st.integers(0, 4))
    def free_by_a_guessed_name(self, handle: int, generation: int) -> None:
        if (handle, generation) not in self.units:
            assert not self.room.free(handle, generation)

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.room.check_integrity()
        assert self.room.free_bytes == self.units.count(None) * UNIT
        assert self.room.largest_free_bytes == self.longest_free() * UNIT

    def longest_free(self) -> int:
        longest = run = 0
        for unit in self.units:
            run = 0 if unit is not None else run + 1
            longest = max(longest, run)
        return longest


TestRoomMachine = RoomMachine.TestCase
TestRoomMachine.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
