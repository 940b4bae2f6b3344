"""A world in which things go wrong: links stall, fall silent and break, processes sleep and lag, clocks disagree.

Streams stay what gRPC makes of them: what arrives on one arrives once and in order, and of what a broken one had under
way nothing arrives. Between streams no order is promised, and each message takes its own time. Decides nothing: which
trouble comes when, a plan says.
"""

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from dunlin.effects import Address, After, Core, Gone, Joined, Message, Send
from simulator.process import Event
from simulator.world import World

Pair = tuple[Address, Address]
"""(sender, receiver): one direction of a stream."""
LOCAL_ROLES = ("engine", "etcd", "dialing", "test", "transport")
"""Not reached over the network that has troubles."""


@dataclass(slots=True)
class Clock:
    """What a process believes of the time: `offset_s` ahead, and `rate` times as fast since `since_s`."""

    offset_s: float = 0.0
    rate: float = 1.0
    since_s: float = 0.0

    def read_s(self, now_s: float) -> float:
        """The process's own time."""
        return self.offset_s + self.since_s + (now_s - self.since_s) * self.rate

    def change(self, now_s: float, rate: float) -> None:
        """Go at another rate from now on; it never goes back."""
        self.offset_s, self.since_s, self.rate = self.read_s(now_s) - now_s, now_s, rate


@dataclass(slots=True)
class Sleep:
    """A stopped process's: what waits for it. `first`: what it hears before all of that when it wakes."""

    waiting: deque[Event] = field(default_factory=deque)
    first: list[tuple[Address, Message]] = field(default_factory=list)


class TroubledWorld(World):
    """Joins cores as `World` does. `jitter` draws each message's delay, from one to two times `latency_s`."""

    def __init__(self, latency_s: float = 0.001, jitter: Random | None = None) -> None:
        super().__init__(latency_s)
        self.before: Callable[[Event], None] | None = None
        self.lag_s: dict[Address, float] = {}
        self.clocks: dict[Address, Clock] = {}
        self.lost: Counter[str] = Counter()
        self._latency = latency_s
        self._jitter = jitter
        self._at: dict[Address, Core] = {}
        self._open: dict[Address, dict[Address, None]] = {}
        self._sleeps: dict[Address, Sleep] = {}
        self._stalled: dict[Pair, deque[Event]] = {}
        self._arrived_s: dict[Pair, float] = {}
        self._events: list[Event] = []
        self._dead: set[int] = set()
        self._count = 0

    # --- who is there ---

    def add(self, address: Address, core: Core) -> None:
        """Put `core` at `address`; nobody is joined to it yet."""
        self._at[address] = core

    def is_up(self, address: Address) -> bool:
        """Whether somebody is at `address`."""
        return address in self._at

    def are_joined(self, one: Address, other: Address) -> bool:
        """Whether a stream between them is open."""
        return other in self._open.get(one, ())

    def peers(self, address: Address) -> list[Address]:
        """Who has a stream with it, in the order of joining."""
        return list(self._open.get(address, ()))

    def join(self, one: Address, other: Address) -> None:
        """Open a stream: both learn it after the latency."""
        self._open.setdefault(one, {})[other] = None
        self._open.setdefault(other, {})[one] = None
        self.post(other, one, Joined())
        self.post(one, other, Joined())

    def part(self, one: Address, other: Address, reason: str = "stream reset") -> None:
        """End a stream: what is in flight on it is lost, and both ends learn it."""
        if self.sever(one, other):
            self.post(other, one, Gone(reason))
            self.post(one, other, Gone(reason))

    def sever(self, one: Address, other: Address) -> bool:
        """End a stream and lose what is in flight on it; neither end learns it now. False: there was none."""
        if not self.are_joined(one, other):
            return False
        del self._open[one][other], self._open[other][one]
        pairs = ((one, other), (other, one))
        self._lose(lambda event: (event.sender, event.to) in pairs)
        for pair in pairs:
            self._stalled.pop(pair, None)
        return True

    def kill(self, address: Address, reason: str = "stream reset") -> None:
        """The process at `address` is gone at once, with its timers and what it had not yet been given."""
        del self._at[address]
        self._sleeps.pop(address, None)
        self.lag_s.pop(address, None)
        for other in self.peers(address):
            self.part(other, address, reason)
        self._lose(lambda event: event.to == address)

    # --- troubles ---

    def pause(self, address: Address) -> None:
        """The process at `address` stops (SIGSTOP): what reaches it waits."""
        self._sleeps.setdefault(address, Sleep())

    def is_paused(self, address: Address) -> bool:
        """Whether the process at `address` is stopped."""
        return address in self._sleeps

    def tell_first(self, sender: Address, address: Address, message: Message) -> None:
        """What the process hears first when it wakes, if it sleeps; else what it hears soon."""
        if address in self._sleeps:
            self._sleeps[address].first.append((sender, message))
        else:
            self.post(sender, address, message)

    def resume(self, address: Address) -> None:
        """The process goes on: everything that waited is delivered now, in order. One that died meanwhile does not."""
        sleep = self._sleeps.pop(address, None)
        if sleep is None:
            return
        for sender, message in reversed(sleep.first):
            self._count += 1
            heapq.heappush(self._events, Event(self.now_s, -self._count, address, sender, message))
        self._again(sleep.waiting)

    def stall(self, one: Address, other: Address) -> None:
        """What is sent between them waits, in both directions."""
        for pair in ((one, other), (other, one)):
            self._stalled.setdefault(pair, deque())

    def flow(self, one: Address, other: Address) -> None:
        """What waited between them arrives now, in order; what follows flows again."""
        for pair in ((one, other), (other, one)):
            self._again(self._stalled.pop(pair, ()))

    def clock(self, address: Address) -> Clock:
        """The process's clock."""
        return self.clocks.setdefault(address, Clock())

    # --- time ---

    def post(self, sender: Address, to: Address, message: Message, delay_s: float | None = None) -> None:
        """Deliver `message` to `to` as if `sender` had sent it, whether joined or not; per pair in order, unless it is
        said when.
        """
        at_s = self.now_s + (self._delay_s(sender, to) if delay_s is None else delay_s)
        if sender != to and delay_s is None:
            at_s = max(at_s, self._arrived_s.get((sender, to), 0.0))
            self._arrived_s[sender, to] = at_s
        self._count += 1
        heapq.heappush(self._events, Event(at_s, self._count, to, sender, message))

    def run(self, until: Callable[[], bool] | None = None, for_s: float = 60.0, max_events: int = 10_000_000) -> bool:
        """Deliver events until `until` holds, time is up or nothing is left; say whether `until` holds."""
        end_s = self.now_s + for_s
        for _ in range(max_events):
            if until is not None and until():
                return True
            if not self._events or self._events[0].at_s > end_s:
                break
            self._give(heapq.heappop(self._events))
        self.now_s = max(self.now_s, end_s)
        return until is not None and until()

    def _delay_s(self, sender: Address, to: Address) -> float:
        lag_s = self.lag_s.get(to, 0.0) if self.lag_s else 0.0
        if self._jitter is None or sender.role in LOCAL_ROLES or to.role in LOCAL_ROLES:
            return self._latency + lag_s
        return self._latency * (1.0 + self._jitter.random()) + lag_s

    def _give(self, event: Event) -> None:
        if event.number in self._dead:
            self._dead.remove(event.number)
            return
        self.now_s = event.at_s
        to, pair = event.to, (event.sender, event.to)
        if to in self._sleeps:
            self._sleeps[to].waiting.append(event)
        elif pair in self._stalled:
            self._stalled[pair].append(event)
        elif to not in self._at:
            self.dropped["nobody there"] += 1
        else:
            self._hand_over(event, self._at[to])

    def _hand_over(self, event: Event, core: Core) -> None:
        if self.before is not None:
            self.before(event)
        self.delivered += 1
        clock = self.clocks.get(event.to)
        now_s = event.at_s if clock is None else clock.read_s(event.at_s)
        for effect in core.receive(now_s, event.sender, event.message):
            if isinstance(effect, After):
                delay_s = effect.delay_s if clock is None else effect.delay_s / clock.rate
                self.post(event.to, event.to, effect.message, delay_s)
            else:
                self._pass_on(event.to, effect)
        if self.on_delivered is not None:
            self.on_delivered(event)

    def _pass_on(self, sender: Address, effect: Send) -> None:
        if effect.to not in self._open.get(sender, ()):
            self.dropped[type(effect.message).__name__] += 1
            return
        self.post(sender, effect.to, effect.message)

    def _again(self, events: Iterable[Event]) -> None:
        """What should have been delivered before now is delivered now, ahead of what was sent later."""
        for event in events:
            heapq.heappush(self._events, event._replace(at_s=self.now_s))

    def _lose(self, is_lost: Callable[[Event], bool]) -> None:
        for event in self._events:
            if is_lost(event) and event.number not in self._dead:
                self._dead.add(event.number)
                self.lost[type(event.message).__name__] += 1
        for sleep in self._sleeps.values():
            sleep.waiting = deque(event for event in sleep.waiting if not is_lost(event))
