"""etcd stopped, then killed and started again, under load: no request may fail.

python -m benchmarks.faults.etcd_outage --away 30
python -m benchmarks.faults.etcd_outage --away 10 --members 3

With three members it is the leader that goes away. Then the cluster must not only go on but heal: an instance is killed
meanwhile, and its successor must be found by all.
"""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks.harness import report
from benchmarks.harness.etcd_cluster import EtcdCluster, EtcdNode, members_here
from benchmarks.harness.fleet_status import instances, is_replaced, placeable_count, wait_until
from benchmarks.harness.processes import stopped
from benchmarks.harness.report import BenchmarkResult, say
from benchmarks.harness.session import CampaignSession
from benchmarks.harness.verified_load import VerifiedLoad, make_jobs
from cli.launch.cluster_process import ClusterProcess
from cli.launch.ports import claim_port
from cli.launch.readiness import http_answers, placeable
from dunlin.membership.embedded import EmbeddedConfig, command
from dunlin.runtime.parent_death import die_with_parent_command

SERVES_WITHIN_S = 120.0
"""Seconds for which etcd stays away at most until a request has finished meanwhile."""


@dataclass(frozen=True, slots=True)
class EtcdOutagePlan:
    """etcd, or the leader of its `members`, is away for `away_s`, twice; then the cluster has `calm_s` to settle.

    `pause_s` between two requests of each of the `width` streams: less load.
    """

    away_s: float = 30.0
    calm_s: float = 10.0
    instances: int = 3
    width: int = 4
    distinct_prompts: int = 8
    prompt_tokens: int = 32
    output_tokens: int = 96
    pause_s: float = 0.0
    members: int = 1


class EtcdVictim(Protocol):
    """An etcd process that goes away and comes back."""

    @property
    def pid(self) -> int: ...

    def kill(self) -> None: ...

    def start(self) -> None: ...


class EtcdUnderTest(Protocol):
    """An etcd of one or more members. `endpoint` is what processes get as `--etcd`."""

    @property
    def endpoint(self) -> str: ...

    async def victim(self) -> EtcdVictim: ...


class SingleEtcd:
    """An etcd that no supervisor looks after, so that it can stay away."""

    def __init__(self, folder: Path) -> None:
        client = claim_port("127.0.0.1", 0, "etcd")
        peer = claim_port("127.0.0.1", 0, "etcd's peer port", {client})
        self.endpoint = f"127.0.0.1:{client}"
        self._command = die_with_parent_command(command(EmbeddedConfig(folder, client, peer)), os.getpid())
        self._log = folder / "etcd.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, on what an earlier run left, and wait until it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
        deadline_s = time.monotonic() + 60
        while not http_answers(f"http://{self.endpoint}/health"):
            if time.monotonic() > deadline_s or self._process.poll() is not None:
                raise RuntimeError(f"etcd did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    async def victim(self) -> "SingleEtcd":
        """The one there is."""
        return self

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """As if the machine had lost power."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class ThreeMemberEtcd:
    """An etcd of three that no supervisor looks after."""

    def __init__(self, folder: Path) -> None:
        self._cluster = EtcdCluster(members_here(folder))
        self.endpoint = ",".join(self._cluster.endpoints)

    async def victim(self) -> EtcdNode:
        """The leader."""
        await self._cluster.ready()
        return await self._cluster.leader()

    def start(self) -> None:
        """Start all members and wait until they serve."""
        asyncio.run(self._cluster.start())

    def kill(self) -> None:
        """All of them."""
        self._cluster.stop()


def make_etcd(plan: EtcdOutagePlan, folder: Path) -> SingleEtcd | ThreeMemberEtcd:
    """The etcd of a plan, not started yet."""
    return SingleEtcd(folder) if plan.members == 1 else ThreeMemberEtcd(folder)


async def run(plan: EtcdOutagePlan, cluster: ClusterProcess, etcd: EtcdUnderTest) -> BenchmarkResult:
    """The campaign against a running, deterministic cluster that uses `etcd`."""
    who = "etcd" if plan.members == 1 else f"the leader of {plan.members} etcds"
    outcome = BenchmarkResult(f"{who} away: stopped, then killed, for {plan.away_s:g} s each")
    async with CampaignSession(cluster) as session:
        songs = make_jobs(plan.distinct_prompts, plan.prompt_tokens, plan.output_tokens, session.vocabulary)
        chorus = VerifiedLoad(session.door, songs, plan.width, plan.pause_s)
        await chorus.record_references()
        async with chorus.running():
            for name, away in (("stopped", _stopped), ("killed", _killed)):
                say(f"etcd is {name} for {plan.away_s:g} s")
                before, victim = chorus.finished, await etcd.victim()
                healed_s = await away(plan, session, victim, partial(_finished_beyond, chorus, before))
                if plan.members > 1:
                    outcome.figures[f"instance placeable again while etcd was {name} (s)"] = healed_s
                outcome.figures[f"requests finished while etcd was {name}"] = chorus.finished - before
                await asyncio.sleep(plan.calm_s)
                await wait_until(
                    session.status, lambda s: placeable_count(s) == plan.instances, "all instances placeable", 60
                )
    outcome.failures = list(chorus.failures)
    outcome.figures |= {"requests finished": chorus.finished, "failed": len(chorus.failures)}
    return outcome


async def _stopped(
    plan: EtcdOutagePlan, session: CampaignSession, victim: EtcdVictim, serves: Callable[[], bool]
) -> float:
    with stopped(victim.pid):
        return await _away(plan, session, serves)


async def _killed(
    plan: EtcdOutagePlan, session: CampaignSession, victim: EtcdVictim, serves: Callable[[], bool]
) -> float:
    victim.kill()
    try:
        return await _away(plan, session, serves)
    finally:
        victim.start()  # blocks for a moment, but a thread of its own would take etcd along when it ends


async def _away(plan: EtcdOutagePlan, session: CampaignSession, serves: Callable[[], bool]) -> float:
    """Let the time pass, on a slow machine until a request finished. Where most of etcd is left, an instance dies
    meanwhile: after how many seconds it is back.
    """
    began_s, healed_s = time.monotonic(), 0.0
    if plan.members > 1:
        member = next(one for one in instances(await session.status()) if placeable(one))
        os.kill(member.pid, signal.SIGKILL)
        name = member.address.name
        await wait_until(session.status, lambda status: is_replaced(status, member), f"another {name}", 60)
        healed_s = time.monotonic() - began_s
    await asyncio.sleep(max(0.0, plan.away_s - (time.monotonic() - began_s)))
    while not serves() and time.monotonic() < began_s + SERVES_WITHIN_S:  # noqa: ASYNC110 (it has no event)
        await asyncio.sleep(0.1)
    return healed_s


def _finished_beyond(chorus: VerifiedLoad, before: int) -> bool:
    return chorus.finished > before


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--members", type=int, choices=(1, 3), default=1, help="of etcd")
    arguments.add_argument("--away", type=float, default=30.0, metavar="S")
    given = arguments.parse_args(argv)
    plan = EtcdOutagePlan(away_s=given.away, instances=given.instances, members=given.members)
    with tempfile.TemporaryDirectory(prefix="dunlin-etcd-") as folder:
        etcd = make_etcd(plan, Path(folder))
        etcd.start()
        try:
            flags = ("--instances", str(plan.instances), "--deterministic", "--etcd", etcd.endpoint)
            with ClusterProcess(*flags) as cluster:
                outcome = asyncio.run(run(plan, cluster, etcd))
        finally:
            etcd.kill()
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
