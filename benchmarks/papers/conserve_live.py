"""Chat beside a batch job on real processes: ConServe's comparison (6.3) at the size of this machine.

    python -m benchmarks.papers.conserve_live --model A --threads 2 [--minutes 1.5] [--rounds 2]

Each system in turn gets a cluster of one instance, the same chat requests, and a job of the batch door that never gets
to its end; `online_only` has no job. The rate of chat is `CHAT_SHARE` of what the profile says the instance could do.
The p99 of the first `online_only` are the objectives of all others, as in the paper. Rates of the job count the lines
whose results were committed while chat came. What is compared ran on one machine in one run, which should do nothing
else.
"""

import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import report
from benchmarks.harness.fleet_status import reports
from benchmarks.harness.model_shapes import SHAPES
from benchmarks.harness.report import BenchmarkResult, say
from benchmarks.harness.session import CampaignSession
from cli.launch.cluster_process import ClusterProcess, dunlin_command
from dunlin.cost.models import BatchCounts, StepTimes
from dunlin.cost.timing_loader import load_timing
from dunlin.engine.decoder.loading.random_checkpoint import write_random_checkpoint
from dunlin.workload.loadgen.load_generator import LoadGenerator
from dunlin.workload.loadgen.stats import RequestRecord, percentiles, request_tpot_s, request_ttft_s
from dunlin.workload.traffic.prompts import PromptTexts, make_jobs
from dunlin.workload.traffic.workload_spec import read_workload

SYSTEMS = ("online_only", "vllm++", "conserve", "unified")
CHAT_SHARE = 0.3
CHAT_TOKENS, CHAT_ANSWER = 96, 32
BATCH_TOKENS, BATCH_ANSWER = 384, 32
ROWS = 8
"""Rows of a usual step, of the estimate of what the instance could do."""
WARM_UP_S = 8.0
"""The job runs for so long before chat comes."""
BATCHES = {"segment_lines": 8, "lines_in_flight": 64, "commit_interval_s": 0.5}
"""Results are committed often, so that their count follows what is computed."""


@dataclass(frozen=True, slots=True)
class ConserveLivePlan:
    """One cluster per system and round; chat comes for `chat_s`."""

    model: str = "A"
    threads: int = 2
    chat_s: float = 90.0
    rounds: int = 1
    systems: tuple[str, ...] = SYSTEMS
    cv: float = 1.0
    lines: int = 100_000


@dataclass(slots=True)
class LiveRow:
    """What one system did in one round; times in seconds, rates in tokens per second of prompts and answers."""

    ttft_s: list[float] = field(default_factory=list)
    tpot_s: list[float] = field(default_factory=list)
    chat_rate: float = 0.0
    batch_rate: float = 0.0
    preemptions: int = 0
    failed: int = 0


def usual_rate(times: StepTimes) -> float:
    """Chat requests per second that the instance could do, `ROWS` at a time, by its profile."""
    decode, prefill = BatchCounts(), BatchCounts()
    for _ in range(ROWS):
        decode.add_decode(CHAT_TOKENS + CHAT_ANSWER // 2)
    prefill.add_prefill(CHAT_TOKENS, 0)
    return 1.0 / (times.step_s(prefill) + CHAT_ANSWER * times.step_s(decode) / ROWS)


def batch_lines(count: int, vocabulary: int) -> Iterator[dict[str, Any]]:
    """The job's lines; no prompt begins like another."""
    texts = PromptTexts(vocabulary, seed=7)
    for number in range(count):
        prompt = [int(token) for token in texts.random_tokens(BATCH_TOKENS)]
        body = {"prompt": prompt, "max_tokens": BATCH_ANSWER, "temperature": 0, "ignore_eos": True}
        yield {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}


async def measure(plan: ConserveLivePlan, system: str, cluster: ClusterProcess, rate: float, job: Path) -> LiveRow:
    """One system's row."""
    chat = f"gamma:rate={rate:.3f},cv={plan.cv:g},duration={plan.chat_s:g},lengths=fixed({CHAT_TOKENS},{CHAT_ANSWER})"
    async with CampaignSession(cluster) as session:
        prompts = make_jobs(read_workload(chat, seed=1), session.max_positions, session.vocabulary, seed=2)
        batch = "" if system == "online_only" else (await session.client.batches.create(job)).batch
        await asyncio.sleep(WARM_UP_S)
        before = await _committed_tokens(session, batch)
        records = await LoadGenerator(prompts, session.door).run()
        spent_s = max(record.end_s for record in records)
        after = await _committed_tokens(session, batch)
        row = _row_of(records, spent_s)
        row.batch_rate = (after - before) / spent_s
        row.preemptions = sum(one.preemptions_total for _, one in reports(await session.status()))
        if batch:
            await session.client.batches.cancel(batch)
    return row


async def _committed_tokens(session: CampaignSession, batch: str) -> int:
    if not batch:
        return 0
    job = await session.client.batches.get(batch)
    return job.input_tokens + job.output_tokens


def _row_of(records: Sequence[RequestRecord], spent_s: float) -> LiveRow:
    done = [record for record in records if record.outcome == "ok"]
    tokens = sum(record.input_tokens + len(record.token_s) for record in records)
    return LiveRow(
        [request_ttft_s(record) for record in records],
        [request_tpot_s(record) for record in done],
        tokens / spent_s,
        failed=len(records) - len(done),
    )


def run(plan: ConserveLivePlan, folder: Path) -> BenchmarkResult:
    """All systems, round after round."""
    model, store, job = folder / "model", folder / "profiles.db", folder / "job.jsonl"
    shape = SHAPES[plan.model]
    write_random_checkpoint(model, shape=shape)
    engine = ("--model", str(model), "--dtype", "bf16", "--threads", str(plan.threads))
    subprocess.run(dunlin_command("profile", *engine, "--quick", "--out", str(store)), check=True, stdout=sys.stderr)
    rate = CHAT_SHARE * usual_rate(load_timing(str(store), str(model)))
    job.write_text("".join(f"{json.dumps(line)}\n" for line in batch_lines(plan.lines, shape.vocab)))
    outcome = BenchmarkResult(f"chat at {rate:.2f}/s beside a batch job, model {plan.model}, {plan.threads} threads")
    rows: dict[str, list[LiveRow]] = {}
    aims: tuple[str, ...] = ()
    for turn, system in itertools.product(range(plan.rounds), plan.systems):
        flags = ("--instances", "1", "--preset", system, *engine, *_settings(store, aims))
        with ClusterProcess(*flags) as cluster:
            row = asyncio.run(measure(plan, system, cluster, rate, job))
        rows.setdefault(system, []).append(row)
        if not aims:
            aims = _objectives(row)
        say(f"round {turn + 1}, {system}: p99 {percentiles(row.ttft_s).p99:.3f} s, batch {row.batch_rate:.0f} tokens/s")
    _conclude(outcome, rows)
    return outcome


def _objectives(ideal: LiveRow) -> tuple[str, ...]:
    aims = (("ttft_s", percentiles(ideal.ttft_s).p99), ("tpot_s", percentiles(ideal.tpot_s).p99))
    return tuple(f"instance.objectives.{name}={seconds:.4f}" for name, seconds in aims)


def _settings(store: Path, aims: tuple[str, ...]) -> Iterator[str]:
    batches = (f"dispatcher.batches.{name}={value}" for name, value in BATCHES.items())
    for setting in (*batches, f"instance.engine.profile={store}", *aims):
        yield from ("--set", setting)


def _conclude(outcome: BenchmarkResult, rows: dict[str, list[LiveRow]]) -> None:
    measures: tuple[tuple[str, Callable[[LiveRow], float]], ...] = (
        ("ttft p50, ms", lambda row: 1e3 * percentiles(row.ttft_s).p50),
        ("ttft p99, ms", lambda row: 1e3 * percentiles(row.ttft_s).p99),
        ("tpot p99, ms", lambda row: 1e3 * percentiles(row.tpot_s).p99),
        ("chat tokens/s", lambda row: row.chat_rate),
        ("batch tokens/s", lambda row: row.batch_rate),
        ("preemptions", lambda row: row.preemptions),
    )
    for name, of in measures:
        for system, found in rows.items():
            outcome.figures[f"{name}: {system}"] = median(map(of, found))
    for system, found in rows.items():
        failed = sum(row.failed for row in found)
        outcome.expect(not failed, f"{system}: {failed} chat requests failed")


def main(argv: list[str] | None = None) -> int:
    """The command."""
    usual = ConserveLivePlan()
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--model", choices=list(SHAPES), default=usual.model)
    arguments.add_argument("--threads", type=int, default=usual.threads)
    arguments.add_argument("--minutes", type=float, default=usual.chat_s / 60.0, help="of chat, per system and round")
    arguments.add_argument("--rounds", type=int, default=usual.rounds)
    arguments.add_argument("--systems", nargs="+", default=list(usual.systems), metavar="PRESET")
    arguments.add_argument("--cv", type=float, default=usual.cv, help="of the times between chat requests")
    given = arguments.parse_args(argv)
    plan = ConserveLivePlan(
        given.model, given.threads, 60.0 * given.minutes, given.rounds, tuple(given.systems), given.cv
    )
    with tempfile.TemporaryDirectory() as folder:
        return report.finish(run(plan, Path(folder)), given.json)


if __name__ == "__main__":
    sys.exit(main())
