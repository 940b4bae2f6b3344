"""Addresses, effects and records: what cores are made to speak in."""

import pytest

from dunlin.effects import Address, After, Send, SendEach, record, sends

A, B = Address("instance", "i0", 7), Address("client", "c")


def test_a_restarted_process_is_another_address() -> None:
    assert Address("instance", "i0", 8) != A
    assert Address("client", "http-1") == Address("client", "http-1", 0)
    assert len({A, Address("instance", "i0", 7), Address("instance", "i0", 8)}) == 2


def test_an_address_is_written_with_its_role_name_and_incarnation() -> None:
    assert str(A) == f"{A}" == "instance/i0@7"


def test_the_sends_among_effects_keep_their_order() -> None:
    first, second, timer = Send(A, "one"), Send(A, "two"), After(1.5, "later")
    assert sends([first, timer, second]) == [first, second]
    assert sends(iter([timer])) == []


def test_what_is_sent_to_each_counts_as_so_many_sends() -> None:
    each = SendEach([A, B], ["x", "y"])
    assert sends([Send(B, "w"), each]) == [Send(B, "w"), Send(A, "x"), Send(B, "y")]


@record
class Point:
    x: int
    y: int = 0


def test_records_are_equal_and_hashed_by_value() -> None:
    assert Point(1) == Point(1, 0) != Point(1, 1)
    assert hash(Point(1)) == hash(Point(1, 0))
    assert Send(A, Point(1)) == Send(A, Point(1))
    assert len({After(1.0, Point(1)), After(1.0, Point(1)), After(2.0, Point(1))}) == 2


def test_a_record_has_slots_and_takes_no_other_attribute() -> None:
    with pytest.raises(AttributeError):
        Point(1).z = 3  # type: ignore[attr-defined]
    assert not hasattr(Point(1), "__dict__")
