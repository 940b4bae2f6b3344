"""Runs of slots by position: found, added, taken away; gaps; and what lies beyond a slot."""

import pytest

from services.instance.kv.residency import Extent, Residency, SlotUse, Span, cut_extents


def make_residency(*runs: tuple[int, int, int]) -> Residency:
    """Runs of (first position, first slot, length)."""
    residency = Residency(1, SlotUse.OWNED)
    for position, slot, length in runs:
        residency.add(position, (slot, length))
    return residency


def test_an_empty_residency_has_no_position() -> None:
    residency = make_residency()
    assert (residency.start, residency.stop, residency.slots, residency.spans) == (0, 0, 0, [])
    assert residency.slots_of(0, 0) == []


def test_runs_that_continue_each_other_in_position_and_slot_are_one() -> None:
    residency = make_residency((0, 10, 4), (8, 18, 2), (4, 14, 4))
    assert (residency.starts, residency.extents, residency.slots) == ([0], [(10, 10)], 10)


@pytest.mark.parametrize("run", [(4, 30, 2), (6, 14, 2)])
def test_runs_that_continue_in_one_alone_stay_apart(run: tuple[int, int, int]) -> None:
    residency = make_residency((0, 10, 4), run)
    assert len(residency.extents) == 2
    assert residency.slots == 6


@pytest.mark.parametrize(("position", "length"), [(3, 1), (0, 1), (2, 4), (5, 3), (4, 2)])
def test_a_position_has_one_slot(position: int, length: int) -> None:
    residency = make_residency((0, 10, 4), (5, 20, 2))
    with pytest.raises(ValueError, match="are added to a residency of"):
        residency.add(position, (40, length))
    assert residency.slots == 6


def test_a_gap_is_filled() -> None:
    residency = make_residency((0, 10, 4), (5, 20, 2), (4, 30, 1))
    assert residency.spans == [(0, 7)]
    assert residency.slots_of(3, 6) == [(13, 1), (30, 1), (20, 1)]


@pytest.mark.parametrize("span", [(0, 5), (4, 5), (-1, 2), (6, 8)])
def test_slots_of_positions_without_one_are_an_error(span: Span) -> None:
    with pytest.raises(ValueError, match="of a residency of"):
        make_residency((0, 10, 4), (5, 20, 2)).slots_of(*span)


@pytest.mark.parametrize(("position", "run"), [(0, (0, 4, 10)), (3, (0, 4, 10)), (5, (5, 7, 20)), (6, (5, 7, 20))])
def test_the_run_around_a_position(position: int, run: tuple[int, int, int]) -> None:
    assert make_residency((0, 10, 4), (5, 20, 2)).run_around(position) == run


@pytest.mark.parametrize(
    ("span", "taken", "left"),
    [
        ((0, 4), [(10, 4)], [(5, 7)]),
        ((1, 3), [(11, 2)], [(0, 1), (3, 4), (5, 7)]),
        ((3, 6), [(13, 1), (20, 1)], [(0, 3), (6, 7)]),
        ((4, 5), [], [(0, 4), (5, 7)]),
        ((0, 99), [(10, 4), (20, 2)], []),
    ],
)
def test_what_is_taken_away_leaves_a_gap(span: Span, taken: list[Extent], left: list[Span]) -> None:
    residency = make_residency((0, 10, 4), (5, 20, 2))
    assert (residency.remove(*span), residency.spans) == (taken, left)
    assert residency.slots == sum(stop - start for start, stop in left)


@pytest.mark.parametrize(
    ("slot", "spans"), [(0, [(0, 4), (5, 7)]), (12, [(2, 4), (5, 7)]), (14, [(5, 7)]), (21, [(6, 7)]), (22, [])]
)
def test_the_positions_beyond_a_slot(slot: int, spans: list[Span]) -> None:
    assert make_residency((0, 10, 4), (5, 20, 2)).spans_beyond(slot) == spans


@pytest.mark.parametrize(("span", "any_there"), [((0, 1), True), ((4, 5), False), ((4, 6), True), ((7, 9), False)])
def test_whether_a_span_has_any_slot(span: Span, any_there: bool) -> None:
    assert make_residency((0, 10, 4), (5, 20, 2)).has_any(*span) is any_there


@pytest.mark.parametrize(
    ("extents", "pieces"),
    [
        ([], []),
        ([(10, 8)], [[(10, 4)], [(14, 4)]]),
        ([(10, 3), (40, 6)], [[(10, 3), (40, 1)], [(41, 4)], [(45, 1)]]),
        ([(10, 1), (20, 1), (30, 2), (7, 4)], [[(10, 1), (20, 1), (30, 2)], [(7, 4)]]),
    ],
)
def test_extents_are_cut_into_pieces_in_their_order(extents: list[Extent], pieces: list[list[Extent]]) -> None:
    assert list(cut_extents(extents, 4)) == pieces
