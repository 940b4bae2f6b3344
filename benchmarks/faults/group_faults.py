"""Kill and stop what computes long prompts together: no request may fail, and no text may be another one.

    python -m benchmarks.faults.group_faults                 20 faults, prompts of 1.2 to 2.8 slabs, short ones beside
    python -m benchmarks.faults.group_faults --kills 300
    python -m benchmarks.faults.group_faults --kills 300 --longest 1.4 --width 2      three of them hold all that runs
    python -m benchmarks.faults.group_faults --explain 3      what each stream waited for that was silent for 3 s

Deterministic instances of 512 slots (four) under the preset `elastic`. References come from one instance that holds
every prompt alone. A fault meets a process of one role while a long request runs: the leader of a group, a member, the
engine of either, a manager, the kvstore. `silence`: the longest time without a token of a stream that was open then,
after its first token.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import random
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.faults.group_command import SLOTS, References, run_command
from benchmarks.harness import report
from benchmarks.harness.fault_targets import pid_of
from benchmarks.harness.fleet_status import NotReached, instances, placeable_count, unbalanced, wait_until
from benchmarks.harness.processes import gone
from benchmarks.harness.report import BenchmarkResult, say
from benchmarks.harness.session import CampaignSession
from benchmarks.harness.verified_load import VerifiedLoad
from cli.launch.cluster_process import ClusterProcess
from dunlin.client import DunlinError
from dunlin.messages.fleet import FleetStatus, MemberStatus
from dunlin.messages.types import GroupRole, i32
from dunlin.workload.loadgen.stats import RequestRecord, percentiles
from dunlin.workload.traffic.prompts import Job

LONG, SHORT = 6, 6
"""Jobs with prompts of more than a slab, and of a few tokens."""
OUTPUT_TOKENS = 48
ROLES = ("leader", "member", "engine of the leader", "engine of a member", "manager", "kvstore")
STOP_S = 4.0
HEARD_S = 0.5
"""What a stream says later than that after a fault was computed after it."""
PATIENCE_S = 120.0
SETTINGS = ("--managers", "2", "--deterministic")


@dataclass(slots=True)
class GroupFaults:
    """What the faults did: `silences_s` by role and kind of fault, `void` where no process had the role in time."""

    silences_s: dict[str, list[float]] = field(default_factory=dict)
    done: int = 0
    void: int = 0
    broken: list[str] = field(default_factory=list)


def jobs(vocabulary: int, given: argparse.Namespace) -> list[Job]:
    """Long prompts and short ones, in turn."""
    draw = random.Random(given.seed)
    lengths = [int(SLOTS * draw.uniform(min(1.2, given.longest), given.longest)) for _ in range(LONG)]
    lengths = [length for each in lengths for length in (each, draw.randint(8, 64))][: LONG + SHORT]
    return [
        Job(0.0, i32(draw.choices(range(vocabulary), k=length)), OUTPUT_TOKENS, seed=i if i % 2 else None)
        for i, length in enumerate(lengths)
    ]


class GroupFaultCampaign:
    """One cluster, faults one after the other, while `width` clients ask."""

    def __init__(
        self, session: CampaignSession, cluster: ClusterProcess, load: VerifiedLoad, given: argparse.Namespace
    ) -> None:
        self.found = GroupFaults()
        self._instances: int = given.instances
        self._explained_s: float = given.explain
        self._session = session
        self._cluster = cluster
        self._load = load
        self._draw = random.Random(given.seed)

    async def run(self, faults: int) -> None:
        """So many faults."""
        for number in range(faults):
            role, fault = ROLES[number % len(ROLES)], self._draw.choice(["kill", "kill", "stop"])
            await self._strike(role, fault)
            if self._load.failures:
                return

    async def _strike(self, role: str, fault: str) -> None:
        await self._all_ready()
        pid = await self._victim(role)
        if not pid:
            self.found.void += 1
            return
        await asyncio.sleep(self._draw.uniform(0.0, 1.0))  # any phase of a prompt, or of what follows it
        at_s, met = self._load.now_s(), [record for record in self._load.open.values() if record.tokens]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        if fault == "stop":
            await asyncio.sleep(STOP_S)
            if not gone(pid):
                os.kill(pid, signal.SIGCONT)
        await self._until_heard(met, at_s + HEARD_S)
        self.found.done += 1
        silences = [silence_s(record, at_s) for record in met]
        name = f"{fault} of {role}"
        self.found.silences_s.setdefault(name, []).extend(silences)
        say(f"{self.found.done:4} {name}: longest silence {max(silences, default=0.0):.2f} s")
        for record, silent_s in zip(met, silences, strict=True):
            if silent_s >= self._explained_s:
                say(await self._session.story(record.request))

    async def _until_heard(self, records: list[RequestRecord], after_s: float) -> None:
        """Wait until each stream has said something after that time, or ended."""
        until_s = self._load.now_s() + PATIENCE_S
        while self._load.now_s() < until_s and not self._load.failures:
            if not any(record.token_s[-1] < after_s and self._load.is_open(record) for record in records):
                return
            await asyncio.sleep(0.05)

    async def _victim(self, role: str) -> int:
        """The process of that role; one of a group only while there is a group."""
        if role in ("manager", "kvstore"):
            return pid_of("leader" if role == "manager" else role, await self._status(), self._cluster)
        part = GroupRole.LEADER if "leader" in role else GroupRole.MEMBER
        with contextlib.suppress(NotReached):
            status = await wait_until(self._status, lambda now: bool(_in_part(now, part)), f"a {role}", 10.0)
            member = self._draw.choice(_in_part(status, part))
            assert member.instance is not None
            return member.instance.engine_pid if role.startswith("engine") else member.pid
        return 0

    async def _all_ready(self) -> None:
        with contextlib.suppress(NotReached):
            await wait_until(
                self._status, lambda now: placeable_count(now) == self._instances, "the whole cluster", PATIENCE_S
            )

    async def _status(self) -> FleetStatus:
        while True:
            with contextlib.suppress(DunlinError):
                status = await self._session.status()
                self.found.broken += unbalanced(status)
                return status
            await asyncio.sleep(0.2)


def _in_part(status: FleetStatus, part: GroupRole) -> list[MemberStatus]:
    return [one for one in instances(status) if one.instance is not None and one.instance.part is part]


def silence_s(record: RequestRecord, at_s: float) -> float:
    """The longest time without a token around or after `at_s`, between the first token and the last."""
    times = record.token_s
    gaps = [(later - earlier, later) for earlier, later in itertools.pairwise(times)]
    return max((gap for gap, end in gaps if end >= at_s), default=0.0)


async def campaign(cluster: ClusterProcess, known: References, given: argparse.Namespace) -> BenchmarkResult:
    """The faults against a running cluster."""
    outcome = BenchmarkResult(f"{given.kills} faults among instances that compute long prompts together")
    async with CampaignSession(cluster) as session:
        load = VerifiedLoad(session.door, jobs(session.vocabulary, given), width=given.width)
        load.references = known
        work = GroupFaultCampaign(session, cluster, load, given)
        async with load.running():
            await work.run(given.kills)
    found = work.found
    outcome.failures += [*load.failures, *found.broken]
    outcome.figures["faults done, void"] = (found.done, found.void)
    outcome.figures["requests answered"] = load.finished
    outcome.figures["requests failed or with another text"] = len(load.failures)
    for name, silences in found.silences_s.items():
        met = percentiles(silences)
        outcome.figures[f"{name}: silence, p50 / p99 / max (s)"] = (met.p50, met.p99, met.max)
    every = percentiles(each for silences in found.silences_s.values() for each in silences)
    outcome.figures["all faults: silence, p50 / p99 / max (s)"] = (every.p50, every.p99, every.max)
    return outcome


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--kills", type=int, default=20, metavar="N", help="faults")
    arguments.add_argument("--longest", type=float, default=2.8, metavar="SLABS", help="the longest prompt, in slabs")
    arguments.add_argument("--width", type=int, default=4, metavar="N", help="requests at a time")
    arguments.add_argument(
        "--explain", type=float, default=float("inf"), metavar="S", help="tell what streams waited for so long"
    )
    return run_command(arguments, argv, SETTINGS, jobs, campaign)


if __name__ == "__main__":
    sys.exit(main())
