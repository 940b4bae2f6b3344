"""More load than there is room for: what is served in time must not become less, and a refusal must be quick.

    python -m benchmarks.engine.overload

Measures first what one instance serves in a closed loop, and how quickly it answers alone; then sends, open loop and
through HTTP, 1, 2 and 10 times as many requests a second. A request is good if its first token came within
`--slo-ttft-s` of its arrival, and its others each within `--slo-tpot` times what they take alone.
"""

import asyncio
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness import report
from benchmarks.harness.fleet_status import reports
from benchmarks.harness.report import BenchmarkResult, say
from benchmarks.harness.session import CampaignSession
from benchmarks.harness.verified_load import make_jobs
from cli.launch.cluster_process import ClusterProcess
from dunlin.runtime.procfs import process_cpu_s
from dunlin.workload.loadgen.load_generator import LoadGenerator, LoadTarget
from dunlin.workload.loadgen.stats import RequestRecord, percentiles
from dunlin.workload.traffic.arrival_processes import poisson_arrivals
from dunlin.workload.traffic.prompts import Job

_REPORTED_S = 0.7
"""After so long every instance has reported what it did."""
GOALS = {2.0: 0.9, 10.0: 0.8}
"""What part of the goodput at capacity must be left at so many times the capacity."""


@dataclass(frozen=True, slots=True)
class OverloadPlan:
    """`width` requests of `prompt_tokens + output_tokens` fill the instance's slots."""

    width: int = 16
    prompt_tokens: int = 128
    output_tokens: int = 128
    capacity_s: float = 10.0
    duration_s: float = 20.0
    slo_ttft_s: float = 2.0
    slo_tpot: float = 20.0
    factors: tuple[float, ...] = (1.0, 2.0, 10.0)


@dataclass(frozen=True, slots=True)
class OverloadSlo:
    """What makes an answer a good one; seconds."""

    ttft_s: float
    tpot_s: float

    def holds(self, record: RequestRecord) -> bool:
        """Whether it came in time."""
        if record.outcome != "ok":
            return False
        per_token_s = (record.token_s[-1] - record.token_s[0]) / max(1, len(record.token_s) - 1)
        return record.token_s[0] - record.at_s <= self.ttft_s and per_token_s <= self.tpot_s


class Overload:
    """One cluster, and the jobs that it is given."""

    def __init__(self, door: LoadTarget, vocabulary: int, plan: OverloadPlan) -> None:
        self._door = door
        self._plan = plan
        songs = make_jobs(512, plan.prompt_tokens, plan.output_tokens, vocabulary, seed=7)
        self._songs = itertools.cycle(songs)

    async def alone(self) -> tuple[float, float]:
        """Time to the first token, and per further token, of requests that come one by one; medians, seconds."""
        records = [(await LoadGenerator([self._job(0.0)], self._door).run())[0] for _ in range(8)]
        firsts = percentiles(record.token_s[0] - record.sent_s for record in records)
        others = percentiles((one.token_s[-1] - one.token_s[0]) / (len(one.token_s) - 1) for one in records)
        return firsts.p50, others.p50

    async def capacity(self) -> float:
        """Requests a second in a closed loop."""
        loop = asyncio.get_running_loop()
        began_s, done = loop.time(), 0

        async def client() -> None:
            nonlocal done
            while loop.time() - began_s < self._plan.capacity_s:
                await LoadGenerator([self._job(0.0)], self._door).run()
                done += 1

        await asyncio.gather(*(client() for _ in range(self._plan.width)))
        return done / (loop.time() - began_s)

    async def press(self, rate: float, seed: int) -> list[RequestRecord]:
        """`rate` requests a second, whatever becomes of them."""
        times = itertools.takewhile(lambda at_s: at_s < self._plan.duration_s, poisson_arrivals(rate, seed))
        return await LoadGenerator([self._job(at_s) for at_s in times], self._door).run()

    def _job(self, at_s: float) -> Job:
        song = next(self._songs)
        return Job(at_s, song.prompt, song.max_tokens, seed=song.seed)


def _note(
    outcome: BenchmarkResult, factor: float, records: Sequence[RequestRecord], slo: OverloadSlo, duration_s: float
) -> float:
    """The figures of one load; its goodput, requests a second."""
    good = sum(slo.holds(record) for record in records)
    refusals = percentiles(record.end_s - record.sent_s for record in records if record.outcome == "refused")
    firsts = percentiles(record.token_s[0] - record.at_s for record in records if record.outcome == "ok")
    failed = [record.detail for record in records if record.outcome == "error"]
    name = f"{factor:g}x"
    outcome.figures[f"{name}: requests, completed, refused"] = (
        len(records),
        sum(record.outcome == "ok" for record in records),
        sum(record.outcome == "refused" for record in records),
    )
    outcome.figures[f"{name}: goodput (requests/s)"] = good / duration_s
    outcome.figures[f"{name}: time to first token, p50 / p99 (s)"] = (firsts.p50, firsts.p99)
    outcome.figures[f"{name}: refused after, p50 / p99 / max (s)"] = (refusals.p50, refusals.p99, refusals.max)
    outcome.expect(not failed, f"{name}: {len(failed)} requests failed: {failed[:1]}")
    say(f"{name}: {len(records)} requests, {good} good, {good / duration_s:.2f} a second")
    return good / duration_s


async def run(plan: OverloadPlan, cluster: ClusterProcess) -> BenchmarkResult:
    """The campaign against a running cluster."""
    outcome = BenchmarkResult(
        f"overload: {plan.prompt_tokens} tokens in, {plan.output_tokens} out, {plan.width} at once"
    )
    async with CampaignSession(cluster) as session:
        overload = Overload(session.http_door, session.vocabulary, plan)
        await overload.capacity()  # warm
        alone = await overload.alone()
        capacity = await overload.capacity()
        say(f"capacity {capacity:.2f} requests/s; alone {alone[0]:.3f} s to the first token, {alone[1]:.4f} s each")
        slo = OverloadSlo(plan.slo_ttft_s, plan.slo_tpot * alone[1])
        outcome.figures["capacity (requests/s)"] = capacity
        outcome.figures["alone: first token, each further (s)"] = alone
        outcome.figures["good: first token within, each further within (s)"] = (slo.ttft_s, slo.tpot_s)
        goodput: dict[float, float] = {}
        for seed, factor in enumerate(plan.factors):
            before = await ResourceUsage.by(session)
            records = await overload.press(factor * capacity, seed)
            await asyncio.sleep(_REPORTED_S)
            goodput[factor] = _note(outcome, factor, records, slo, plan.duration_s)
            (await ResourceUsage.by(session)).note(outcome, f"{factor:g}x", before, len(records))
        await _judge(outcome, goodput, session)
    return outcome


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """What the processes have used and done so far; processor time in seconds."""

    dispatcher_s: float
    engine_s: float
    tokens: int
    preemptions: int

    @staticmethod
    async def by(session: CampaignSession) -> "ResourceUsage":
        status = await session.status()
        (pid,) = [member.pid for member in status.members if member.dispatcher is not None]
        ((_, engine),) = reports(status)
        return ResourceUsage(
            process_cpu_s(pid), process_cpu_s(engine.engine_pid), engine.tokens_total, engine.preemptions_total
        )

    def note(self, outcome: BenchmarkResult, name: str, before: "ResourceUsage", requests: int) -> None:
        """What the load cost."""
        each_ms = (self.dispatcher_s - before.dispatcher_s) / requests * 1e3
        outcome.figures[f"{name}: the dispatcher's time per request sent (ms)"] = each_ms
        engine_s, tokens = self.engine_s - before.engine_s, self.tokens - before.tokens
        outcome.figures[f"{name}: the engine's time (s), tokens per second of it"] = (engine_s, tokens / engine_s)
        outcome.figures[f"{name}: preemptions"] = self.preemptions - before.preemptions


async def _judge(outcome: BenchmarkResult, goodput: dict[float, float], session: CampaignSession) -> None:
    for factor, goal in GOALS.items():
        if factor in goodput and goodput.get(1.0):
            share = goodput[factor] / goodput[1.0]
            outcome.figures[f"{factor:g}x: goodput / goodput at 1x"] = share
            outcome.expect(share >= goal, f"{factor:g}x: {share:.0%} of the goodput is left, {goal:.0%} is the goal")
    dispatcher = await session.dispatcher()
    outcome.expect(dispatcher.failed_total == 0, f"the dispatcher counts {dispatcher.failed_total} failed requests")


def cluster_flags(plan: OverloadPlan) -> tuple[str, ...]:
    """What `dunlin up` needs for this campaign."""
    slots = plan.width * (plan.prompt_tokens + plan.output_tokens)
    return ("--instances", "1", "--slots", str(slots), "--max-wait-s", str(plan.slo_ttft_s / 4))


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    default = OverloadPlan()
    arguments.add_argument("--duration-s", type=float, default=default.duration_s)
    arguments.add_argument("--slo-ttft-s", type=float, default=default.slo_ttft_s)
    arguments.add_argument("--slo-tpot", type=float, default=default.slo_tpot, help="times what a token takes alone")
    given = arguments.parse_args(argv)
    plan = OverloadPlan(duration_s=given.duration_s, slo_ttft_s=given.slo_ttft_s, slo_tpot=given.slo_tpot)
    with ClusterProcess(*cluster_flags(plan)) as cluster:
        outcome = asyncio.run(run(plan, cluster))
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
