"""How much three instances do, and a trace replayed at half of that or more; and what batching brings.

    python -m benchmarks.engine.throughput TRACE.csv.gz

Capacity is measured in a closed loop with requests drawn from the trace's own lengths. The trace is then replayed open
loop for `--duration` seconds, its clock scaled so that it asks for `--share` of the capacity in tokens.
"""

import asyncio
import itertools
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.harness import report
from benchmarks.harness.fleet_status import reports
from benchmarks.harness.report import BenchmarkResult, say
from benchmarks.harness.session import CampaignSession
from cli.launch.cluster_process import ClusterProcess
from dunlin.messages.fleet import FleetStatus, InstanceReport
from dunlin.workload.loadgen.load_generator import LoadGenerator, LoadTarget
from dunlin.workload.loadgen.stats import RequestRecord, RunReport, summarize
from dunlin.workload.traffic.prompts import Job, make_jobs
from dunlin.workload.traffic.trace import Arrival
from dunlin.workload.traffic.trace_formats import read_trace

_REPORTED_S = 0.7
"""After so long every instance has reported what it did."""
DEFAULT_TRACE = "data/traces/azure2023_conv_0_1699s.csv.gz"


@dataclass(frozen=True, slots=True)
class ThroughputPlan:
    """`share` is the part of the capacity that the replay asks for; `width` the streams of the closed loop."""

    trace: Path
    duration_s: float = 120.0
    capacity_s: float = 30.0
    share: float = 0.6
    width: int = 48
    streams: int = 16
    stream_tokens: int = 256


@dataclass(frozen=True, slots=True)
class StepCounts:
    """Step counters over all instances."""

    total: int
    mixed: int
    multi_row: int

    @staticmethod
    def of(status: FleetStatus) -> "StepCounts":
        found: list[InstanceReport] = [one for _, one in reports(status)]
        return StepCounts(
            sum(one.steps_total for one in found),
            sum(one.mixed_steps_total for one in found),
            sum(one.multi_row_steps_total for one in found),
        )

    @property
    def multi_row_share(self) -> float:
        """Steps of two rows or more among all."""
        return self.multi_row / self.total if self.total else 0.0

    def since(self, before: "StepCounts") -> "StepCounts":
        """What came after `before`."""
        return StepCounts(self.total - before.total, self.mixed - before.mixed, self.multi_row - before.multi_row)


class ClosedLoop:
    """`width` clients that send their next job as soon as the last one is done, for `seconds`."""

    def __init__(self, door: LoadTarget, jobs: Sequence[Job], width: int, seconds: float) -> None:
        self._door = door
        self._jobs = jobs
        self._width = width
        self._seconds = seconds
        self._turn = 0
        self._records: list[RequestRecord] = []

    async def tokens_per_s(self) -> float:
        """Prompt and output tokens of what was completed, per second. Raises RuntimeError if a request failed."""
        started_s = asyncio.get_running_loop().time()
        await asyncio.gather(*(self._client(started_s + self._seconds) for _ in range(self._width)))
        bad = [record.detail for record in self._records if record.outcome != "ok"]
        if bad:
            raise RuntimeError(f"{len(bad)} requests failed while the capacity was measured: {bad[0]}")
        # Every client finishes its last request: what ran beyond the end counts with its time.
        spent_s = asyncio.get_running_loop().time() - started_s
        return sum(record.input_tokens + record.output_tokens for record in self._records) / spent_s

    async def _client(self, until_s: float) -> None:
        while asyncio.get_running_loop().time() < until_s:
            job = replace(self._jobs[self._turn % len(self._jobs)], at_s=0.0)
            self._turn += 1
            self._records += await LoadGenerator([job], self._door).run()


def scaled(arrivals: Sequence[Arrival], wanted_tokens_per_s: float, duration_s: float, room: int) -> list[Arrival]:
    """The start of the trace, its clock stretched or shrunk: `duration_s` long, at `wanted_tokens_per_s` on average."""
    sizes = itertools.accumulate(min(one.input_tokens + one.output_tokens, room) for one in arrivals)
    count = sum(size < wanted_tokens_per_s * duration_s for size in sizes) + 1
    taken = arrivals[:count]
    factor = duration_s / max(taken[-1].at_s, 1e-9)
    return [replace(arrival, at_s=arrival.at_s * factor) for arrival in taken]


async def counted(session: CampaignSession, jobs: Sequence[Job]) -> tuple[RunReport, StepCounts]:
    """What became of `jobs`, and the steps that were made of them."""
    before = StepCounts.of(await session.status())
    found = summarize(await LoadGenerator(jobs, session.door).run())
    await asyncio.sleep(_REPORTED_S)
    return found, StepCounts.of(await session.status()).since(before)


async def batching(session: CampaignSession, plan: ThroughputPlan) -> tuple[float, float, StepCounts]:
    """Output tokens per second of one stream and of `plan.streams` at once, and the steps of the latter."""
    draw = random.Random(3)
    prompts = [draw.choices(range(session.vocabulary), k=32) for _ in range(plan.streams)]
    arrivals = [Arrival(0.0, len(prompt), plan.stream_tokens) for prompt in prompts]
    jobs = make_jobs(arrivals, session.max_positions, session.vocabulary, seed=3)
    alone, _ = await counted(session, jobs[:1])
    together, steps = await counted(session, jobs)
    return alone.output_tokens_per_s, together.output_tokens_per_s, steps


async def run(plan: ThroughputPlan, cluster: ClusterProcess) -> BenchmarkResult:
    """The measurement against a running cluster."""
    outcome = BenchmarkResult(
        f"throughput: {plan.trace.name} for {plan.duration_s:g} s at {plan.share:.0%} of the capacity"
    )
    arrivals = read_trace(plan.trace)
    async with CampaignSession(cluster) as session:
        await batching(session, replace(plan, stream_tokens=16))  # warm
        alone, together, batched = await batching(session, plan)
        say(f"one stream {alone:.0f} tokens/s, {plan.streams} streams {together:.0f}")
        lengths = [replace(arrival, at_s=0.0) for arrival in arrivals[:2000]]
        jobs = make_jobs(lengths, session.max_positions, session.vocabulary, seed=1)
        capacity = await ClosedLoop(session.door, jobs, plan.width, plan.capacity_s).tokens_per_s()
        say(f"capacity {capacity:.0f} tokens/s (prompt and output)")
        start = scaled(arrivals, plan.share * capacity, plan.duration_s, session.max_positions)
        found, replayed = await counted(session, make_jobs(start, session.max_positions, session.vocabulary, seed=2))
    outcome.figures |= {"one stream (tokens/s)": alone, f"{plan.streams} streams (tokens/s)": together}
    outcome.figures |= {"ratio": together / alone, "capacity (tokens/s, prompt + output)": capacity}
    _replayed(outcome, found, capacity, plan)
    _stepped(outcome, f"{plan.streams} streams", batched)
    _stepped(outcome, "replay", replayed)
    outcome.expect(batched.multi_row_share > 0.5, f"{batched.multi_row_share:.0%} of the steps held 2 rows or more")
    outcome.expect(together >= 3 * alone, f"{plan.streams} streams give {together / alone:.2f} times one, not 3")
    return outcome


def _replayed(outcome: BenchmarkResult, found: RunReport, capacity: float, plan: ThroughputPlan) -> None:
    asked = (found.input_tokens + found.output_tokens) / plan.duration_s
    outcome.figures |= {"asked for, share of the capacity": asked / capacity, "requests": found.requests}
    outcome.figures |= {"completed": found.completed, "errors": found.errors, "refused": found.refused}
    outcome.figures |= {"clipped share": found.clipped_share, "output tokens/s": found.output_tokens_per_s}
    for name in ("ttft_s", "tpot_s", "itl_s", "jct_s", "lateness_s"):
        spread = getattr(found, name)
        outcome.figures[f"{name} p50 / p90 / p99 / max"] = (spread.p50, spread.p90, spread.p99, spread.max)
    outcome.expect(found.errors == 0, f"{found.errors} errors: {', '.join(found.first_errors)}")
    outcome.expect(found.refused == 0, f"{found.refused} refused")
    outcome.expect(asked >= 0.5 * capacity, f"the replay asked only for {asked / capacity:.0%} of the capacity")


def _stepped(outcome: BenchmarkResult, of: str, steps: StepCounts) -> None:
    outcome.figures |= {f"{of}: steps": steps.total, f"{of}: steps with prefill and decode": steps.mixed}
    outcome.figures |= {f"{of}: share of steps with 2 rows or more": steps.multi_row_share}
    outcome.expect(steps.mixed > 0, f"{of}: no step held prefill and decode rows")


def find_trace(given: str | None) -> Path:
    """The trace named, or the default one in the folder that DUNLIN_SHARED names."""
    if given:
        return Path(given)
    shared = os.environ.get("DUNLIN_SHARED")
    if not shared:
        raise SystemExit("name a trace, or the folder with the public ones in DUNLIN_SHARED")
    return Path(shared) / DEFAULT_TRACE


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("trace", nargs="?", help="a trace (default: Azure's conversations in $DUNLIN_SHARED)")
    arguments.add_argument("--duration", type=float, default=120.0, metavar="S")
    arguments.add_argument("--share", type=float, default=0.6)
    given = arguments.parse_args(argv)
    plan = ThroughputPlan(find_trace(given.trace), given.duration, share=given.share)
    with ClusterProcess("--instances", str(given.instances)) as cluster:
        outcome = asyncio.run(run(plan, cluster))
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
