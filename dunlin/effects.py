"""What a core is: addresses in, effects out.

A core holds plain Python state and decides. It knows no clock, no socket and no task: a host (the live one in
`dunlin/runtime/core_host.py`, or a simulator) feeds it messages with the time, and carries out the effects it returns.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar, dataclass_transform

_Kind = TypeVar("_Kind")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(kind: type[_Kind]) -> type[_Kind]:
    """A dataclass with slots that may not be changed: for objects made once a step, or even once a token.

    mypy says so, not the interpreter: freezing there makes each field cost three times as much. All other messages are
    frozen dataclasses.
    """
    return dataclass(slots=True, unsafe_hash=True)(kind)


class Address(NamedTuple):
    """A sender or receiver of messages: a process, an engine, the etcd watch, a client at a door, or a core's timer.

    `incarnation` is the etcd revision of the process's first registration, so a restarted process is another address.
    A tuple, for it is looked up several times on the way of every message: hashed and compared at C's speed.
    """

    role: str
    name: str
    incarnation: int = 0

    def __str__(self) -> str:
        return f"{self.role}/{self.name}@{self.incarnation}"


class Message(Protocol):
    """Anything a core receives or sends: a frozen dataclass of `dunlin.messages` (or a core's own timer message)."""


@record
class Send:
    """Give `message` to `to`. An unknown address drops the message and counts it; it never fails the core."""

    to: Address
    message: Message


@record
class SendEach:
    """Give `messages[i]`, all of one kind and without a reason, to `to[i]`: what one step has for many readers.

    In order, as so many `Send`s, but one effect. A core may use the list `to` again.
    """

    to: list[Address]
    messages: list[Any]

    def singly(self) -> "list[Send]":
        """The same as an effect for each."""
        return [Send(to, message) for to, message in zip(self.to, self.messages, strict=True)]


@record
class After:
    """Give `message` back to this core after `delay_s` seconds, with the core's own address as the sender.

    There is no cancelling: a message that came too late carries an old counter and the core ignores it.
    """

    delay_s: float
    message: Message


Effect = Send | SendEach | After

Handler = Callable[[float, Address, Any], list[Effect]]
"""What a part of a core does with one kind of message: (now in seconds, sender, message) to effects. A core's table of
them, by the message's class, is made of the methods that its parts mark with `dunlin.cores.handlers.handles`.
"""


@dataclass(frozen=True, slots=True)
class Joined:
    """A stream to the sender is open (or the engine process runs). The sender's address carries its incarnation."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The stream to the sender ended, whatever the cause; messages in flight may be lost."""

    reason: str = ""


class Core(Protocol):
    """The decisions of one service."""

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Effect]:
        """Take one message and return what to do. Never raises on a message of its own vocabulary, stale or not.

        Args:
            now_s: seconds on the host's clock; never goes backwards.
            sender: the address that sent it; for `Joined` and `Gone` the peer concerned.
            message: what was sent.
        """
        ...


def sends(effects: Iterable[Effect]) -> list[Send]:
    """The `Send`s among `effects`, in order; a `SendEach` counts as those that it stands for."""
    found: list[Send] = []
    for effect in effects:
        if isinstance(effect, Send):
            found.append(effect)
        elif isinstance(effect, SendEach):
            found += effect.singly()
    return found
