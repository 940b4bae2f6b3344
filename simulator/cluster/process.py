"""A process in the world: the core at an address, its streams, its clock and its processor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dunlin.effects import Address, Core, Effect, Message, SendEach


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

    at_s: float
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

    def acquire(self, now_s: float, to: Address, message: Message) -> bool:
        """Be busy with a message from now on; False: it is busy with another one until `free_s`."""
        if self.free_s > now_s:
            return False
        cost_s = self.cost_s(to, message)
        self.free_s = now_s + cost_s
        self.busy_s += cost_s
        return True


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


def fan_of(now_s: float, streams: Mapping[Address, SimulatedStream], effect: SendEach) -> Fan | None:
    """The messages as one event, which are on their way now; None, and nothing is sent: not all arrive at one time."""
    found: list[SimulatedStream] = []
    at_s = -1.0
    for to in effect.to:
        stream = streams.get(to)
        if stream is None or not stream.may_speak or stream.held is not None:
            return None
        if now_s + stream.delay_s != at_s:
            if found:
                return None
            at_s = now_s + stream.delay_s
        if stream.last_s > at_s:
            return None
        found.append(stream)
    for stream in found:
        stream.last_s = at_s
    return Fan(at_s, found, effect.messages) if found else None
