"""More sequences than slots: preempted ones come back from the host tier, and a flipped byte there does no harm.

    python -m benchmarks.kv.preemption

One instance with few slots, deterministic, so that every text can be compared with an undisturbed run.
"""

import asyncio
import mmap
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import report
from benchmarks.harness.fleet_status import NotReached, reports, tier, unbalanced, wait_until
from benchmarks.harness.report import BenchmarkResult, say
from benchmarks.harness.session import CampaignSession
from benchmarks.harness.verified_load import VerifiedLoad, make_jobs
from cli.launch.cluster_process import ClusterProcess
from dunlin.messages.fleet import FleetStatus, InstanceReport
from dunlin.runtime.procfs import command_line, descendants

_FLIPS_MAX = 60


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """`width` streams of `prompt_tokens + output_tokens` want more than `slots`; alone each fits well."""

    slots: int = 512
    tier_mib: int = 64
    width: int = 6
    distinct_prompts: int = 6
    prompt_tokens: int = 48
    output_tokens: int = 160
    rounds: int = 3


class PreemptionCampaign:
    """One cluster under pressure."""

    def __init__(self, session: CampaignSession, plan: PreemptionPlan) -> None:
        self.session = session
        self.plan = plan
        songs = make_jobs(plan.distinct_prompts, plan.prompt_tokens, plan.output_tokens, session.vocabulary)
        self.single_load = VerifiedLoad(session.door, songs, 2)
        self.load = VerifiedLoad(session.door, songs, plan.width)

    async def learn(self) -> None:
        """The texts, with room for all."""
        await self.single_load.record_references()
        self.load.references = self.single_load.references

    async def report(self) -> InstanceReport:
        """The instance's."""
        return next(one for _, one in reports(await self.session.status()))

    async def run_load(self) -> InstanceReport:
        """Sing until enough songs are done; the report afterwards."""
        goal = self.load.finished + self.plan.rounds * self.plan.distinct_prompts
        async with self.load.running():
            await self.load.until_finished(goal)
        await asyncio.sleep(1.0)  # the last report is at most half a second away
        return await self.report()

    async def corrupt_one(self, supervisor_pid: int) -> str:
        """Sing, and flip one byte of a region that waits in the tier, until a restore comes upon one; where it was."""
        async with self.load.running():
            for _ in range(_FLIPS_MAX):
                where = await self._flip(supervisor_pid)
                try:
                    await wait_until(self.session.status, _found_corrupt, "a restore to find it", 1)
                    return where
                except NotReached:
                    continue  # it is not read soon, had been read, or was given back; one found later counts, too
        raise NotReached(f"{_FLIPS_MAX} flipped bytes, and none was read")

    async def _flip(self, supervisor_pid: int) -> str:
        status = await wait_until(self.session.status, _holds_regions, "a region in the tier", 60)
        kept = tier(status)
        assert kept is not None
        with paused_processes([pid for pid in descendants(supervisor_pid) if _is_engine_or_instance(pid)]):
            return flip_a_byte(tier_file(kept[0].pid))


def _holds_regions(status: FleetStatus) -> bool:
    kept = tier(status)
    return kept is not None and kept[1].regions > 0


def _found_corrupt(status: FleetStatus) -> bool:
    return any(report.corrupt_regions_total for _, report in reports(status))


@contextmanager
def paused_processes(pids: list[int]) -> Iterator[None]:
    """Nothing reads or writes the tier inside. Short: three seconds without progress would be a fault of their own."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(0.05)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _is_engine_or_instance(pid: int) -> bool:
    words = command_line(pid).split()
    return "services.instance" in words or "dunlin.engine" in words


def tier_file(pid: int) -> Path:
    """The shared memory of the kvstore `pid`: the largest of its memory files."""
    found = [path for path in Path(f"/proc/{pid}/fd").iterdir() if "memfd:" in os.readlink(path)]
    return max(found, key=lambda path: path.stat().st_size)


def flip_a_byte(path: Path) -> str:
    """Flip one byte in the middle of the data that the file holds; where, in words."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        used = [at for at in range(0, len(memory), 4096) if memory[at : at + 4096].count(0) < 4096]
        if not used:
            return "nothing: no data yet"
        at = used[0] + 64
        memory[at] ^= 0x55
    return f"byte {at} of {path.stat().st_size} ({len(used)} pages in use)"


async def run(plan: PreemptionPlan, cluster: ClusterProcess, halves: Sequence[bool]) -> list[BenchmarkResult]:
    """Halves of the campaign (False: nothing is corrupted; True: one byte) against a running cluster of one instance.
    On one cluster the first must be False: after the other one something was computed again.
    """
    async with CampaignSession(cluster) as session:
        pressed = PreemptionCampaign(session, plan)
        await pressed.learn()
        return [await _run_half(pressed, cluster, corrupt) for corrupt in halves]


async def _run_half(pressed: PreemptionCampaign, cluster: ClusterProcess, corrupt: bool) -> BenchmarkResult:
    outcome = BenchmarkResult("pressure" + (", with one flipped byte" if corrupt else ""))
    if corrupt:
        say(f"flipped {await pressed.corrupt_one(cluster.pid)}")
    found = await pressed.run_load()
    outcome.failures += pressed.load.failures + unbalanced(await pressed.session.status())
    _figures(outcome, found, pressed)
    if corrupt:
        outcome.expect(found.corrupt_regions_total > 0, "the flipped byte was not noticed")
        outcome.expect(found.recomputed_tokens_total > 0, "nothing was recomputed after the flipped byte")
    else:
        outcome.expect(found.restored_regions_total > 0, "nothing was restored from the host tier")
        outcome.expect(found.recomputed_tokens_total == 0, f"{found.recomputed_tokens_total} tokens were recomputed")
    return outcome


def _figures(outcome: BenchmarkResult, found: InstanceReport, pressed: PreemptionCampaign) -> None:
    outcome.figures |= {"requests finished": pressed.load.finished, "failed": len(pressed.load.failures)}
    for name in ("preemptions", "restored_regions", "restored_tokens", "recomputed_tokens", "corrupt_regions"):
        outcome.figures[name.replace("_", " ")] = getattr(found, f"{name}_total")


def cluster_flags(plan: PreemptionPlan) -> tuple[str, ...]:
    """What `dunlin up` needs for this campaign."""
    sizes = ("--slots", str(plan.slots), "--tier-mib", str(plan.tier_mib))
    # Only preempted sequences are to be in the tier, and only from there are they to come back.
    alone = ("--no-prefix-reuse", "--checkpoint-share", "0")
    return ("--instances", "1", "--threads", "1", "--deterministic", *sizes, *alone)


def main(argv: list[str] | None = None) -> int:
    """The command."""
    given = report.parser(__doc__ or "").parse_args(argv)
    code = 0
    for corrupt in (False, True):
        with ClusterProcess(*cluster_flags(PreemptionPlan())) as cluster:
            (outcome,) = asyncio.run(run(PreemptionPlan(), cluster, [corrupt]))
            code |= report.finish(outcome, given.json)
    return code


if __name__ == "__main__":
    sys.exit(main())
