"""A long batch job beside bursts of chat while every role is killed and stopped at random: each line comes out once and
whole, and no chat request fails.

    python -m benchmarks.faults.batch_faults                               100,000 lines, an hour of faults
    python -m benchmarks.faults.batch_faults --lines 2000 --minutes 2

Two dispatchers, two managers and deterministic instances under the preset `unified`. Faults go on for `--minutes`, or
until the job is over; what is left of it then runs undisturbed. Lines of the same prompt must have the same answer, and
each chat answer must be that of an undisturbed run.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import report
from benchmarks.harness.fault_targets import ROLES, pid_of
from benchmarks.harness.fleet_status import NotReached, placeable_count, unbalanced, wait_until
from benchmarks.harness.processes import gone
from benchmarks.harness.report import BenchmarkResult, say
from benchmarks.harness.session import CampaignSession
from benchmarks.harness.verified_load import VerifiedLoad, make_jobs
from cli.launch.cluster_process import ClusterProcess
from dunlin.client import DunlinError
from dunlin.messages.batches import BatchJob
from dunlin.messages.fleet import FleetStatus
from dunlin.workload.loadgen.stats import percentiles
from services.dispatcher.batches.results_check import broken_results

PROMPTS = 200
"""Different prompts among the lines."""
CHAT_JOBS, CHAT_TOKENS, CHAT_ANSWER, CHAT_WIDTH = 12, 24, 40, 4
BURST_S, CALM_S = 6.0, 4.0
"""Chat comes for so long, and stays away."""
STOP_S = 5.0
PATIENCE_S = 120.0
BETWEEN_S = (2.0, 10.0)
"""Seconds from a whole cluster to the next fault."""
STALLED_S = 300.0
"""An undisturbed job that commits nothing for so long has failed."""
SETTINGS = ("dispatcher.batches.lease_ttl_s=3",)


@dataclass(frozen=True, slots=True)
class BatchFaultsPlan:
    """The job, the faults and the cluster."""

    lines: int = 100_000
    minutes: float = 60.0
    instances: int = 2
    seed: int = 1

    def flags(self) -> tuple[str, ...]:
        """For `dunlin up`."""
        counts = ("--instances", str(self.instances), "--dispatchers", "2", "--managers", "2")
        wanted = (*SETTINGS, f"dispatcher.batches.max_lines={self.lines}")
        settings = (word for setting in wanted for word in ("--set", setting))
        return (*counts, "--preset", "unified", "--deterministic", *settings)


def job_lines(count: int, vocabulary: int, seed: int) -> Iterator[dict[str, Any]]:
    """The lines of the job: prompts of 3 to 24 tokens, answers of 1 to 4, all of a prompt's lines alike."""
    draw = random.Random(seed)
    prompts = [draw.choices(range(vocabulary), k=draw.randint(3, 24)) for _ in range(PROMPTS)]
    for number in range(count):
        which = number % PROMPTS
        body = {"prompt": prompts[which], "max_tokens": 1 + which % 4, "temperature": 0, "ignore_eos": True}
        yield {"custom_id": f"{number}", "method": "POST", "url": "/v1/completions", "body": body}


def different_answers(output: Iterable[bytes]) -> list[str]:
    """Lines whose answer is not that of the first line with the same prompt."""
    first: dict[int, str] = {}
    complaints = []
    for line in map(json.loads, output):
        text = line["response"]["body"]["choices"][0]["text"]
        expected = first.setdefault(int(line["custom_id"]) % PROMPTS, text)
        if text != expected:
            complaints.append(f"line {line['custom_id']} says {text!r}, another of its prompt {expected!r}")
    return complaints


@dataclass(slots=True)
class BatchFaults:
    """What happened: faults by role and kind, and what did not hold. `void`: no process had the role in time."""

    done: Counter[str] = field(default_factory=Counter)
    void: int = 0
    broken: list[str] = field(default_factory=list)


class BatchFaultsCampaign:
    """One cluster, one job, faults one after the other, chat in bursts."""

    def __init__(
        self, session: CampaignSession, cluster: ClusterProcess, load: VerifiedLoad, plan: BatchFaultsPlan
    ) -> None:
        self.found = BatchFaults()
        self._session = session
        self._cluster = cluster
        self._load = load
        self._plan = plan
        self._draw = random.Random(plan.seed)

    async def run(self, batch: str) -> BatchJob:
        """Faults for the plan's minutes, or until the job is over; the job when it has ended."""
        chat = asyncio.create_task(self._bursts())
        until_s = time.monotonic() + 60.0 * self._plan.minutes
        try:
            while time.monotonic() < until_s and not self._load.failures and (await self.job(batch)).is_open:
                await asyncio.sleep(self._draw.uniform(*BETWEEN_S))
                await self._strike(self._draw.choice(ROLES), self._draw.choice(["kill", "kill", "stop"]))
                await self._say_progress(batch)
        finally:
            chat.cancel()
            await asyncio.gather(chat, return_exceptions=True)
        return await self._ended(batch)

    async def job(self, batch: str) -> BatchJob:
        """The job, from a dispatcher that answers."""
        while True:
            with contextlib.suppress(DunlinError):
                return await self._session.client.batches.get(batch)
            await asyncio.sleep(0.2)

    async def _ended(self, batch: str) -> BatchJob:
        """Wait until the job is over, as long as it commits something."""
        job, moved_s = await self.job(batch), time.monotonic()
        while job.is_open and time.monotonic() < moved_s + STALLED_S:
            await asyncio.sleep(1.0)
            before, job = job, await self.job(batch)
            if job.completed > before.completed:
                moved_s = time.monotonic()
        return job

    async def _bursts(self) -> None:
        while True:
            async with self._load.running():
                await asyncio.sleep(BURST_S)
            await asyncio.sleep(CALM_S)

    async def _strike(self, role: str, fault: str) -> None:
        with contextlib.suppress(NotReached):
            await wait_until(self._status, self._is_whole, "the whole cluster", PATIENCE_S)
        pid = pid_of(role, await self._status(), self._cluster, self._draw.randrange(4))
        if not pid:
            self.found.void += 1
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
            self.found.done[f"{fault} {role}"] += 1
        if fault == "stop":
            await asyncio.sleep(STOP_S)
            with contextlib.suppress(ProcessLookupError):
                if not gone(pid):
                    os.kill(pid, signal.SIGCONT)

    async def _say_progress(self, batch: str) -> None:
        job = await self.job(batch)
        total = f"{job.completed + job.failed} of {job.total} lines"
        say(f"{sum(self.found.done.values()):4} faults, {total}, {self._load.finished} chat requests")

    def _is_whole(self, status: FleetStatus) -> bool:
        roles = [one.address.role for one in status.members if one.connected and not one.suspect]
        counts = tuple(map(roles.count, ("dispatcher", "global_manager", "kvstore")))
        return counts == (2, 2, 1) and placeable_count(status) == self._plan.instances

    async def _status(self) -> FleetStatus:
        while True:
            with contextlib.suppress(DunlinError):
                status = await self._session.status()
                self.found.broken += unbalanced(status)
                return status
            await asyncio.sleep(0.2)


async def results(session: CampaignSession, batch: str, *, errors: bool) -> list[bytes]:
    """The lines of one result file, as they came."""
    parts = []
    async with aclosing(session.client.batches.content(batch, errors=errors)) as content:
        async for part in content:
            parts.append(part)
    return b"".join(parts).splitlines(keepends=True)


async def run(plan: BatchFaultsPlan, cluster: ClusterProcess, folder: Path) -> BenchmarkResult:
    """The job against a running cluster."""
    outcome = BenchmarkResult(f"a job of {plan.lines} lines beside chat, {plan.minutes:g} minutes of faults")
    async with CampaignSession(cluster) as session:
        path = folder / "job.jsonl"
        path.write_text(
            "".join(f"{json.dumps(line)}\n" for line in job_lines(plan.lines, session.vocabulary, plan.seed))
        )
        jobs = make_jobs(CHAT_JOBS, CHAT_TOKENS, CHAT_ANSWER, session.vocabulary, plan.seed)
        load = VerifiedLoad(session.door, jobs, CHAT_WIDTH)
        await load.record_references()
        campaign = BatchFaultsCampaign(session, cluster, load, plan)
        began_s, batch = time.monotonic(), (await session.client.batches.create(path)).batch
        job = await campaign.run(batch)
        spent_s = time.monotonic() - began_s
        output, errors = [await results(session, batch, errors=kind) for kind in (False, True)]
    complaints = broken_results(path.read_bytes().splitlines(), output, errors) + different_answers(output)
    _conclude(outcome, campaign.found, load, job, spent_s)
    reasons = "; ".join(f"line {each.line}: {each.message}" for each in job.errors[:3])
    outcome.expect(job.status == "completed", f"the job is {job.status} ({reasons or 'no reason is given'})")
    outcome.expect(not job.failed, f"{job.failed} lines failed")
    outcome.failures += complaints[:20]
    outcome.figures["result lines: answers, errors, complaints"] = (len(output), len(errors), len(complaints))
    return outcome


def _conclude(outcome: BenchmarkResult, found: BatchFaults, load: VerifiedLoad, job: BatchJob, spent_s: float) -> None:
    outcome.failures += [*load.failures, *found.broken]
    outcome.figures["faults done, void"] = (sum(found.done.values()), found.void)
    outcome.figures["faults"] = ", ".join(f"{name} {count}" for name, count in sorted(found.done.items()))
    outcome.figures["lines: answered, failed, of"] = (job.completed, job.failed, job.total)
    outcome.figures["seconds, lines per second"] = (round(spent_s), job.completed / spent_s)
    outcome.figures["chat requests: finished, failed or with another text"] = (load.finished, len(load.failures))
    first = percentiles(record.token_s[0] - record.at_s for record in load.records if record.token_s)
    outcome.figures["chat: first token, p50 / p99 / max (s)"] = (first.p50, first.p99, first.max)


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    usual = BatchFaultsPlan()
    arguments = report.parser(__doc__ or "")
    arguments.set_defaults(instances=usual.instances)
    arguments.add_argument("--lines", type=int, default=usual.lines, help="of the job")
    arguments.add_argument("--minutes", type=float, default=usual.minutes, help="of faults at most")
    arguments.add_argument("--seed", type=int, default=usual.seed, help="of prompts and faults")
    given = arguments.parse_args(argv)
    plan = BatchFaultsPlan(given.lines, given.minutes, given.instances, given.seed)
    with tempfile.TemporaryDirectory() as folder, ClusterProcess(*plan.flags()) as cluster:
        outcome = asyncio.run(run(plan, cluster, Path(folder)))
        cluster.keep = bool(outcome.failures)
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
