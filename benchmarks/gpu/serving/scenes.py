"""What clients ask of a cluster with one model on one GPU: many at once, chat alone, chat beside other work."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.gpu.results import Results
from benchmarks.gpu.serving.processes import core_seconds, since
from benchmarks.harness.fleet_status import reports
from benchmarks.harness.session import CampaignSession
from cli.launch.cluster_process import ClusterProcess
from dunlin.workload.loadgen.load_generator import LoadGenerator
from dunlin.workload.loadgen.stats import Percentiles, RequestRecord, summarize
from dunlin.workload.traffic.prompts import Job, PromptTexts
from dunlin.workload.traffic.workload_spec import read_workload

PART = "serving"
CHAT, BATCH = "chat", "batch"


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """`widths` of requests of `burst` (prompt, answer) tokens that come at once. Chat comes at random moments, `rate` a
    second for `chat_s`, beside `batch` requests of `batch_tokens`, and beside prompts of `long_tokens` every `long_s`.
    """

    widths: tuple[int, ...] = (1, 16, 64, 256)
    burst: tuple[int, int] = (128, 128)
    rate: float = 6.0
    chat_s: float = 12.0
    chat: tuple[int, int] = (512, 128)
    batch: int = 256
    batch_tokens: tuple[int, int] = (1024, 128)
    long_tokens: tuple[int, int] = (30_000, 16)
    long_s: float = 3.0


TINY = ServingPlan((1, 4), (16, 8), 2.0, 3.0, (24, 8), 4, (48, 8), (300, 4), 1.0)


class ServingScenes:
    """Owns a client of a running cluster; each scene puts its figures into `results`."""

    def __init__(self, plan: ServingPlan, session: CampaignSession, cluster: ClusterProcess, results: Results) -> None:
        self._plan = plan
        self._session = session
        self._cluster = cluster
        self._results = results
        self._texts = PromptTexts(session.vocabulary, seed=5)

    async def run(self) -> None:
        """All of them, after a few requests that do not count."""
        await self._play(self._burst(2, self._plan.burst))
        for width in self._plan.widths:
            await self._together(width)
        await self._beside("chat alone", [])
        batch = self._burst(self._plan.batch, self._plan.batch_tokens, BATCH)
        await self._beside("chat beside batch work", batch)
        times = range(int(self._plan.chat_s / self._plan.long_s))
        long = self._burst(len(times), self._plan.long_tokens, "long")
        spaced = [replace(job, at_s=self._plan.long_s * (at + 0.5)) for at, job in zip(times, long, strict=True)]
        await self._beside("chat beside long prompts", spaced)
        await self._beside("chat beside both", [*batch, *spaced])

    async def _together(self, width: int) -> None:
        """So many requests at once."""
        before = core_seconds(self._cluster.pid)
        records = await self._play(self._burst(width, self._plan.burst))
        found = summarize(records)
        used = since(before, core_seconds(self._cluster.pid))
        name = f"{width} x {self._plan.burst}"
        figures = {
            "tokens/s": found.output_tokens_per_s, "TTFT p50, ms": 1e3 * found.ttft_s.p50,
            "TPOT p50, ms": 1e3 * found.tpot_s.p50, "s": found.span_s,
        }  # fmt: skip
        self._results.put(PART, name, figures)
        self._results.put("core-seconds", name, used)

    async def _beside(self, name: str, other: Sequence[Job]) -> None:
        """Chat beside `other` requests."""
        plan, before = self._plan, core_seconds(self._cluster.pid)
        lengths = "fixed({},{})".format(*plan.chat)
        spec = f"gamma:rate={plan.rate:g},cv=1,duration={plan.chat_s:g},lengths={lengths}"
        chat = [
            Job(each.at_s, self._texts.random_tokens(each.input_tokens), each.output_tokens, label=CHAT)
            for each in read_workload(spec, seed=1)
        ]
        counters = await self._counters()
        records = await self._play(sorted([*chat, *other], key=lambda job: job.at_s))
        for label in sorted({record.label for record in records}):
            found = summarize([record for record in records if record.label == label])
            figures = {
                "requests": found.requests, "tokens/s in and out": _tokens(records, label) / _span(records),
                "TTFT ms": _ms(found.ttft_s), "TPOT ms": _ms(found.tpot_s), "s": found.span_s,
            }  # fmt: skip
            self._results.put(PART, f"{name}: {label}", figures)
        after = await self._counters()
        self._results.put("scheduler", name, {each: after[each] - counters[each] for each in after})
        self._results.put("core-seconds", name, since(before, core_seconds(self._cluster.pid)))

    async def _play(self, jobs: Sequence[Job]) -> list[RequestRecord]:
        records = await LoadGenerator(jobs, self._session.door).run()
        bad = [record.detail for record in records if record.outcome != "ok"]
        self._results.expect(not bad, f"{len(bad)} of {len(jobs)} requests failed: {bad[:1]}")
        return records

    async def _counters(self) -> dict[str, int]:
        await asyncio.sleep(0.7)  # until every instance has reported
        found = [one for _, one in reports(await self._session.status())]
        return {
            "steps": sum(one.steps_total for one in found), "mixed": sum(one.mixed_steps_total for one in found),
            "preemptions": sum(one.preemptions_total for one in found),
        }  # fmt: skip

    def _burst(self, count: int, tokens: tuple[int, int], label: str = "") -> list[Job]:
        inputs, outputs = tokens
        return [Job(0.0, self._texts.random_tokens(inputs), outputs, label=label) for _ in range(count)]


def _tokens(records: Sequence[RequestRecord], label: str) -> int:
    return sum(record.input_tokens + len(record.token_s) for record in records if record.label == label)


def _span(records: Sequence[RequestRecord]) -> float:
    return max(max((record.end_s for record in records), default=0.0), 1e-9)


def _ms(spread: Percentiles) -> str:
    return f"p50 {1e3 * spread.p50:.1f} p99 {1e3 * spread.p99:.1f} max {1e3 * spread.max:.1f}"
