"""How a message is declared: in one place, from which its .proto, its codec, its stream and its records follow.

    @message(event=31, about=Subject.RECEIVERS_REQUEST, hold=Hold.ENDS)
    class Failed:
        '''This attempt has no next token, here or anywhere.'''

        request: int = number(1)
        attempt: int = number(2)
        why: Why | None = number(3, default=None)

A number names its field on the wire for ever: a field that goes leaves its number in `reserved`. `make protos` writes
the .proto files; docs/architecture.md, "Adding things", follows a message from here to its handler. Knows no protobuf.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum, auto
from typing import Any, Generic, TypeVar, dataclass_transform, overload

_Kind = TypeVar("_Kind")
_Value = TypeVar("_Value")
Q = TypeVar("Q")
R = TypeVar("R")
_NUMBER = "number"
_DECLARATION = "__declaration__"


class Subject(Enum):
    """What a decision message is about, and by which of its fields: so its record is found again."""

    SENDERS_REQUEST = auto()
    """`request` and `attempt`, as the sending dispatcher numbers them; the receiver is the instance."""
    RECEIVERS_REQUEST = auto()
    """`request` and `attempt`, as the receiving dispatcher numbers them; the sender is the instance."""
    DISPATCHERS_REQUEST = auto()
    """`request` and `attempt`, as `dispatcher` numbers them (None: no request); the sender is the instance."""
    REQUEST_ID = auto()
    """`request`, a public id; empty: a request that was not taken."""
    TICKET = auto()
    """What the receiver asked for under the number `ticket`."""
    SEQUENCES = auto()
    """The sender's sequences, in the column `sequence`."""
    SENDER = auto()
    """All that runs at the sender."""
    RECEIVER = auto()
    """All that runs at the receiver."""
    NOTHING = auto()
    """No request: the record is kept, but an explanation of a request does not have it."""


class Hold(Enum):
    """What a decision message says of an attempt at an instance."""

    OFFERED = auto()
    """It is dispatched there; an older attempt of the request is over."""
    BEGINS = auto()
    """The instance has it."""
    WAITS = auto()
    """The instance has it, and no step holds it."""
    ENDS = auto()
    """The instance has it no more."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a message says of itself. `command` and `event`: its numbers in the streams' envelopes, None: not there."""

    command: int | None = None
    event: int | None = None
    about: Subject | None = None
    hold: Hold | None = None
    reserved: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Parties:
    """The two sides of a module's conversation. The dialer sends commands, the acceptor events.

    `is_service`: gRPC carries it, as the method `Attach` of the service `name`; else a socket between two processes.
    """

    name: str
    dialers: tuple[str, ...]
    acceptor: str
    is_service: bool = True


@dataclass(frozen=True, slots=True)
class Method(Generic[Q, R]):
    """One method of a gRPC service: a request or (`uploads`) any number, and one response or (`streams`) any number.

    At most one of both.
    """

    service: str
    name: str
    request: type[Q]
    response: type[R]
    streams: bool = False
    uploads: bool = False

    @property
    def path(self) -> str:
        """The gRPC path."""
        return f"/{self.service}/{self.name}"


@overload
def number(number: int) -> Any: ...
@overload
def number(number: int, *, default: _Value) -> _Value: ...
@overload
def number(number: int, *, default_factory: Callable[[], _Value]) -> _Value: ...
def number(number: int, **default: Any) -> Any:
    """A message's field, by its number on the wire. Numbers are unique in a message and never used again."""
    return field(metadata={_NUMBER: number}, **default)


@dataclass_transform(frozen_default=True, field_specifiers=(number,))
def message(
    *,
    command: int | None = None,
    event: int | None = None,
    about: Subject | None = None,
    hold: Hold | None = None,
    reserved: tuple[int, ...] = (),
    hot: bool = False,
) -> Callable[[type[_Kind]], type[_Kind]]:
    """A frozen dataclass with slots that crosses a wire: by itself, inside another message, or as a recorded reason.

    Args:
        command: its number in the envelope of its module's conversation from the dialer to the acceptor.
        event: its number in the envelope the other way.
        about: by what its record is found again; every message of a stream with a `why` says so.
        hold: what it says of an attempt's place at an instance.
        reserved: numbers of fields that it had in a release and has no more.
        hot: it is made once a step or once a token. mypy alone keeps it frozen: the interpreter's freezing makes each
            field cost three times as much.

    Raises:
        TypeError: a field has no number, two have the same, one has a reserved one, or `about` is missing.
    """
    said = Declaration(command, event, about, hold, reserved)

    def declare(kind: type[_Kind]) -> type[_Kind]:
        made = dataclass(slots=True, unsafe_hash=True)(kind) if hot else dataclass(frozen=True, slots=True)(kind)
        _check(made, said)
        setattr(made, _DECLARATION, said)
        return made

    return declare


def declaration_of(kind: type[Any]) -> Declaration | None:
    """What the message `kind` says of itself; None for what was not declared here."""
    said: Declaration | None = getattr(kind, _DECLARATION, None)
    return said


def numbers_of(kind: type[Any]) -> dict[str, int]:
    """The fields of a declared message, in their order, with their numbers. A NamedTuple's are 1, 2, …"""
    if declaration_of(kind) is None:
        return {name: place for place, name in enumerate(getattr(kind, "_fields", ()), start=1)}
    return {part.name: part.metadata[_NUMBER] for part in fields(kind)}


def _check(kind: type[Any], said: Declaration) -> None:
    used = set(said.reserved)
    for part in fields(kind):
        given = part.metadata.get(_NUMBER)
        if given is None:
            raise TypeError(f"{kind.__name__}.{part.name} has no number: write {part.name}: … = number(…)")
        if given in used:
            raise TypeError(f"{kind.__name__}.{part.name}: the number {given} is used or reserved already")
        used.add(given)
    in_stream = said.command is not None or said.event is not None
    if in_stream and said.about is None and "why" in {part.name for part in fields(kind)}:
        raise TypeError(f"{kind.__name__} has a why: say what it is about (a Subject), so that its record is found")
