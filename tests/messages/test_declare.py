"""A message's declaration: numbers that are unique and kept, subjects, and frozen classes with slots."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.declare import Declaration, Hold, Subject, declaration_of, message, number, numbers_of
from dunlin.messages.types import Why


@message(event=31, about=Subject.RECEIVERS_REQUEST, hold=Hold.ENDS, reserved=(2, 5))
class Sample:
    """A message as the conversations have them."""

    request: int = number(1)
    attempt: int = number(4, default=3)
    why: Why | None = number(3, default=None)


@message(hot=True)
class Quick:
    """What is made once a token."""

    token: int = number(1)


def test_a_class_says_what_its_decorator_was_told() -> None:
    assert declaration_of(Sample) == Declaration(None, 31, Subject.RECEIVERS_REQUEST, Hold.ENDS, (2, 5))
    assert declaration_of(Address) is None


def test_fields_keep_their_order_beside_their_numbers() -> None:
    assert numbers_of(Sample) == {"request": 1, "attempt": 4, "why": 3}
    assert numbers_of(Address) == {"role": 1, "name": 2, "incarnation": 3}
    assert Sample(7) == Sample(request=7, attempt=3, why=None)


def test_a_message_is_frozen_and_has_slots() -> None:
    sample: Any = Sample(7)
    with pytest.raises(FrozenInstanceError):
        sample.request = 8
    assert not hasattr(sample, "__dict__")
    assert not hasattr(Quick(1), "__dict__")
    assert {Quick(1), Sample(1)} == {Quick(1), Sample(1)}


def declared(**fields: Any) -> type[Any]:
    """A class with these fields, all of them integers or reasons."""
    hints = {name: Why if name == "why" else int for name in fields}
    return type("Wrong", (), {"__annotations__": hints, "__module__": __name__, **fields})


@pytest.mark.parametrize(
    ("fields", "said", "complaint"),
    [
        ({"request": 5}, {}, "Wrong.request has no number"),
        ({"request": number(1), "attempt": number(1)}, {}, "attempt: the number 1 is used or reserved"),
        ({"request": number(2)}, {"reserved": (2,)}, "request: the number 2 is used or reserved"),
        ({"why": number(1)}, {"event": 3}, "Wrong has a why: say what it is about"),
    ],
)
def test_what_would_break_the_wire_is_an_error_at_import(
    fields: dict[str, Any], said: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(TypeError, match=complaint):
        message(**said)(declared(**fields))
