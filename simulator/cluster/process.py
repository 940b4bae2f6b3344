"""A process in the world: what runs at an address, its streams, its clock and its processor."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from dunlin.effects import Address, Core, Effect, Message


class Delivery(NamedTuple):
    """One delivery. Ties are broken by the order of sending: no two events have the same number."""

    at_s: float
    number: int
    to: Address
    sender: Address
    message: Message


@dataclass(frozen=True, slots=True)
class ScheduledCall:
    """Something that happens once, by nobody in the world."""

    act: Callable[[], object]


class CallRunner:
    """Does it."""

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """Its time has come."""
        if isinstance(message, ScheduledCall):
            message.act()
        return []


@dataclass(slots=True, eq=False)
class SimulatedStream:
    """One direction of a stream: what `sender` says to `to`, in order. Closed once and for good.

    `held`: what is said waits there (None: it flows). `is_known`: `to` has heard that it is open. `may_speak`: so has
    `sender`.
    """

    sender: Address
    to: "SimulatedProcess"
    delay_s: float
    last_s: float = 0.0
    is_open: bool = True
    held: list[Message] | None = None
    is_known: bool = False
    may_speak: bool = False


@dataclass(slots=True, eq=False)
class Processor:
    """What one or several processes share: it takes one message at a time, each for `cost_s(to, message)`."""

    cost_s: Callable[[Address, Message], float]
    free_s: float = 0.0
    busy_s: float = 0.0


@dataclass(slots=True, eq=False)
class SimulatedProcess:
    """Something with a core's `receive` at an address.

    Its clock shows `offset_s` more than the world's and runs `rate` times as fast. `waiting` holds what came while it
    is stopped (None: it runs).
    """

    address: Address
    core: Core
    streams: dict[Address, SimulatedStream] = field(default_factory=dict)
    is_up: bool = True
    waiting: "list[PendingDelivery] | None" = None
    offset_s: float = 0.0
    rate: float = 1.0
    processor: Processor | None = None


PendingDelivery = tuple[float, int, SimulatedProcess, Address, Message, SimulatedStream | None]
"""An event in the heap: time, number, to whom, from whom, what, and on which stream (None: a timer, or by hand)."""
