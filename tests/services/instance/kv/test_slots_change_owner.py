"""Slots that pass from owner to owner: all of them, those of some positions, or the first in pieces of a length."""

import pytest

from services.instance.kv.residency import Extent, SlotUse
from services.instance.kv.slot_table import SlotTable


def make_table(capacity: int, *counts: int) -> SlotTable:
    """A table in which the owners 1, 2, ... hold so many slots, given in this order."""
    table = SlotTable(capacity)
    for owner, count in enumerate(counts, 1):
        assert table.allocate(owner, count)
    return table


def make_scattered() -> SlotTable:
    """Owner 1 has its positions in slots 0, 1, 2, 5, 6, 7, 9: of three extents."""
    table = make_table(12, 3, 2)
    assert table.allocate(1, 3)
    assert table.allocate(2, 1)
    assert table.allocate(1, 1)
    return table


def extents(table: SlotTable, owner: int | str) -> list[Extent]:
    return table.residency(owner).extents


def test_all_slots_of_an_owner_pass_to_an_heir_that_held_none() -> None:
    table = make_table(20, 4, 2)
    table.transfer(1, "heir", SlotUse.QUARANTINED)
    assert (extents(table, "heir"), table.held(1), table.use("heir")) == ([(0, 4)], 0, SlotUse.QUARANTINED)
    assert (table.count(SlotUse.OWNED), table.count(SlotUse.QUARANTINED)) == (2, 4)
    with pytest.raises(ValueError, match="owner heir holds 4 slots already"):
        table.transfer(2, "heir", SlotUse.OWNED)
    with pytest.raises(KeyError):
        table.transfer(1, "other", SlotUse.OWNED)
    table.check_integrity()


def test_slots_of_some_positions_pass_to_other_positions_of_an_heir() -> None:
    table = make_table(20, 10)
    table.move_span(1, 0, 4, "heir", 7, SlotUse.RESERVED)
    assert (table.residency("heir").spans, extents(table, "heir")) == ([(7, 11)], [(0, 4)])
    assert (table.count(SlotUse.OWNED), table.count(SlotUse.RESERVED)) == (6, 4)
    table.move_span(1, 4, 6, "heir", 11, SlotUse.RESERVED)
    assert (extents(table, "heir"), extents(table, 1)) == ([(0, 6)], [(6, 4)])
    for start, stop, at in ((3, 7, 30), (6, 8, 12)):
        with pytest.raises(ValueError, match="residency of"):
            table.move_span(1, start, stop, "heir", at, SlotUse.RESERVED)
    table.check_integrity()
    table.move_span(1, 6, 10, "heir", 0, SlotUse.RESERVED)
    assert (table.held(1), table.held("heir")) == (0, 10)
    with pytest.raises(KeyError):
        table.move_span(1, 6, 10, "heir", 20, SlotUse.RESERVED)
    table.check_integrity()


def test_positions_in_several_extents_pass_to_an_heir_in_their_order() -> None:
    table = make_scattered()
    table.move_span(1, 1, 7, "heir", 20, SlotUse.RESERVED)
    assert table.residency("heir").spans == [(20, 26)]
    assert table.residency("heir").slots_of(20, 26) == [(1, 2), (5, 3), (9, 1)]
    assert (table.residency(1).spans, extents(table, 1)) == ([(0, 1)], [(0, 1)])
    table.check_integrity()


def test_the_first_slots_are_split_off_in_pieces_for_heirs() -> None:
    table = make_scattered()
    table.set_use(1, SlotUse.MOVING)
    table.split_off(1, ["a", None, "c"], 2)
    assert [(table.residency(heir).spans, extents(table, heir)) for heir in ("a", "c")] == [
        ([(0, 2)], [(0, 2)]),
        ([(4, 6)], [(6, 2)]),
    ]
    assert (table.use("a"), table.count(SlotUse.MOVING)) == (SlotUse.MOVING, 5)
    assert table.has_free([(2, 1)])
    assert table.has_free([(5, 1)])
    assert (table.residency(1).spans, extents(table, 1)) == ([(6, 7)], [(9, 1)])
    table.check_integrity()


def test_a_piece_for_an_heir_may_have_several_extents() -> None:
    table = make_scattered()
    table.split_off(1, ["heir"], 7)
    assert (table.residency("heir").spans, extents(table, "heir")) == ([(0, 7)], [(0, 3), (5, 3), (9, 1)])
    assert table.held("heir") == 7
    table.check_integrity()


@pytest.mark.parametrize("heirs", [["a", "b"], ["a", "b", "c", "d"]])
def test_nothing_is_split_off_where_a_position_has_no_slot(heirs: list[str]) -> None:
    table = make_scattered()
    table.release_span(1, 3, 4)
    before = list(extents(table, 1))
    with pytest.raises(ValueError, match=r"of a residency of \[\(0, 3\), \(4, 7\)\]"):
        table.split_off(1, heirs, 2)
    assert (extents(table, 1), table.held("a"), table.free) == (before, 0, 3)
    table.check_integrity()


def test_whatever_makes_a_residency_numbers_it_anew() -> None:
    table = make_table(16, 2)
    table.move_span(1, 0, 1, "moved", 0, SlotUse.OWNED)
    table.split_off(1, ["split"], 1)
    table.release(1)
    assert table.allocate(1, 4)
    assert [table.residency(owner).generation for owner in ("moved", "split", 1)] == [2, 3, 4]
