"""A step that takes six seconds on a slow machine, and passes its safepoints: it must not be taken for a hang.

    python -m benchmarks.faults.slow_step

The engine gets so little of its core (it is stopped and woken many times a second) that one prefill step takes as long
as asked. The model has many thin layers, so that safepoints go on passing.
"""

import asyncio
import contextlib
import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import report
from benchmarks.harness.fleet_status import reports
from benchmarks.harness.report import BenchmarkResult
from benchmarks.harness.session import CampaignSession
from cli.launch.cluster_process import ClusterProcess
from dunlin.messages.types import i32
from dunlin.workload.loadgen.load_generator import LoadGenerator
from dunlin.workload.loadgen.stats import RequestRecord
from dunlin.workload.traffic.prompts import Job


@dataclass(frozen=True, slots=True)
class SlowStepPlan:
    """One prompt that fits into one chunk, computed so slowly that it takes at least `step_s`."""

    step_s: float = 6.0
    prompt_tokens: int = 256
    period_s: float = 0.25
    most_period_s: float = 1.0
    layers: int = 48


class CpuBrake:
    """Lets a process run only a share of the time. Owns no process: it must be woken before it is left alone."""

    def __init__(self, pid: int, period_s: float) -> None:
        self._pid = pid
        self._period_s = period_s

    async def run(self, share: float) -> None:
        """Until cancelled; then the process runs freely again."""
        try:
            while True:
                os.kill(self._pid, signal.SIGCONT)
                await asyncio.sleep(share * self._period_s)
                os.kill(self._pid, signal.SIGSTOP)
                await asyncio.sleep((1 - share) * self._period_s)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGCONT)


async def first_token_s(session: CampaignSession, job: Job) -> RequestRecord:
    """Send one request and wait for its end."""
    (record,) = await LoadGenerator([job], session.door).run()
    if record.outcome != "ok":
        raise RuntimeError(f"{record.request}: {record.outcome}: {record.detail}")
    return record


async def braked(brake: CpuBrake, share: float, session: CampaignSession, job: Job) -> RequestRecord:
    """The same with the engine held back."""
    holding = asyncio.create_task(brake.run(share))
    try:
        return await first_token_s(session, job)
    finally:
        holding.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await holding


async def run(plan: SlowStepPlan, cluster: ClusterProcess) -> BenchmarkResult:
    """The measurement against a running cluster of one instance."""
    outcome = BenchmarkResult(f"a legal step of {plan.step_s:g} s")
    async with CampaignSession(cluster) as session:
        job = Job(0.0, i32([i % session.vocabulary for i in range(plan.prompt_tokens)]), 1)
        await first_token_s(session, job)
        freely = await first_token_s(session, job)
        before = await session.status()
        pid = next(report.engine_pid for _, report in reports(before))
        for slower in _SLOWER:
            share = freely.token_s[0] / (plan.step_s * slower)
            period_s = min(plan.most_period_s, plan.period_s * slower**2)
            slowly = await braked(CpuBrake(pid, period_s), share, session, job)
            if slowly.token_s[0] >= plan.step_s:
                break
        await asyncio.sleep(1.0)
        after = await session.status()
        attempts = [one.attempt for one in await session.dispatched_attempts(slowly.request)]
    outcome.figures |= {"step freely (s)": freely.token_s[0], "step slowed (s)": slowly.token_s[0]}
    outcome.figures |= {"suspicions": after.suspicions_total - before.suspicions_total, "attempts": attempts}
    outcome.figures |= {"engine restarts": sum(report.engine_restarts_total for _, report in reports(after))}
    outcome.expect(slowly.token_s[0] >= plan.step_s, f"the step took only {slowly.token_s[0]:.1f} s")
    outcome.expect(after.suspicions_total == before.suspicions_total, "the instance was suspected")
    outcome.expect(attempts == [1], f"the request was dispatched as attempts {attempts}")
    outcome.expect(slowly.tokens == freely.tokens, "another token came")
    return outcome


def cluster_flags(model: str) -> tuple[str, ...]:
    """What `dunlin up` needs: one thread, because threads that wait for each other while stopped tell nothing; and the
    prompt computed each time it comes.
    """
    return ("--instances", "1", "--threads", "1", "--no-prefix-reuse", "--model", model)


_SLOWER = (1.4, 2.0, 3.0, 4.5)
"""A woken process does more than its share where the brake itself waits for a core, and the free run may have been
slow: aim beyond, then further, and let it sleep longer at a time, but not for as long as a hang is."""


def main(argv: list[str] | None = None) -> int:
    """The command."""
    from dunlin.engine.decoder.loading.random_checkpoint import CheckpointShape, write_random_checkpoint

    given = report.parser(__doc__ or "").parse_args(argv)
    plan = SlowStepPlan()
    with tempfile.TemporaryDirectory(prefix="dunlin-model-") as folder:
        write_random_checkpoint(Path(folder), "llama", CheckpointShape(layers=plan.layers))
        with ClusterProcess(*cluster_flags(folder)) as cluster:
            outcome = asyncio.run(run(plan, cluster))
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
