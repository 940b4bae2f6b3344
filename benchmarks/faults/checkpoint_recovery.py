"""Kill instances that are far into a long sequence: how much another one has to compute again, and how long it takes.

    python -m benchmarks.faults.checkpoint_recovery --kills 10 [--nodes 2 [--lose-nodes]]

Two clusters side by side, one that keeps checkpoints in the host tier and one that does not; the kills alternate. Every
text is compared with an undisturbed run in deterministic mode. With two nodes the regions go from one kvstore to the
other; with `--lose-nodes` the kvstore of the victim's node dies with it, and its second copies are what is left.
"""

import asyncio
import os
import signal
import sys
import time
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass

from benchmarks.harness import report
from benchmarks.harness.fleet_status import instances, placeable_count, reports, unbalanced, wait_until
from benchmarks.harness.report import BenchmarkResult, say
from benchmarks.harness.session import CampaignSession
from benchmarks.harness.verified_load import VerifiedLoad, make_jobs
from cli.launch.cluster_process import ClusterProcess
from dunlin.messages.fleet import FleetStatus, MemberStatus
from dunlin.workload.loadgen.stats import RequestRecord, percentiles


@dataclass(frozen=True, slots=True)
class CheckpointRecoveryPlan:
    """`kills` per cluster. A victim has told `after_tokens` of its answer; what it computed before that is at stake.

    `lose_nodes`: the victim's kvstore dies with it. `flags` are further ones for `dunlin up`.
    """

    kills: int = 10
    instances: int = 2
    share: float = 0.025
    prompt_tokens: int = 600
    output_tokens: int = 256
    after_tokens: int = 128
    slots: int = 4096
    nodes: int = 1
    lose_nodes: bool = False
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KillResult:
    """What was lost and what was not: `claimed` tokens of the `held` came from the host tier."""

    held: int
    claimed: int
    gap_s: float


class CheckpointRecoveryCampaign:
    """One cluster and one long song at a time."""

    def __init__(self, session: CampaignSession, plan: CheckpointRecoveryPlan) -> None:
        self.session = session
        self.plan = plan
        songs = make_jobs(min(plan.kills, 2), plan.prompt_tokens, plan.output_tokens, session.vocabulary)
        self.load = VerifiedLoad(session.door, songs, 1)
        self.kills: list[KillResult] = []

    async def kill_once(self) -> None:
        """Sing one song and kill the instance that runs it on the way."""
        before = await self._whole()
        goal = self.load.finished + 1
        async with self.load.running():
            record = await self._far()
            name = await self._holder(record)
            victim = next(member for member in instances(before) if member.address.name == name)
            held, at_s = len(record.tokens), self.load.now_s()
            for pid in self._doomed(before, victim):
                os.kill(pid, signal.SIGKILL)
        assert self.load.finished == goal
        gap_s = max(b - a for a, b in zip(record.token_s[held - 1 :], record.token_s[held:], strict=False))
        await asyncio.sleep(0.7)  # the survivor's next report
        claimed = _claimed(await self.session.status(), name) - _claimed(before, name)
        self.kills.append(KillResult(self.plan.prompt_tokens + held, claimed, gap_s))
        say(f"{name} (pid {victim.pid}) killed at {at_s:.1f} s with {self.kills[-1].held} tokens: {self.kills[-1]}")

    def _doomed(self, status: FleetStatus, victim: MemberStatus) -> list[int]:
        """The victim, and with its node everything else that matters there."""
        kvstores = [one.pid for one in status.members if one.kvstore is not None and one.node == victim.node]
        return [victim.pid, *(kvstores if self.plan.lose_nodes else [])]

    async def _far(self) -> RequestRecord:
        deadline_s = time.monotonic() + 120
        while time.monotonic() < deadline_s:
            for record in self.load.open.values():
                if record.request and len(record.tokens) >= self.plan.after_tokens:
                    return record
            await asyncio.sleep(0.005)
        raise RuntimeError("no sequence got far enough within two minutes")

    async def _holder(self, record: RequestRecord) -> str:
        """The instance that runs it, once the monitor has heard of that."""
        while True:
            if attempts := await self.session.dispatched_attempts(record.request):
                return attempts[-1].instance
            await asyncio.sleep(0.005)

    async def _whole(self) -> FleetStatus:
        return await wait_until(
            self.session.status, lambda s: placeable_count(s) == self.plan.instances, "all instances placeable", 90
        )


def _claimed(status: FleetStatus, but: str) -> int:
    """Tokens that instances other than `but` started from."""
    return sum(report.claimed_tokens_total for name, report in reports(status) if name != but)


async def run(
    plan: CheckpointRecoveryPlan, keeping: ClusterProcess, without: ClusterProcess | None = None
) -> BenchmarkResult:
    """The campaign against a cluster that keeps what runs, and in turns against one that does not, if there is one."""
    outcome = BenchmarkResult(f"keeping: {plan.kills} kills each, {plan.prompt_tokens} + {plan.after_tokens} tokens in")
    async with AsyncExitStack() as stack:
        clusters = [keeping] if without is None else [keeping, without]
        sessions = [await stack.enter_async_context(CampaignSession(cluster)) for cluster in clusters]
        campaigns = [CheckpointRecoveryCampaign(session, plan) for session in sessions]
        for campaign in campaigns:
            await campaign.load.record_references()
        for _ in range(plan.kills):
            for campaign in campaigns:
                await campaign.kill_once()
        for campaign in campaigns:
            outcome.failures += campaign.load.failures + unbalanced(await campaign.session.status())
    for name, campaign in zip(("kept", "nothing kept"), campaigns, strict=False):
        gaps = percentiles(kill.gap_s for kill in campaign.kills)
        held, claimed = sum(kill.held for kill in campaign.kills), sum(kill.claimed for kill in campaign.kills)
        outcome.figures[f"{name}: tokens at stake"] = held
        outcome.figures[f"{name}: of them from the host tier"] = claimed
        outcome.figures[f"{name}: longest gap between tokens, p50 / max (s)"] = (gaps.p50, gaps.max)
    at_stake, kept = (outcome.figures[f"kept: {what}"] for what in ("tokens at stake", "of them from the host tier"))
    outcome.expect(kept > at_stake / 2, f"{kept} of {at_stake} tokens came from the host tier")
    kept = outcome.figures.get("nothing kept: of them from the host tier", 0)
    outcome.expect(kept == 0, "something was kept all the same")
    return outcome


def cluster_flags(plan: CheckpointRecoveryPlan, share: float) -> tuple[str, ...]:
    """What `dunlin up` needs for this campaign."""
    sizes = ("--instances", str(plan.instances), "--slots", str(plan.slots), "--threads", "1")
    nodes = ("--nodes", str(plan.nodes), *(("--replicate",) if plan.lose_nodes else ()))
    return (*sizes, *nodes, "--deterministic", "--checkpoint-share", str(share), *plan.flags)


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--kills", type=int, default=10, help="per cluster")
    arguments.add_argument("--nodes", type=int, default=1)
    arguments.add_argument("--lose-nodes", action="store_true")
    given = arguments.parse_args(argv)
    plan = CheckpointRecoveryPlan(kills=given.kills, nodes=given.nodes, lose_nodes=given.lose_nodes)
    with ExitStack() as stack:
        clusters = [stack.enter_context(ClusterProcess(*cluster_flags(plan, share))) for share in (plan.share, 0)]
        outcome = asyncio.run(run(plan, *clusters))
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
