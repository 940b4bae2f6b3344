"""Which work moves: thresholds, hysteresis, room for large prompts; decisions with their reasons."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.policies.rebalance import (
    BUSY_LOAD,
    START_GAP,
    MovableSequence,
    RebalanceCandidate,
    cheapest_first,
    least_loaded,
    llumnix,
    none,
    restless,
)


def one(name: str = "i", used: int = 0, **fields: Any) -> RebalanceCandidate:
    values = {"capacity_slots": 100, "free_slots": 100 - used, "running": int(used > 0)}
    return RebalanceCandidate(name, **(values | fields))


def test_none_moves_nothing() -> None:
    assert none([one("a", 100), one("b")], 4) == []


def test_load_counts_what_waits() -> None:
    assert one(used=50, demand_slots=30).load == pytest.approx(0.8)


def test_the_most_loaded_gives_half_the_difference_to_the_least_loaded() -> None:
    (move,) = llumnix([one("a", 40), one("b", 90), one("c", 10)], 1)
    assert (move.source, move.target, move.slots) == (1, 2, 40)
    assert [rejected.option for rejected in move.why.rejected] == ["a"]


def test_how_far_apart_loads_must_be_can_be_said() -> None:
    fleet = [one("a", 60), one("b", 80)]
    assert llumnix(fleet, 1) == []
    assert [(move.source, move.target, move.slots) for move in llumnix(fleet, 1, 0.15)] == [(1, 0, 10)]


def test_a_sequence_that_would_turn_the_difference_round_may_not_move() -> None:
    (move,) = llumnix([one("a", 80), one("b")], 1)
    assert (move.slots, move.most_slots) == (40, 52), "80 would come back, and 53 leave 27 and 53"
    (move,) = llumnix([one("a", 79), one("b", 69)], 1, 0.1)
    assert (move.slots, move.most_slots) == (5, 9), "10 would leave as much between them, the other way round"
    (move,) = llumnix([one("a", 100, head_slots=10), one("b")], 1)
    assert (move.slots, move.most_slots) == (10, 0), "a prompt that waits needs the room"


@given(
    st.tuples(st.integers(1, 400), st.integers(1, 400)),
    st.tuples(st.floats(0, 1), st.floats(0, 1)),
    st.floats(0.01, 1.0),
    st.floats(0, 1),
)
def test_what_moved_has_no_reason_to_move_back(
    sizes: tuple[int, int], loads: tuple[float, float], gap: float, share: float
) -> None:
    used = [int(load * size) for load, size in zip(loads, sizes, strict=True)]

    def fleet() -> list[RebalanceCandidate]:
        return [
            RebalanceCandidate("i", size, size - held, running=held) for size, held in zip(sizes, used, strict=True)
        ]

    for move in llumnix(fleet(), 1, gap):
        moved = move.slots + int(share * (move.most_slots - move.slots))
        used[move.source] -= moved
        used[move.target] += moved
        assert [again.source for again in llumnix(fleet(), 1, gap) if again.source == move.target] == []


def test_pairs_are_disjoint_and_bounded() -> None:
    fleet = [one("a", 100), one("b", 95), one("c", 0), one("d", 5)]
    assert [(move.source, move.target) for move in llumnix(fleet, 4)] == [(0, 2), (1, 3)]
    assert len(llumnix(fleet, 1)) == 1
    assert llumnix(fleet, 0) == []


def test_loads_may_be_just_as_far_apart_as_is_said_and_one_slot_is_room() -> None:
    assert [move.slots for move in llumnix([one("a", 75), one("b", 50)], 1, 0.25)] == [12]
    full = one("a", 100, demand_slots=50)
    assert [move.slots for move in llumnix([full, one("b", capacity_slots=4, free_slots=1)], 1)] == [1]


def test_a_candidate_of_which_nothing_is_said_runs_nothing() -> None:
    assert llumnix([RebalanceCandidate("a", 100, 0), RebalanceCandidate("b", 100, 100)], 1) == []


@pytest.mark.parametrize(
    "fleet",
    [
        pytest.param([one("a", 60), one("b", 40)], id="too close"),
        pytest.param([one("a", 100), one("b", 0, free_slots=0)], id="the target has no room"),
        pytest.param([one("a", 100), one("b", 0, demand_slots=1)], id="something waits at the target"),
        pytest.param([one("a", 40), one("b", 0)], id="not busy"),
        pytest.param([one("a", 100, may_give=False), one("b", 0)], id="may not give"),
        pytest.param([one("a", 100, running=0, free_slots=0), one("b", 0)], id="nothing runs"),
        pytest.param([one("a", 100), one("b", 0, may_receive=False)], id="may not take"),
        pytest.param([one("a", 100, demand_slots=300), one("b", 50, demand_slots=60)], id="the target has a queue"),
        pytest.param([one("a", 100)], id="alone"),
    ],
)
def test_nothing_moves(fleet: list[RebalanceCandidate]) -> None:
    assert llumnix(fleet, 4) == []


@given(st.lists(st.integers(0, 100), min_size=2, max_size=6))
def test_what_moved_does_not_move_back(used: list[int]) -> None:
    fleet = [one(f"i{index}", slots) for index, slots in enumerate(used)]
    for _ in range(20):
        moves = llumnix(fleet, 8)
        if not moves:
            break
        for move in moves:
            source, target = fleet[move.source], fleet[move.target]
            assert source.load - target.load >= START_GAP
            assert source.load >= BUSY_LOAD
            assert 0 < move.slots <= target.free_slots
            fleet[move.source] = one(source.name, 100 - source.free_slots - move.slots)
            fleet[move.target] = one(target.name, 100 - target.free_slots + move.slots)
            assert fleet[move.source].load >= fleet[move.target].load - 0.01, "it would want it back"
    else:
        raise AssertionError("it never settles")


def test_room_is_made_where_the_least_is_missing() -> None:
    fleet = [
        one("a", 70, head_slots=60, demand_slots=60),
        one("b", 65, head_slots=60, demand_slots=60),
        one("c", 60),
    ]
    move = llumnix(fleet, 1)[0]
    assert (move.source, move.target, move.slots) == (1, 2, 25)
    assert move.why.chosen == "make room at b"


def test_no_room_is_made_where_no_instance_can_take_it() -> None:
    fleet = [one("a", 70, head_slots=60, demand_slots=60), one("b", 80)]
    assert [move.why.chosen for move in llumnix(fleet, 1)] == ["from a to b"]


def test_a_drain_goes_to_the_least_loaded_taker_as_far_as_there_is_room() -> None:
    fleet = [one("a", 90), one("b", 50), one("c", 30), one("d", 0, may_receive=False)]
    move = least_loaded(fleet, 0, 90, "operator")
    assert move is not None
    assert (move.source, move.target, move.slots) == (0, 2, 70)
    assert least_loaded(fleet[:1], 0, 90, "operator") is None


def test_the_cheapest_leave_first_and_the_youngest_of_equals() -> None:
    assert cheapest_first([MovableSequence(30, 1), MovableSequence(10, 2), MovableSequence(10, 3)]) == [2, 1, 0]


class Watched(list[RebalanceCandidate]):
    """Counts how often one of it is looked up."""

    looked_up = 0

    def __getitem__(self, index: Any) -> Any:
        self.looked_up += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("free", [0, 50])
def test_a_fleet_in_need_is_looked_through_a_few_times_not_for_each_of_it(free: int) -> None:
    """Everybody wants room that nobody has: the time must not grow with the square of the fleet."""
    fleet = Watched(one(f"i{n}", used=100, free_slots=free, demand_slots=60, head_slots=60) for n in range(500))
    llumnix(fleet, 4)
    assert fleet.looked_up < 20 * len(fleet)


needs = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 120), st.booleans(), st.booleans(), st.integers(0, 1)), max_size=8
)


@given(needs)
def test_room_is_made_as_if_every_pair_was_compared(needs: list[tuple[int, int, bool, bool, int]]) -> None:
    fleet = [
        one(
            f"i{n}",
            used=100 - free,
            running=running,
            demand_slots=head,
            head_slots=head,
            may_give=movable,
            may_receive=takes,
        )
        for n, (free, head, movable, takes, running) in enumerate(needs)
    ]
    pairs = [
        (giver.head_slots - giver.free_slots, source, taker.load, target)
        for source, giver in enumerate(fleet)
        for target, taker in enumerate(fleet)
        if source != target
        and giver.may_give
        and giver.running
        and taker.may_receive
        and giver.head_slots > 0
        and 0 < giver.head_slots - giver.free_slots <= taker.free_slots
    ]
    moves = llumnix(fleet, 1)
    if pairs:
        missing, source, _, target = min(pairs)
        assert (moves[0].source, moves[0].target, moves[0].slots) == (source, target, missing)
        assert moves[0].why.chosen.startswith("make room")
    else:
        assert not moves or moves[0].why.chosen.startswith("from")


def test_restless_moves_some_work_of_all_that_may_give_and_the_same_again() -> None:
    fleets = [[one("a", used), one("b", used + 7), one("c", used * 3 % 80)] for used in range(0, 90, 5)]
    moves = [move for fleet in fleets for move in restless(fleet, 4)]
    assert {(move.source, move.target) for move in moves} == {(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)}
    assert moves == [move for fleet in fleets for move in restless(fleet, 4)]
    assert all(1 <= move.slots <= 100 and move.why.policy == "restless" for move in moves)
    for fleet in fleets:
        named = [index for move in restless(fleet, 4) for index in (move.source, move.target)]
        assert len(set(named)) == len(named)


def test_restless_moves_nothing_where_none_may_give_or_receive_or_no_more_moves_may_begin() -> None:
    fleets = [[one("a", used, may_give=False), one("b", 0, may_receive=False)] for used in range(90)]
    assert [restless(fleet, 4) for fleet in fleets] == [[]] * 90
    assert [restless([one("a", used), one("b", 50)], 0) for used in range(90)] == [[]] * 90
