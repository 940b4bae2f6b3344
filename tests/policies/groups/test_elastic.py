"""Spreading prompts over the members of an elastic group: every token once, no member over its room, even."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.policies.groups.elastic import (
    PLACEMENT_POLICIES,
    Block,
    Demand,
    MemberRoom,
    choose_master,
    crowded_masters,
    cut_chunk,
    even_shares,
    missing_slots,
    place_runs,
)

ROOMS = st.lists(st.integers(0, 200), min_size=1, max_size=6)


def members(rooms: list[int], rows: list[int] | None = None) -> list[MemberRoom]:
    return [MemberRoom(index, room, (rows or [0] * len(rooms))[index]) for index, room in enumerate(rooms)]


@given(st.integers(0, 600), ROOMS)
def test_shares_fill_no_room_over_and_differ_by_one_where_there_is_room(tokens: int, rooms: list[int]) -> None:
    shares = even_shares(tokens, rooms)
    assert sum(shares) == min(tokens, sum(rooms))
    assert all(0 <= share <= room for share, room in zip(shares, rooms, strict=True))
    with_room = [share for share, room in zip(shares, rooms, strict=True) if share < room]
    assert all(share >= max(shares) - 1 for share in with_room)


@pytest.mark.parametrize("name", PLACEMENT_POLICIES)
@given(st.integers(1, 500), st.integers(0, 20), st.integers(1, 100), ROOMS)
def test_a_placement_holds_all_or_there_is_no_room(
    name: str, tokens: int, ahead: int, least_share: int, rooms: list[int]
) -> None:
    shares = PLACEMENT_POLICIES[name](Demand(tokens, ahead, least_share), members(rooms))
    if shares is None:
        assert sum(rooms) < tokens + ahead
        return
    assert sum(shares.values()) == tokens + ahead
    assert all(0 < share <= rooms[member] for member, share in shares.items())


@given(st.integers(1, 500), ROOMS)
def test_the_fewest_members_are_as_few_as_can_be(tokens: int, rooms: list[int]) -> None:
    shares = PLACEMENT_POLICIES["fewest"](Demand(tokens, 0, 1), members(rooms))
    if shares is not None:
        assert sum(sorted(rooms, reverse=True)[: len(shares) - 1]) < tokens


def test_balanced_takes_a_member_for_each_least_share() -> None:
    rooms = members([100, 100, 100, 100])
    balanced = PLACEMENT_POLICIES["balanced"]
    assert balanced(Demand(60, 0, 20), rooms) == {0: 20, 1: 20, 2: 20}
    assert balanced(Demand(60, 0, 100), rooms) == {0: 60}
    assert balanced(Demand(240, 0, 200), rooms) == {0: 80, 1: 80, 2: 80}
    assert PLACEMENT_POLICIES["widest"](Demand(60, 0, 100), rooms) == {0: 15, 1: 15, 2: 15, 3: 15}


@given(st.integers(0, 50), st.integers(1, 400), ROOMS, st.lists(st.integers(0, 3), min_size=6))
def test_blocks_follow_each_other_within_the_room(start: int, tokens: int, rooms: list[int], rows: list[int]) -> None:
    blocks = cut_chunk(start, start + tokens, members(rooms, rows))
    assert [block.start for block in blocks] == [start, *[block.stop for block in blocks[:-1]]][: len(blocks)]
    assert len({block.member for block in blocks}) == len(blocks)
    sizes = [block.stop - block.start for block in blocks]
    assert all(0 < size <= rooms[block.member] for size, block in zip(sizes, blocks, strict=True))
    assert sum(sizes) == min(tokens, sum(rooms))
    if blocks:
        assert rows[blocks[-1].member] == min(rows[block.member] for block in blocks)


def test_a_member_without_tokens_has_no_run() -> None:
    assert place_runs([1, 2, 3], [4, 0, 2], 10) == [Block(1, 10, 14), Block(3, 14, 16)]


def test_a_prompt_ends_where_the_fewest_rows_are() -> None:
    assert cut_chunk(8, 14, members([9, 9, 9], [0, 2, 1])) == [Block(1, 8, 10), Block(2, 10, 12), Block(0, 12, 14)]


def test_a_master_has_room_and_the_fewest_rows() -> None:
    assert choose_master(members([0, 5, 9], [0, 1, 1])) == 2
    assert choose_master(members([1, 5, 9], [0, 1, 1])) == 0
    assert choose_master(members([0, 0])) is None


def test_what_is_missing_is_counted_over_all() -> None:
    assert missing_slots([Demand(50, 5, 1), Demand(20, 5, 1)], members([30, 30])) == 20
    assert missing_slots([Demand(50, 5, 1)], members([30, 30])) == 0


def test_a_master_is_crowded_beyond_its_rows_and_with_two_more_than_another() -> None:
    assert crowded_masters({0: 5, 1: 3}, [0, 1, 2], 2) == {0, 1}
    assert crowded_masters({0: 5, 1: 4}, [0, 1], 2) == set(), "one row less there is one more here"
    assert crowded_masters({0: 5}, [0, 1], 5) == set()
    assert crowded_masters({}, [0, 1], 1) == set()
