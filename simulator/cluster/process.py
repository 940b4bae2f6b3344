"""A process in the world: the core at an address, its streams, its clock and its processor."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from dunlin.effects import Address, Core, Effect, Message


class Delivery(NamedTuple):
    """One delivery of a message. Ties in time are broken by `number`, the order of sending."""

    at_s: float
    number: int
    to: Address
    sender: Address
    message: Message


@dataclass(frozen=True, slots=True)
class ScheduledCall:
    """Timer of the world itself: `act` is to be called."""

    act: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Burst:
    """Deliveries of one sender that arrive at the same time, one right after the other: one event of the heap."""

    events: "list[PendingDelivery]"


@dataclass(frozen=True, slots=True)
class Fan:
    """A `SendEach` that arrives at once: `messages[i]` on `streams[i]`, one event of the heap and as many numbers."""

    streams: "list[SimulatedStream]"
    messages: list[Message]


class CallRunner:
    """The receiver of `ScheduledCall`."""

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """Call the function."""
        if isinstance(message, ScheduledCall):
            message.act()
        return []


@dataclass(slots=True, eq=False)
class SimulatedStream:
    """One direction of a stream: messages of `sender` to `to`, in order, which name `speaker`. It closes once.

    `delay_s`: latency. `last_s`: time of the last arrival. `held`: messages that wait (None: they flow). `is_known`:
    `to` has received `Joined`. `may_speak`: so has `sender`.
    """

    sender: Address
    to: "SimulatedProcess"
    delay_s: float
    speaker: Address
    last_s: float = 0.0
    is_open: bool = True
    held: list[Message] | None = None
    is_known: bool = False
    may_speak: bool = False


@dataclass(slots=True, eq=False)
class Processor:
    """A CPU of one or several processes: one message at a time, `cost_s(to, message)` seconds each."""

    cost_s: Callable[[Address, Message], float]
    free_s: float = 0.0
    busy_s: float = 0.0


@dataclass(slots=True, eq=False)
class SimulatedProcess:
    """An object with a core's `receive` at an address.

    Its clock shows `offset_s` seconds more than the world's and runs `rate` times as fast. `waiting`: deliveries that
    came while it is stopped (None: it runs).
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
"""An event of the heap: time, number, receiver, sender, message, stream (None: a timer, or posted by hand)."""
