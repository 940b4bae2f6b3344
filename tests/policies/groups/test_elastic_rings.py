"""Plans of rings: every token is computed once, stays once, and is answered for, within the members' slots."""

from hypothesis import given
from hypothesis import strategies as st

from dunlin.policies.groups.elastic import Block, Demand, MemberRoom
from dunlin.policies.groups.elastic_rings import RingChunk, RingPlan, merged, plan_ring


def members(slots: list[int]) -> list[MemberRoom]:
    return [MemberRoom(number, room) for number, room in enumerate(slots)]


ROOMS = st.lists(st.integers(20, 500), min_size=2, max_size=6)


@given(st.integers(0, 50), st.integers(1, 400), st.integers(0, 40), ROOMS, st.integers(2, 200), st.integers(1, 200))
def test_a_ring_has_room_for_stripes_copies_and_what_stays(
    start: int, tokens: int, ahead: int, rooms: list[int], most: int, now: int
) -> None:
    """Whatever a member may compute `now`, in each step."""
    ring = plan_ring(start, Demand(tokens, ahead, most), members(rooms), most)
    if ring is None:
        return
    assert (ring.start, ring.stop) == (start, start + tokens)
    keepers = {block.member for block in ring.kept}
    assert keepers < set(ring.members)
    held: dict[int, set[int]] = {member: set() for member in ring.members}
    at = start
    while (chunk := ring.chunk(at, now)) is not None:
        assert chunk.start == at
        at = chunk.stop
        check_chunk(ring, chunk)
        for member in ring.members:
            free = rooms[member] - len(held[member]) - len(chunk.stripe(member))
            held[member] |= {p for block in chunk.held(member) for p in range(block.start, block.stop)}
            assert free >= 0
            assert len(held[member]) + len(chunk.stripe(member)) <= ring.slots[member] <= rooms[member]
    assert at == ring.stop
    last = ring.kept[-1].member
    assert rooms[last] - len(held[last]) >= ahead if len(keepers) == 1 else True
    for block in ring.kept:
        assert held[block.member] >= set(range(block.start, block.stop))


def check_chunk(ring: RingPlan, chunk: RingChunk) -> None:
    stripes = [chunk.stripe(member) for member in chunk.stripes]
    assert sorted(position for each in stripes for position in each) == list(range(chunk.start, chunk.stop))
    assert max(map(len, stripes)) <= ring.most
    assert all(stripes)
    assert chunk.stop - 1 in chunk.stripe(chunk.kept[-1].member)
    for blocks in (chunk.kept, chunk.copies) if chunk.stop < ring.stop else (chunk.kept,):
        assert [block.start for block in blocks] == [chunk.start, *[block.stop for block in blocks[:-1]]]
        assert blocks[-1].stop == chunk.stop
    keepers = {block.member for block in ring.kept}
    for copy in chunk.copies:  # a keeper answers for its own alone
        own = [block for block in chunk.kept if block.member == copy.member]
        assert any(block.start <= copy.start < copy.stop <= block.stop for block in own) is (copy.member in keepers)


def test_the_chunks_of_a_prompt_stay_at_one_member_and_all_answer_for_them() -> None:
    ring = plan_ring(0, Demand(60, 5, 10), members([90, 40, 40]), 10)
    assert ring is not None
    assert ring.members == (0, 1, 2)
    assert ring.kept == (Block(0, 0, 60),)
    assert ring.slots == {0: 60 + 10, 1: 10 + 20, 2: 10 + 20}
    first, second = ring.chunk(0), ring.chunk(30)
    assert first == RingChunk((1, 2, 0), (Block(0, 0, 30),), (Block(0, 0, 10), Block(1, 10, 20), Block(2, 20, 30)))
    assert second == RingChunk((1, 2, 0), (Block(0, 30, 60),))
    assert ring.chunk(0, 5) == first
    assert ring.chunk(60) is None


def test_keepers_take_turns_and_all_members_answer_for_as_much() -> None:
    """Before each chunk of 40 but the first, everything lies evenly at all four."""
    ring = plan_ring(0, Demand(240, 0, 10), members([140, 135, 100, 100]), 10)
    assert ring is not None
    assert [(block.member, block.start) for block in ring.kept] == [
        (1, 0),
        (0, 40),
        (1, 80),
        (0, 120),
        (1, 160),
        (0, 200),
    ]
    answers = dict.fromkeys(ring.members, 0)
    for start in range(0, 160, 40):
        chunk = ring.chunk(start)
        assert chunk is not None
        for copy in chunk.copies:
            answers[copy.member] += copy.stop - copy.start
    assert answers == {0: 40, 1: 40, 2: 40, 3: 40}


def test_a_ring_is_over_as_many_members_as_compute_enough_and_have_room() -> None:
    rooms = members([90, 50, 50, 50])
    for tokens, expected in ((20, None), (21, {0, 1}), (41, {0, 1, 2}), (61, {0, 1, 2, 3})):
        ring = plan_ring(0, Demand(tokens, 5, 20), rooms, 20)
        assert (None if ring is None else set(ring.members)) == expected
    few = plan_ring(0, Demand(61, 5, 20), members([90, 60, 12, 12]), 20)
    assert few is not None
    assert set(few.members) == {0, 1}


def test_what_goes_round_in_one_step_needs_a_stripe_at_each_and_slots_where_it_stays_but_none_for_copies() -> None:
    ring = plan_ring(0, Demand(30, 0, 10), members([40, 10, 10]), 10)
    assert ring is not None
    assert ring.slots == {0: 30 + 10, 1: 10, 2: 10}
    assert plan_ring(0, Demand(30, 0, 10), members([39, 10, 10]), 10) is None


def test_a_keeper_with_room_for_less_than_its_even_part_beside_its_stripe_keeps_that() -> None:
    ring = plan_ring(0, Demand(30, 0, 10), members([35, 18, 10]), 10)
    assert ring is not None
    assert ring.kept == (Block(1, 0, 8), Block(0, 8, 30))
    assert ring.slots == {0: 22 + 10, 1: 8 + 10, 2: 10}


def test_where_all_must_keep_it_or_copies_have_no_room_nothing_goes_round() -> None:
    assert plan_ring(0, Demand(60, 5, 20), members([40, 40, 40]), 20) is None
    assert plan_ring(0, Demand(60, 5, 20), members([80, 20, 20]), 20) is None
    assert plan_ring(0, Demand(60, 5, 1), members([200, 200]), 1) is None


def test_blocks_of_a_member_that_touch_are_one() -> None:
    blocks = [Block(1, 8, 9), Block(1, 0, 4), Block(1, 2, 3), Block(1, 4, 6)]
    assert merged(iter(blocks)) == [Block(1, 0, 6), Block(1, 8, 9)]
