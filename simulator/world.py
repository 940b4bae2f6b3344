"""The world: cores joined in virtual time, with exact delays and no host, socket or clock.

What sits at an address is anything with a core's `receive`: a real core, a modelled engine, a recording client.
"""

import heapq
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from dunlin.effects import Address, After, Core, Gone, Joined, Message, Send


class Event(NamedTuple):
    """One delivery. Ties are broken by the order of sending: no two events have the same number."""

    at_s: float
    number: int
    to: Address
    sender: Address
    message: Message


class World:
    """Delivers messages between joined addresses after `latency_s`, in order; timers after exactly their delay."""

    def __init__(self, latency_s: float = 0.001) -> None:
        self.now_s = 0.0
        self.delivered = 0
        self.dropped: Counter[str] = Counter()
        self.sent: list[tuple[float, Address, Address, Message]] = []
        self.keep_sent = True
        self.on_delivered: Callable[[Event], None] | None = None
        self._latency_s = latency_s
        self._cores: dict[Address, Core] = {}
        self._joined: dict[tuple[Address, Address], int] = {}
        self._paused: dict[Address, list[Event]] = {}
        self._heap: list[Event] = []
        self._numbers = 0

    def add(self, address: Address, core: Core) -> None:
        """Put `core` at `address`; nobody is joined to it yet."""
        self._cores[address] = core

    def is_up(self, address: Address) -> bool:
        """Whether somebody is at `address`."""
        return address in self._cores

    def join(self, one: Address, other: Address) -> None:
        """Open a stream: both learn it after the latency."""
        self._joined[one, other] = self._joined[other, one] = self._numbers
        self.post(other, one, Joined())
        self.post(one, other, Joined())

    def part(self, one: Address, other: Address, reason: str = "stream reset") -> None:
        """End a stream: what is in flight on it is lost, and both ends learn it."""
        if self._joined.pop((one, other), None) is None:
            return
        del self._joined[other, one]
        pair = {one, other}
        self._heap = [event for event in self._heap if {event.sender, event.to} != pair]
        heapq.heapify(self._heap)
        self.post(other, one, Gone(reason))
        self.post(one, other, Gone(reason))

    def kill(self, address: Address) -> None:
        """The process at `address` is gone at once, with its timers and what it had not yet been given."""
        del self._cores[address]
        self._paused.pop(address, None)
        for one, other in list(self._joined):
            if one == address:
                self.part(other, address)
        self._heap = [event for event in self._heap if event.to != address]
        heapq.heapify(self._heap)

    def pause(self, address: Address) -> None:
        """The process at `address` stops (SIGSTOP): what reaches it waits."""
        self._paused[address] = []

    def is_paused(self, address: Address) -> bool:
        """Whether the process at `address` is stopped."""
        return address in self._paused

    def resume(self, address: Address) -> None:
        """The process goes on: everything that waited is delivered now, in order. One that died meanwhile does not."""
        for event in self._paused.pop(address, ()):
            self.post(event.sender, event.to, event.message)

    def post(self, sender: Address, to: Address, message: Message, delay_s: float | None = None) -> None:
        """Deliver `message` to `to` as if `sender` had sent it, whether joined or not."""
        delay_s = self._latency_s if delay_s is None else delay_s
        self._numbers += 1
        heapq.heappush(self._heap, Event(self.now_s + delay_s, self._numbers, to, sender, message))

    def run(self, until: Callable[[], bool] | None = None, for_s: float = 60.0, max_events: int = 1_000_000) -> bool:
        """Deliver events until `until` holds, time is up or nothing is left; say whether `until` holds."""
        end_s = self.now_s + for_s
        for _ in range(max_events):
            if until is not None and until():
                return True
            if not self._heap or self._heap[0].at_s > end_s:
                break
            self._deliver(heapq.heappop(self._heap))
        self.now_s = max(self.now_s, min(end_s, self._heap[0].at_s) if self._heap else end_s)
        return until is not None and until()

    def _deliver(self, event: Event) -> None:
        self.now_s = event.at_s
        if event.to in self._paused:
            self._paused[event.to].append(event)
            return
        core = self._cores.get(event.to)
        if core is None:
            self.dropped["nobody there"] += 1
            return
        self.delivered += 1
        for effect in core.receive(event.at_s, event.sender, event.message):
            if isinstance(effect, After):
                self.post(event.to, event.to, effect.message, effect.delay_s)
            else:
                self._send(event.to, effect)
        if self.on_delivered is not None:
            self.on_delivered(event)

    def _send(self, sender: Address, effect: Send) -> None:
        if (sender, effect.to) not in self._joined:
            self.dropped[type(effect.message).__name__] += 1
            return
        if self.keep_sent:
            self.sent.append((self.now_s, sender, effect.to, effect.message))
        self.post(sender, effect.to, effect.message)
