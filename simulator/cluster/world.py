"""The world: a discrete-event loop that connects cores in virtual time, with exact delays and no socket or clock.

An address holds any object with a core's `receive`: a service's core, a modelled engine, a recording client. A stream
keeps the order of each direction, as gRPC's does, and loses what is in flight when it ends. A process sends on a stream
only after it has received `Joined` for it, as with `dunlin/runtime/core_host.py`. The end of a stream or a process
removes no event from the heap: stale events are skipped when their time comes. The world injects no fault by itself.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from dunlin.effects import Address, After, Core, Effect, Gone, Joined, Message, Send, SendEach
from simulator.cluster.process import (
    Burst,
    CallRunner,
    Delivery,
    Fan,
    PendingDelivery,
    Processor,
    ScheduledCall,
    SimulatedProcess,
    SimulatedStream,
    fan_of,
)

LATENCY_S = 0.001
FIRST = 1 << 62
"""Subtracted from an event's number, it puts the event before all others of the same time."""


class World:
    """Delivers messages between connected addresses, and timers after exactly their delay.

    `latency_s`: seconds of delay of every stream, or a function of a stream's two ends. `keep_sent`: record every
    message in `sent`. `before` is called before each delivery, `on_delivered` after it, `on_kind[type]` after those of
    one kind of message (which costs the others nothing), `on_sent` with each message that a core sends on an open
    stream, `on_decided` with those of them that have a reason, and with those to clients that left.
    `extra_s(sender, to)`: seconds that one message takes beyond the latency of its stream. `dropped` counts
    messages that had no stream or no receiver.
    """

    def __init__(self, latency_s: float | Callable[[Address, Address], float] = LATENCY_S) -> None:
        self.now_s = 0.0
        self.delivered = 0
        self.dropped: Counter[str] = Counter()
        self.sent: list[tuple[float, Address, Address, Message]] = []
        self.keep_sent = True
        self.before: Callable[[Delivery], None] | None = None
        self.on_delivered: Callable[[Delivery], None] | None = None
        self.on_kind: dict[type[Message], Callable[[Delivery], None]] = {}
        self.on_sent: Callable[[float, Address, Address, Message], None] | None = None
        self.on_decided: Callable[[float, Address, Address, Message], None] | None = None
        self.extra_s: Callable[[Address, Address], float] | None = None
        self._latency_s = latency_s if callable(latency_s) else lambda one, other: latency_s
        self._processes: dict[Address, SimulatedProcess] = {}
        self._actor = SimulatedProcess(Address("world", ""), CallRunner())
        self._heap: list[PendingDelivery] = []
        self._numbers = 0

    def __len__(self) -> int:
        """The number of processes that are up."""
        return len(self._processes)

    # --- processes ---

    def add(self, address: Address, core: Core) -> None:
        """Start a process with `core` at `address`, without streams; a process that was there is killed."""
        if address in self._processes:
            self.kill(address)
        self._processes[address] = SimulatedProcess(address, core)

    def is_up(self, address: Address) -> bool:
        """Whether a process is at `address`, running or stopped."""
        return address in self._processes

    def kill(self, address: Address, reason: str = "stream reset") -> None:
        """End the process at `address` at once, with its timers and the messages that wait for it.

        Its peers receive `Gone(reason)` after the latency. Raises KeyError if no process is there.
        """
        process = self._processes.pop(address)
        process.is_up = False
        process.waiting = None
        for stream in process.streams.values():
            stream.is_open = False
            self._end(stream.to.streams.pop(address), reason, tell=stream)
        process.streams.clear()

    def pause(self, address: Address) -> None:
        """Stop the process at `address` (SIGSTOP): messages for it wait."""
        process = self._processes[address]
        if process.waiting is None:
            process.waiting = []

    def is_paused(self, address: Address) -> bool:
        """Whether the process at `address` is stopped."""
        process = self._processes.get(address)
        return process is not None and process.waiting is not None

    def resume(self, address: Address) -> None:
        """Let a stopped process run: what waited is delivered now, in order. Nothing if it died meanwhile."""
        process = self._processes.get(address)
        if process is None or process.waiting is None:
            return
        waiting, process.waiting = process.waiting, None
        for event in waiting:  # with its number: ahead of what was sent later
            heappush(self._heap, (self.now_s, *event[1:]))

    def post_first(self, sender: Address, address: Address, message: Message) -> None:
        """Deliver `message` before all that waits for a stopped process; to a running one as `post`."""
        process = self._processes.get(address)
        if process is None or process.waiting is None:
            return self.post(sender, address, message)
        self._numbers += 1
        process.waiting.append((self.now_s, self._numbers - FIRST, process, sender, message, None))
        return None

    def clock_s(self, address: Address) -> float:
        """The time of the process's own clock."""
        process = self._processes[address]
        return self.now_s * process.rate + process.offset_s

    def set_clock(self, address: Address, offset_s: float, rate: float = 1.0) -> None:
        """From now on the process's clock shows `offset_s` more than the world's and runs `rate` times as fast."""
        process = self._processes[address]
        process.offset_s = offset_s + self.now_s * (1.0 - rate)
        process.rate = rate

    def set_processor(self, address: Address, processor: Processor | None) -> None:
        """Run the process at `address` on a processor; None: its turns take no time."""
        self._processes[address].processor = processor

    def processor(self, address: Address) -> Processor | None:
        """The processor of the process at `address`."""
        return self._processes[address].processor

    # --- streams ---

    def connect(self, one: Address, other: Address, other_speaks_as: Address | None = None) -> None:
        """Open a stream: both ends receive `Joined` after the latency. An open one between them ends first.

        What `other` says then comes from `other_speaks_as`; the stream's beginning and end from `other`.
        """
        first, second = self._processes.get(one), self._processes.get(other)
        if first is None or second is None:
            self.dropped["Joined"] += 1
            return
        self.disconnect(one, other, "replaced by a newer connection")
        delay_s = self._latency_s(one, other)
        first.streams[other] = SimulatedStream(one, second, delay_s, one)
        second.streams[one] = SimulatedStream(other, first, delay_s, other)
        self._send_on(second.streams[one], Joined(), self.now_s)
        self._send_on(first.streams[other], Joined(), self.now_s)
        second.streams[one].speaker = other_speaks_as or other

    def is_connected(self, one: Address, other: Address) -> bool:
        """Whether a stream is open between them."""
        process = self._processes.get(one)
        return process is not None and other in process.streams

    def peers(self, address: Address) -> list[Address]:
        """The addresses that have a stream with `address`, by age; empty if no process is there."""
        process = self._processes.get(address)
        return list(process.streams) if process is not None else []

    def disconnect(self, one: Address, other: Address, reason: str = "stream reset") -> None:
        """End a stream: what is in flight is lost, and each end that had received `Joined` receives `Gone`."""
        self._close(one, other, reason)

    def sever(self, one: Address, other: Address) -> bool:
        """End a stream without telling either end; what is in flight is lost. False: there was none."""
        return self._close(one, other, None)

    def _close(self, one: Address, other: Address, reason: str | None) -> bool:
        first, second = self._processes.get(one), self._processes.get(other)
        there = first.streams.pop(other, None) if first is not None else None
        if there is None or second is None:
            return False
        back = second.streams.pop(one)
        self._end(there, reason, tell=back)
        self._end(back, reason, tell=there)
        return True

    def stall(self, one: Address, other: Address) -> None:
        """Hold what they send to each other from now on; what is in flight arrives."""
        for stream in self._both(one, other):
            if stream.held is None:
                stream.held = []

    def unstall(self, one: Address, other: Address) -> None:
        """Send what was held between them, in order, and hold no more."""
        for stream in self._both(one, other):
            held, stream.held = stream.held or [], None
            for message in held:
                self._send_on(stream, message, self.now_s)

    def _both(self, one: Address, other: Address) -> list[SimulatedStream]:
        """The two directions of their stream; empty without a stream."""
        here, there = self._processes.get(one), self._processes.get(other)
        if here is None or there is None or other not in here.streams:
            return []
        return [here.streams[other], there.streams[one]]

    def post(self, sender: Address, to: Address, message: Message, delay_s: float | None = None) -> None:
        """Deliver `message` to the process now at `to` as if `sender` had sent it.

        Without `delay_s` it takes their stream, in order, or the latency if they have none; with it exactly so long.
        """
        process = self._processes.get(to)
        if process is None:
            self.dropped["no process"] += 1
            return
        speaker = self._processes.get(sender) if delay_s is None else None
        stream = speaker.streams.get(to) if speaker is not None else None
        if stream is not None:
            self._send_on(stream, message, self.now_s)
        else:
            delay_s = self._latency_s(sender, to) if delay_s is None else delay_s
            self._push(self.now_s + delay_s, process, sender, message, None)

    # --- time ---

    def call_later(self, delay_s: float, act: Callable[[], object]) -> None:
        """Call `act` after `delay_s` seconds of virtual time."""
        self._push(self.now_s + delay_s, self._actor, self._actor.address, ScheduledCall(act), None)

    def call_at(self, delay_s: float, act: Callable[[float], object]) -> None:
        """Call `act(now_s)` after `delay_s` seconds of virtual time."""
        self.call_later(delay_s, lambda: act(self.now_s))

    def run(self, until: Callable[[], bool] | None = None, for_s: float = 60.0, max_events: int = 10_000_000) -> bool:
        """Deliver events until `until` holds, `for_s` seconds passed or no event is left; whether `until` holds."""
        end_s = self.now_s + for_s
        if until is None:
            self.run_to(end_s)
            return False
        heap = self._heap
        for _ in range(max_events):
            if until():
                return True
            if not heap or heap[0][0] > end_s:
                break
            self._deliver(heappop(heap))
        self.now_s = max(self.now_s, min(end_s, heap[0][0]) if heap else end_s)
        return until()

    def run_to(self, end_s: float) -> None:
        """Deliver all events up to `end_s`, and set the time to it."""
        heap, take = self._heap, self._deliver
        while heap and heap[0][0] <= end_s:
            take(heappop(heap))
        self.now_s = max(self.now_s, end_s)

    def _deliver(self, event: PendingDelivery) -> None:
        at_s, _, process, sender, message, stream = event
        if type(message) is Burst:
            self._deliver_burst(at_s, message.events)
            return
        if type(message) is Fan:
            self._deliver_fan(at_s, event[1], message)
            return
        if stream is not None and not stream.is_open:
            return
        if not process.is_up:
            self.dropped["no process"] += 1
            return
        self.now_s = at_s
        if process.waiting is not None:
            process.waiting.append(event)
            return
        processor = process.processor
        if processor is not None and not processor.acquire(at_s, process.address, message):
            heappush(self._heap, (processor.free_s, *event[1:]))
            return
        if stream is not None and not stream.is_known:
            stream.is_known = process.streams[stream.sender].may_speak = True
        if self.before is not None:
            self.before(Delivery(at_s, event[1], process.address, sender, message))
        self.delivered += 1
        effects = process.core.receive(at_s * process.rate + process.offset_s, sender, message)
        if effects:
            done_s = at_s if processor is None else processor.free_s
            self._carry_out(done_s, process, effects)
        if self.on_delivered is not None:
            self.on_delivered(Delivery(at_s, event[1], process.address, sender, message))
        if self.on_kind and (watch := self.on_kind.get(type(message))) is not None:
            watch(Delivery(at_s, event[1], process.address, sender, message))

    def _deliver_fan(self, now_s: float, number: int, fan: Fan) -> None:
        """As `_deliver_burst`, of messages of one kind."""
        is_seen = self.before is not None or self.on_delivered is not None or type(fan.messages[0]) in self.on_kind
        for place, (stream, message) in enumerate(zip(fan.streams, fan.messages, strict=True), number):
            process = stream.to
            is_plain = stream.is_open and stream.is_known and process.waiting is None and process.processor is None
            if is_seen or not is_plain or not process.is_up:
                self._deliver((now_s, place, process, stream.speaker, message, stream))
                continue
            self.now_s = now_s
            self.delivered += 1
            effects = process.core.receive(now_s * process.rate + process.offset_s, stream.speaker, message)
            if effects:
                self._carry_out(now_s, process, effects)

    def _deliver_burst(self, now_s: float, events: list[PendingDelivery]) -> None:
        """Deliver messages of one time: as `_deliver`, but without what cannot matter on a stream that is known."""
        is_seen, watched = self.before is not None or self.on_delivered is not None, self.on_kind
        for event in events:
            _, _, process, sender, message, stream = event
            is_plain = stream is not None and stream.is_open and stream.is_known and process.is_up and not is_seen
            if not is_plain or process.waiting is not None or process.processor is not None or type(message) in watched:
                self._deliver(event)
                continue
            self.now_s = now_s
            self.delivered += 1
            effects = process.core.receive(now_s * process.rate + process.offset_s, sender, message)
            if effects:
                self._carry_out(now_s, process, effects)

    def _carry_out(self, now_s: float, process: SimulatedProcess, effects: Sequence[Effect]) -> None:
        heap, streams, number = self._heap, process.streams, self._numbers
        is_watched = self.keep_sent or self.extra_s is not None or self.on_sent is not None
        is_watched = is_watched or self.on_decided is not None
        # Nothing can come between messages of one time and consecutive numbers: they are one event.
        burst: list[PendingDelivery] = []
        for effect in effects:
            if isinstance(effect, After):
                number += 1
                at_s = now_s + effect.delay_s / process.rate
                heappush(heap, (at_s, number, process, process.address, effect.message, None))
                continue
            if isinstance(effect, SendEach):
                fan = None if is_watched else fan_of(now_s, streams, effect)
                if fan is not None:
                    heappush(heap, (fan.at_s, number + 1, self._actor, self._actor.address, fan, None))
                    number += len(fan.streams)
                    continue
                self._numbers = number
                self._carry_out(now_s, process, effect.singly())
                number = self._numbers
                continue
            stream = streams.get(effect.to)
            if stream is None or not stream.may_speak:
                self.dropped[type(effect.message).__name__] += 1
                self._note_decided(now_s, process.address, effect)
                continue
            if is_watched or stream.held is not None:
                self._numbers = number
                self._send(now_s, stream, effect)
                number = self._numbers
                continue
            at_s = now_s + stream.delay_s
            if at_s < stream.last_s:
                at_s = stream.last_s
            else:
                stream.last_s = at_s
            number += 1
            if burst and (burst[-1][0] != at_s or burst[-1][1] != number - 1):
                self._push_burst(burst)
                burst = []
            burst.append((at_s, number, stream.to, stream.speaker, effect.message, stream))
        self._numbers = number
        if burst:
            self._push_burst(burst)

    def _push_burst(self, burst: list[PendingDelivery]) -> None:
        first = burst[0]
        if len(burst) > 1:
            first = (first[0], first[1], self._actor, self._actor.address, Burst(burst), None)
        heappush(self._heap, first)

    def _send(self, now_s: float, stream: SimulatedStream, effect: Send) -> None:
        """Send where something observes messages; `_carry_out` has the fast path."""
        message, to = effect.message, effect.to
        if self.keep_sent:
            self.sent.append((now_s, stream.speaker, to, message))
        if self.on_sent is not None:
            self.on_sent(now_s, stream.speaker, to, message)
        if self.on_decided is not None and getattr(message, "why", None) is not None:
            self.on_decided(now_s, stream.speaker, to, message)
        self._send_on(stream, message, now_s)

    def _note_decided(self, now_s: float, sender: Address, effect: Send) -> None:
        """A decision about a client that has left is one all the same, as at `CoreHost`."""
        if self.on_decided is not None and effect.to.role == "client" and getattr(effect.message, "why", None):
            self.on_decided(now_s, sender, effect.to, effect.message)

    def _end(self, stream: SimulatedStream, reason: str | None, tell: SimulatedStream) -> None:
        """Close one direction; its sender receives `Gone` if it knew of the stream by the other direction (`tell`)."""
        stream.is_open = False
        if tell.is_known and reason is not None:
            self._push(self.now_s + stream.delay_s, tell.to, tell.sender, Gone(reason), None)

    def _send_on(self, stream: SimulatedStream, message: Message, now_s: float) -> None:
        if stream.held is not None:
            stream.held.append(message)
            return
        extra_s = self.extra_s(stream.sender, stream.to.address) if self.extra_s is not None else 0.0
        stream.last_s = max(stream.last_s, now_s + stream.delay_s + extra_s)
        self._push(stream.last_s, stream.to, stream.speaker, message, stream)

    def _push(
        self, at_s: float, to: SimulatedProcess, sender: Address, message: Message, stream: SimulatedStream | None
    ) -> None:
        self._numbers += 1
        heappush(self._heap, (at_s, self._numbers, to, sender, message, stream))
