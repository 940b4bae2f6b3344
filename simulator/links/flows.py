"""Bytes that share links: each flow gets its max-min fair share, after all flows that are more urgent.

A payload goes in chunks. A flow that is more urgent than those under way waits for the rest of one chunk, then goes
before them; it never waits for a payload. Between two changes all rates are constant, so the work grows with the
flows that begin and end, not with bytes or chunks. Knows neither engines nor nodes. Pure.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf

Later = Callable[[float, Callable[[float], None]], None]
"""`later(delay_s, call)` calls `call(now_s)` after `delay_s` seconds."""
CHUNK_BYTES = 1 << 20
"""As the live transports cut payloads (`dunlin/transport/sockets/sender.py`)."""
_THROUGH_BYTES = 1e-3
"""What is left by rounding when a flow is through."""


@dataclass(eq=False, slots=True)
class SimulatedLink:
    """One direction of a path for bytes, `bytes_per_s` in all (infinite: without limit). `carried_bytes` so far."""

    name: str
    bytes_per_s: float = inf
    carried_bytes: float = 0.0
    flows: "list[Flow]" = field(default_factory=list)

    @property
    def is_full(self) -> bool:
        """Whether the flows under way leave nothing of it."""
        rate = 0.0
        for flow in self.flows:
            rate += flow.rate
        return rate >= self.bytes_per_s * (1.0 - 1e-9)


@dataclass(eq=False, slots=True)
class Meter:
    """Seconds of an engine's own work that flows take away while they go on."""

    seconds: float = 0.0
    flows: "list[Flow]" = field(default_factory=list)

    def take(self, now_s: float) -> float:
        """The seconds since the last call."""
        for flow in self.flows:
            flow.settle(now_s)
        taken, self.seconds = self.seconds, 0.0
        return taken


@dataclass(eq=False, slots=True)
class Flow:
    """Bytes under way over the links of `path`, at most `most_bytes_per_s`; a lower `priority` is more urgent.

    At `since_s` there were `left_bytes`, and since then it goes at `rate`. `arrived(now_s)` is called at its end.
    `meters`: for each engine that it slows, the seconds that a byte takes from it. `due_s`: the time of its timer.
    """

    number: int
    path: tuple[SimulatedLink, ...]
    whole_bytes: float
    most_bytes_per_s: float
    priority: int
    arrived: Callable[[float], None]
    meters: Sequence[tuple[Meter, float]] = ()
    left_bytes: float = 0.0
    rate: float = 0.0
    since_s: float = 0.0
    due_s: float = inf
    is_over: bool = False

    def settle(self, now_s: float) -> None:
        """Take off what was carried since `since_s`."""
        passed_s, self.since_s = now_s - self.since_s, now_s
        if self.rate <= 0.0:
            return
        moved = self.left_bytes if self.rate == inf else min(self.left_bytes, self.rate * passed_s)
        self.left_bytes -= moved
        for link in self.path:
            link.carried_bytes += moved
        for meter, byte_s in self.meters:
            meter.seconds += moved * byte_s

    @property
    def end_in_s(self) -> float:
        """Seconds from `since_s` to its end at this rate."""
        if self.left_bytes <= _THROUGH_BYTES or self.rate == inf:
            return 0.0
        return self.left_bytes / self.rate if self.rate > 0.0 else inf


class Flows:
    """Owns the flows under way."""

    def __init__(self, later: Later, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._later = later
        self._chunk_bytes = chunk_bytes
        self._numbers = 0

    def start(
        self,
        now_s: float,
        path: Iterable[SimulatedLink],
        byte_count: float,
        priority: int,
        arrived: Callable[[float], None],
        most_bytes_per_s: float = inf,
        meters: Sequence[tuple[Meter, float]] = (),
    ) -> Flow:
        """Carry bytes; `arrived(now_s)` is called when the last one is there, unless the flow is stopped before."""
        self._numbers += 1
        rate = most_bytes_per_s
        flow = Flow(self._numbers, tuple(path), byte_count, rate, priority, arrived, meters, byte_count, since_s=now_s)
        wait_s = self._rest_of_chunk_s(now_s, flow)
        if wait_s > 0.0:
            self._later(wait_s, lambda at_s: self._join(at_s, flow))
        else:
            self._join(now_s, flow)
        return flow

    def stop(self, now_s: float, flow: Flow) -> float:
        """End a flow before its time, if it is not over; returns the bytes that were not carried."""
        if not flow.is_over:
            flow.settle(now_s)
            self._leave(now_s, flow)
        return flow.left_bytes

    def _rest_of_chunk_s(self, now_s: float, flow: Flow) -> float:
        """Seconds until the chunk of a less urgent flow that is on the wire is through."""
        wait_s = 0.0
        for link in flow.path:
            later = [one for one in link.flows if one.priority > flow.priority and one.rate > 0.0]
            if later and link.bytes_per_s < inf and link.is_full:
                first = later[0]
                first.settle(now_s)
                done = (first.whole_bytes - first.left_bytes) % self._chunk_bytes
                wait_s = max(wait_s, min(self._chunk_bytes - done, first.left_bytes) / link.bytes_per_s)
        return wait_s

    def _join(self, now_s: float, flow: Flow) -> None:
        if flow.is_over:
            return
        flow.since_s = now_s
        for link in flow.path:
            link.flows.append(flow)
        for meter, _ in flow.meters:
            meter.flows.append(flow)
        self._share(now_s, [flow, *_neighbours(flow)])

    def _leave(self, now_s: float, flow: Flow) -> None:
        flow.is_over, flow.rate = True, 0.0
        others = _neighbours(flow)
        for flows in (*(link.flows for link in flow.path), *(meter.flows for meter, _ in flow.meters)):
            if flow in flows:
                flows.remove(flow)
        if others:
            self._share(now_s, others)

    def _share(self, now_s: float, changed: list[Flow]) -> None:
        """Share the links anew among all flows that these compete with, directly or not."""
        flows = _connected(changed)
        for flow in flows:
            flow.settle(now_s)
            flow.rate = 0.0
        free = {link: link.bytes_per_s for flow in flows for link in flow.path if link.bytes_per_s < inf}
        for priority in sorted({flow.priority for flow in flows}):
            _fill([flow for flow in flows if flow.priority == priority], free)
        for flow in flows:
            self._wait(now_s, flow)

    def _wait(self, now_s: float, flow: Flow) -> None:
        """Set the flow's timer, unless it has one that comes before its end and will set the next."""
        end_s = now_s + flow.end_in_s
        if end_s >= flow.due_s or end_s == inf:
            return
        flow.due_s = end_s
        self._later(end_s - now_s, lambda at_s: self._due(at_s, flow, end_s))

    def _due(self, now_s: float, flow: Flow, due_s: float) -> None:
        if flow.is_over or flow.due_s != due_s:
            return
        flow.due_s = inf
        flow.settle(now_s)
        if flow.end_in_s > 1e-12 * now_s:
            return self._wait(now_s, flow)
        flow.left_bytes = 0.0
        self._leave(now_s, flow)
        return flow.arrived(now_s)


def _neighbours(flow: Flow) -> list[Flow]:
    """Other flows on its links, each once, in the order in which they began."""
    found = {other.number: other for link in flow.path if link.bytes_per_s < inf for other in link.flows}
    found.pop(flow.number, None)
    return [found[number] for number in sorted(found)]


def _connected(flows: list[Flow]) -> list[Flow]:
    """These flows and all that they compete with over any number of links, in the order in which they began."""
    found = {flow.number: flow for flow in flows}
    todo = list(flows)
    while todo:
        for other in _neighbours(todo.pop()):
            if other.number not in found:
                found[other.number] = other
                todo.append(other)
    return [found[number] for number in sorted(found)]


def _fill(flows: list[Flow], free: dict[SimulatedLink, float]) -> None:
    """Max-min fair rates for flows of one priority out of what is `free`, which shrinks."""
    while flows:
        counts: dict[SimulatedLink, int] = {}
        for flow in flows:
            for link in flow.path:
                if link in free:
                    counts[link] = counts.get(link, 0) + 1
        tightest = min(counts, key=lambda link: free[link] / counts[link], default=None)
        share = free[tightest] / counts[tightest] if tightest is not None else inf
        filled = [flow for flow in flows if flow.most_bytes_per_s <= share]
        if not filled:
            filled = [flow for flow in flows if tightest is None or tightest in flow.path]
        for flow in filled:
            flow.rate = min(share, flow.most_bytes_per_s)
            for link in flow.path:
                if link in free:
                    left = free[link] - flow.rate
                    free[link] = left if left > 1e-9 * link.bytes_per_s else 0.0
        flows = [flow for flow in flows if flow not in filled]
