"""Which method takes which message: from annotations, once per class, over several parts, without doubles."""

from dataclasses import dataclass

import pytest

from dunlin.cores.handlers import handlers_of, handles
from dunlin.effects import Address, Effect, Send

ME = Address("instance", "i0", 1)


@dataclass(frozen=True, slots=True)
class Ask:
    """One message."""


@dataclass(frozen=True, slots=True)
class Up:
    """Another."""


@dataclass(frozen=True, slots=True)
class Down:
    """A third one."""


class Asks:
    """A part that takes one message; what is not marked takes none."""

    def __init__(self, to: Address) -> None:
        self.to = to

    @handles
    def on_ask(self, now_s: float, sender: Address, message: Ask) -> list[Effect]:
        return [Send(self.to, message)]

    def on_down(self, now_s: float, sender: Address, message: Down) -> list[Effect]:
        return []


class Polite(Asks):
    """Takes what its base takes, in its own way."""

    @handles
    def on_ask(self, now_s: float, sender: Address, message: Ask) -> list[Effect]:
        return []


class Members:
    """A part with one method for two messages."""

    @handles
    def on_change(self, now_s: float, sender: Address, change: Up | Down) -> list[Effect]:
        return [Send(sender, change)]


class Vague:
    """A part that does not say what it takes."""

    @handles
    def on_any(self, now_s: float, sender: Address, message: "list[Ask]") -> list[Effect]:
        return []


def test_the_annotation_says_what_a_method_takes() -> None:
    table = handlers_of(Asks(ME), Members())
    assert list(table) == [Ask, Up, Down]
    assert table[Ask](0.0, ME, Ask()) == [Send(ME, Ask())]
    assert table[Down](0.0, ME, Down()) == [Send(ME, Down())]


def test_each_object_has_its_own_table() -> None:
    other = Address("instance", "i1", 1)
    assert handlers_of(Asks(other))[Ask](0.0, ME, Ask()) == [Send(other, Ask())]


def test_a_method_may_be_overridden() -> None:
    assert handlers_of(Polite(ME))[Ask](0.0, ME, Ask()) == []


def test_a_message_has_one_method() -> None:
    with pytest.raises(TypeError, match=r"Polite.on_ask takes Ask, and so does .*Asks\.on_ask"):
        handlers_of(Asks(ME), Polite(ME))


def test_a_method_that_does_not_say_what_it_takes_is_an_error() -> None:
    with pytest.raises(TypeError, match=r"Vague\.on_any takes list\["):
        handlers_of(Vague())
