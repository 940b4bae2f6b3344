"""What a token costs at the public doors, in CPU time of the door's process.

    python -m benchmarks.doors.token_cost --streams 16,64 --json

Both doors are open in this process over a real core and a live host; a fake instance makes tokens at a steady rate, and
the clients are another process. Side by side, in turns: a bare gRPC server that writes the bytes of the gRPC door's
own events (the floor of anything over gRPC in Python), and the same requests read without any door (core and fake
alone). Figures are medians of the rounds, in µs of CPU a token; beginnings and ends of requests are part of them, and
so are the core and the fake in the doors' figures. Fewer events than tokens mean that the door was behind, or its
client, and that tokens were put together; the floor never does that.
"""

import argparse
import asyncio
import base64
import json
import statistics
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import uvloop

from benchmarks.doors.cost_client import ReceivedStreams, StreamOrder
from benchmarks.doors.door_fixture import DoorFixture, stage
from benchmarks.harness import report
from benchmarks.harness.report import BenchmarkResult

ROOT = Path(__file__).resolve().parents[2]
LINE_LIMIT_BYTES = 64 << 20
END_S = 10.0
NAMES = {
    "grpc": "gRPC door",
    "floor": "bare gRPC server, the same events",
    "sse": "SSE door",
    "core": "core and fake instance, no door",
}


@dataclass(frozen=True, slots=True)
class TokenCostPlan:
    """What to measure. `most_us`: what a token may cost at each door, 0 for anything."""

    streams: tuple[int, ...]
    tokens: int
    rounds: int
    step_s: float
    most_us: dict[str, float]


@dataclass(frozen=True, slots=True)
class TokenCost:
    """One round of one way: µs of CPU and events, both a token."""

    us: float
    events: float


class ClientProcess:
    """Owns the clients' process. It is started before any gRPC is, so that nothing of it is inherited."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def receive(self, wanted: StreamOrder) -> ReceivedStreams:
        """Have the streams read."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(wanted)).encode() + b"\n")
        line = await self._process.stdout.readline()
        if not line:
            raise SystemExit("the clients' process ended; its error is above")
        return ReceivedStreams(**json.loads(line))

    async def end(self) -> None:
        """Let it go; kill it if it does not."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), END_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


@asynccontextmanager
async def clients() -> AsyncIterator[ClientProcess]:
    """The clients' process, until the end of the block."""
    command = (sys.executable, "-m", "benchmarks.doors.cost_client")
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE, limit=LINE_LIMIT_BYTES)
    made = ClientProcess(process)
    try:
        yield made
    finally:
        await made.end()


class TokenCostCampaign:
    """Measures one plan on one stage, and notes whatever a client did not get whole."""

    def __init__(self, plan: TokenCostPlan, on: DoorFixture, readers: ClientProcess, outcome: BenchmarkResult) -> None:
        self._plan = plan
        self._on = on
        self._readers = readers
        self._outcome = outcome

    async def run(self) -> None:
        """Record the events for the floor, then measure every number of streams."""
        await self._record()
        for streams in self._plan.streams:
            found: dict[str, list[TokenCost]] = {way: [] for way in NAMES}
            for way in NAMES:
                await self._cost(way, streams, min(self._plan.tokens, 10))  # warm
            for _ in range(self._plan.rounds):
                for way, costs in found.items():
                    costs.append(await self._cost(way, streams, self._plan.tokens))
            self._conclude(streams, found)

    async def _record(self) -> None:
        """One stream of the gRPC door, whose events the floor will write."""
        received = await self._read("grpc", 1, self._plan.tokens)
        self._on.floor.events = [base64.b64decode(event) for event in received.first]

    async def _read(self, way: str, streams: int, tokens: int) -> ReceivedStreams:
        kind = "sse" if way == "sse" else "grpc"
        return await self._readers.receive(StreamOrder(kind, self._on.sources[way], streams, tokens))

    async def _cost(self, way: str, streams: int, tokens: int) -> TokenCost:
        cpu_s = time.process_time()
        if way == "core":
            count = events = await self._on.without_door(streams, tokens)
            whole = count == streams * tokens
        else:
            # The floor writes all of its events, however many are asked for.
            tokens = self._plan.tokens if way == "floor" else tokens
            received = await self._read(way, streams, tokens)
            count, events = streams * tokens, received.events
            whole = received.texts == [self._on.text(tokens)]
        cpu_s = time.process_time() - cpu_s
        self._outcome.expect(whole, f"{NAMES[way]}, {streams} streams: a text is not what the instance said")
        return TokenCost(cpu_s / count * 1e6, events / count)

    def _conclude(self, streams: int, found: dict[str, list[TokenCost]]) -> None:
        figures, middle = self._outcome.figures, {}
        for way, costs in found.items():
            us = sorted(cost.us for cost in costs)
            middle[way] = statistics.median(us)
            figures[f"{streams} streams, {NAMES[way]} (µs a token: median, least, most)"] = middle[way], us[0], us[-1]
            most_us = self._plan.most_us.get(way, 0.0)
            text = f"{NAMES[way]}, {streams} streams: {middle[way]:.1f} µs a token, at most {most_us:g} wanted"
            self._outcome.expect(not most_us or middle[way] <= most_us, text)
        figures[f"{streams} streams, gRPC door against the bare server"] = middle["grpc"] / middle["floor"]
        for way in ("grpc", "sse"):
            events = statistics.median(cost.events for cost in found[way])
            figures[f"{streams} streams, {NAMES[way]}: events a token"] = events


async def measure(plan: TokenCostPlan) -> BenchmarkResult:
    """The whole campaign, in the running event loop."""
    outcome = BenchmarkResult(
        f"doors: {plan.tokens} tokens a stream, one each {plan.step_s * 1e3:g} ms, {plan.rounds} rounds"
    )
    async with clients() as readers, stage(plan.step_s) as on:
        await TokenCostCampaign(plan, on, readers, outcome).run()
    return outcome


def run(plan: TokenCostPlan) -> BenchmarkResult:
    """The whole campaign, on the event loop that the services use."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure(plan))


def at_least_one(text: str) -> int:
    """A whole number above 0. Raises ValueError."""
    number = int(text)
    if number < 1:
        raise ValueError(f"{text!r} is not above 0")
    return number


def numbers(text: str) -> tuple[int, ...]:
    """Such numbers with commas between them. Raises ValueError."""
    return tuple(map(at_least_one, text.split(",")))


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--streams", type=numbers, default=(16, 64), metavar="N,N", help="open at once (16,64)")
    arguments.add_argument("--tokens", type=at_least_one, default=200, help="of each stream (200)")
    arguments.add_argument("--rounds", type=at_least_one, default=5, help="of each way (5)")
    arguments.add_argument("--step-ms", type=float, default=10.0, help="between two tokens of a stream (10)")
    arguments.add_argument("--most-grpc-us", type=float, default=40.0, help="wanted over gRPC; 0: anything (40)")
    arguments.add_argument("--most-sse-us", type=float, default=80.0, help="wanted over SSE; 0: anything (80)")
    arguments.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = arguments.parse_args(argv)
    most_us = {"grpc": given.most_grpc_us, "sse": given.most_sse_us}
    plan = TokenCostPlan(given.streams, given.tokens, given.rounds, given.step_ms / 1e3, most_us)
    return report.finish(run(plan), given.json)


if __name__ == "__main__":
    sys.exit(main())
