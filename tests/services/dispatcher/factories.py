"""Messages with sensible defaults, and a bench that feeds one dispatcher core at exact times."""

from array import array
from collections.abc import Iterable
from typing import Any, TypeVar

from dunlin.effects import Address, After, Effect, Joined, Message, Send, sends
from dunlin.messages.dispatch import Accepted, Place, Tokens
from dunlin.messages.door import Submit
from dunlin.messages.fleet import FleetView, MemberView
from dunlin.messages.lifecycle import Closed, FirstToken
from dunlin.messages.types import FinishReason, i32
from services.dispatcher.config import DispatcherConfig
from services.dispatcher.core import DispatcherCore
from tests.settings import configured

SELF = Address("dispatcher", "d", 0x2A)
MONITOR = Address("monitor", "m", 7)
A = Address("instance", "a", 11)
B = Address("instance", "b", 12)

M = TypeVar("M")


def client(name: object) -> Address:
    return Address("client", str(name))


def submit(tokens: Iterable[int] = (5, 6, 7), **overrides: Any) -> Submit:
    return Submit(**{"tokens": i32(tokens), "max_tokens": 4, **overrides})


def member(address: Address, **overrides: Any) -> MemberView:
    values = {"ready": True, "capacity_slots": 1000, "free_slots": 1000, "max_positions": 1000, "plan_version": 1}
    return MemberView(address, **{**values, **overrides})


def rows(*entries: tuple[int, int, int, int], finish: FinishReason = FinishReason.RUNNING) -> Tokens:
    """A batch of (request, attempt, position, token)."""
    request, attempt, position, token = zip(*entries, strict=True)
    return Tokens(
        array("q", request),
        array("i", attempt),
        array("q", position),
        array("i", token),
        array("f", [-0.5] * len(entries)),
        array("b", [finish] * len(entries)),
    )


class Bench:
    """One core, what it did last and the timers it set, each with the time when it is due."""

    def __init__(self, **config: Any) -> None:
        self.core = DispatcherCore(SELF, configured(DispatcherConfig, **config))
        self.now_s = 0.0
        self.timers: list[tuple[float, Message]] = []
        self.last: list[Effect] = []
        self.events: list[Send] = []
        self._version = 0

    def give(self, sender: Address, message: Message, at_s: float | None = None) -> list[Send]:
        """Feed a message; the sends it caused, less those that only tell of a phase: they are `told`."""
        self.now_s = self.now_s if at_s is None else at_s
        self.last = list(self.core.receive(self.now_s, sender, message))
        self.core.journal.check_integrity()
        self.timers += [(self.now_s + e.delay_s, e.message) for e in self.last if isinstance(e, After)]
        sent = sends(self.last)
        self.events = [effect for effect in sent if isinstance(effect.message, FirstToken | Closed)]
        return [effect for effect in sent if effect not in self.events]

    def fire(self, kind: type[Any]) -> list[Send]:
        """Let the oldest timer of this kind be due."""
        index = next(i for i, (_, message) in enumerate(self.timers) if isinstance(message, kind))
        due_s, message = self.timers.pop(index)
        return self.give(SELF, message, due_s)

    def view(self, *members: MemberView, **overrides: Any) -> list[Send]:
        """A newer view; whole unless `base_version` says otherwise."""
        self._version += 1
        return self.give(MONITOR, FleetView(**{"version": self._version, "members": members, **overrides}))

    def fleet(self, *members: MemberView) -> "Bench":
        """These instances join and are seen by the monitor."""
        for each in members:
            self.give(each.address, Joined())
        self.view(*members)
        return self

    def run(self, name: object, instance: Address = A, **overrides: Any) -> Place:
        """A request that an instance has accepted."""
        sent = self.give(client(name), submit(**overrides))
        place = only(sent, Place)
        self.give(instance, Accepted(place.request, place.attempt, 1))
        return place


def messages(sent: Iterable[Send], kind: type[M]) -> list[M]:
    return [effect.message for effect in sent if isinstance(effect.message, kind)]


def only(sent: Iterable[Send], kind: type[M]) -> M:
    (message,) = messages(sent, kind)
    return message


def target(sent: Iterable[Send], kind: type[Any]) -> list[Address]:
    return [effect.to for effect in sent if isinstance(effect.message, kind)]
