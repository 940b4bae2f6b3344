"""Kill and stop every role in every phase, under load: no request may fail, no token may be lost, doubled or different.

    python -m benchmarks.faults.fault_matrix                        the table: 8 roles x 7 phases, kill -9 and SIGSTOP
    python -m benchmarks.faults.fault_matrix --kills 100            random instances instead, while streams decode

The cluster is deterministic, so every text is compared with an undisturbed run. The resume gap of a stream is its
longest silence after the fault. A cell is void where its role is not there to be hit in that phase; voids are named.
"""

import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from benchmarks.harness import report
from benchmarks.harness.fault_targets import ROLES, epoch_of, pid_of
from benchmarks.harness.fleet_status import NotReached, instances, placeable_count, reports, unbalanced, wait_until
from benchmarks.harness.phase_load import LoadKind, PhaseLoad
from benchmarks.harness.processes import gone
from benchmarks.harness.report import BenchmarkResult, say
from benchmarks.harness.session import CampaignSession
from cli.launch.cluster_process import ClusterProcess
from dunlin.client import DunlinError
from dunlin.messages.fleet import FleetStatus, InstanceReport
from dunlin.messages.plan import DrainOutcome
from dunlin.workload.loadgen.stats import RequestRecord, percentiles

PHASES = ("idle", "admission", "prefill", "decode", "migration", "drain", "election")
EMPTY_CELLS = {
    ("leader", "election"): "there is no leader while one is elected",
}
STOP_S = 5.0
MOVE_LIMIT_S = 3.0
UNDO_TRIES = 20
VICTIM_LIMIT_S = 60.0
SING_LIMIT_S = 90.0
TELL_S = 1.0
"""A longer silence is explained."""


@dataclass(frozen=True, slots=True)
class FaultMatrixPlan:
    """The cluster and the load."""

    instances: int = 3
    dispatchers: int = 2
    managers: int = 2
    width: int = 6
    decode_tokens: int = 160

    def flags(self) -> tuple[str, ...]:
        """For `dunlin up`."""
        counts = {"instances": self.instances, "dispatchers": self.dispatchers, "managers": self.managers}
        return (*(word for name, count in counts.items() for word in (f"--{name}", str(count))), "--deterministic")


@dataclass(slots=True)
class FaultCell:
    """What one fault did: gaps in seconds of the streams that it met."""

    role: str
    phase: str
    fault: str
    gaps_s: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.fault} {self.role} in {self.phase}"


class FaultMatrixCampaign:
    """One cluster, one stage, faults one after the other."""

    def __init__(self, session: CampaignSession, cluster: ClusterProcess, plan: FaultMatrixPlan) -> None:
        self.cells: list[FaultCell] = []
        self.broken: list[str] = []
        self.load = PhaseLoad(session.door, session.vocabulary, plan.width, plan.decode_tokens)
        self._session = session
        self._cluster = cluster
        self._plan = plan
        self._turn = 0
        self._draining = ""
        self._moved = 0
        self.moving = 0
        self._phases: dict[str, Callable[[], Awaitable[list[asyncio.Task[RequestRecord]]]]] = {
            "idle": self._idle,
            "admission": self._admission,
            "prefill": self._prefill,
            "decode": self._decode,
            "migration": self._migration,
            "drain": self._drain,
            "election": self._election,
        }

    async def cell(self, role: str, phase: str, fault: str) -> None:
        """One fault of `role` in `phase`."""
        await self._wait_all_ready()
        self._turn += 1
        pid = await self._victim(role)
        singing = await self._phases[phase]()
        at_s = self.load.now_s()
        waking = self._strike(pid, fault)
        if not singing:
            singing = self.load.begin(LoadKind.DECODE)
        records = await self._finish(singing)
        await waking
        await self._undrain()
        await self._judge(FaultCell(role, phase, fault), records, at_s)

    async def _judge(self, cell: FaultCell, records: list[RequestRecord], at_s: float) -> None:
        song = LoadKind.PREFILL if cell.phase == "prefill" else LoadKind.DECODE
        gaps = self.load.gaps_s(song, records, at_s)
        cell.gaps_s = gaps
        cell.failures, self.load.failures = self.load.failures, []
        self.cells.append(cell)
        worst = f"longest silence {max(gaps):.2f} s" if gaps else "met no stream"
        say(f"{len(self.cells):4} {cell.name}: {worst}" + "".join(f"\n     FAILED {text}" for text in cell.failures))
        if gaps and max(gaps) > TELL_S:
            say(await self._session.story(self.load.longest_gap(song, records, at_s).request))

    async def _victim(self, role: str) -> int:
        """The process that plays the role; one that died in the last cell may still have to come back."""
        # Among several dispatchers the one that serves the streams: the others are no loss.
        served = self._session.client.endpoint if role == "dispatcher" else ""
        deadline_s = time.monotonic() + VICTIM_LIMIT_S
        while not (pid := pid_of(role, await self._status(), self._cluster, self._turn, served)):
            if time.monotonic() > deadline_s:
                raise NotReached(f"no process plays {role}")
            await asyncio.sleep(0.1)
        return pid

    def _strike(self, pid: int, fault: str) -> "asyncio.Task[None]":
        os.kill(pid, signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
        return asyncio.create_task(self._wake(pid) if fault == "stop" else asyncio.sleep(0))

    async def _wake(self, pid: int) -> None:
        await asyncio.sleep(STOP_S)
        if not gone(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    async def _finish(self, singing: "list[asyncio.Task[RequestRecord]]") -> list[RequestRecord]:
        done, late = await asyncio.wait(singing, timeout=SING_LIMIT_S)
        for task in late:
            task.cancel()
            self.load.failures.append(f"a stream did not end within {SING_LIMIT_S:g} s")
        await asyncio.gather(*late, return_exceptions=True)
        self.load.open.clear()
        return [task.result() for task in done]

    # --- phases: each returns when the phase holds, with the streams that are open ---

    async def _idle(self) -> "list[asyncio.Task[RequestRecord]]":
        return []

    async def _admission(self) -> "list[asyncio.Task[RequestRecord]]":
        singing = self.load.begin(LoadKind.DECODE)
        await asyncio.sleep(0.003)
        return singing

    async def _prefill(self) -> "list[asyncio.Task[RequestRecord]]":
        singing = self.load.begin(LoadKind.PREFILL)
        await self._until(lambda: bool(self.load.open) and all(record.request for record in self.load.open))
        await asyncio.sleep(0.1)
        return singing

    async def _decode(self) -> "list[asyncio.Task[RequestRecord]]":
        singing = self.load.begin(LoadKind.DECODE)
        await self._until(lambda: bool(self.load.open) and all(map(_has_begun, self.load.open)))
        return singing

    async def _migration(self) -> "list[asyncio.Task[RequestRecord]]":
        """The source is the instance that a fault of instances hits; one of its sequences is on its way."""
        singing = await self._decode()
        await self._order_drain(self._turn)
        await self._until_moving(singing, lambda report: report.leaving > 0)
        return singing

    async def _drain(self) -> "list[asyncio.Task[RequestRecord]]":
        """Another instance is emptied than the one that a fault hits, and has moved a sequence."""
        singing = await self._decode()
        await self._order_drain(self._turn + 1)
        await self._until_moving(singing, lambda report: report.migrations_total > self._moved)
        return singing

    async def _election(self) -> "list[asyncio.Task[RequestRecord]]":
        singing = await self._decode()
        os.kill(await self._victim("leader"), signal.SIGKILL)
        return singing

    async def _order_drain(self, turn: int) -> None:
        """Of the instance of that turn; if no stream is there, of the next one that has some."""
        found = [member for member in instances(await self._status()) if member.instance is not None]
        in_turn = [found[(turn + step) % len(found)] for step in range(len(found))]
        busy = [member for member in in_turn if member.instance is not None and member.instance.running]
        chosen = (busy or in_turn)[0]
        assert chosen.instance is not None
        self._draining, self._moved = chosen.address.name, chosen.instance.migrations_total
        reply = await self._session.client.drain(self._draining)
        if reply.outcome is not DrainOutcome.ORDERED:
            self.broken.append(f"drain of {self._draining}: {reply.outcome.name} {reply.detail}")

    async def _until_moving(
        self, singing: "list[asyncio.Task[RequestRecord]]", moves: Callable[[InstanceReport], bool]
    ) -> None:
        """Wait until the drained instance's report says so, but not for ever, nor longer than streams are open: it may
        be empty already.
        """
        deadline_s = time.monotonic() + MOVE_LIMIT_S
        while time.monotonic() < deadline_s and not all(task.done() for task in singing):
            for name, found in reports(await self._status()):
                if name == self._draining and moves(found):
                    self.moving += 1
                    return
            await asyncio.sleep(0.01)

    async def _undrain(self) -> None:
        if not self._draining:
            return
        name, self._draining = self._draining, ""
        await self._wait_all_ready(but=1)
        for _ in range(UNDO_TRIES):
            with contextlib.suppress(DunlinError):
                await self._session.client.drain(name, undo=True)
                return
            await asyncio.sleep(0.5)
        self.broken.append(f"the drain of {name} could not be taken back")

    async def _until(self, holds: Callable[[], bool], limit_s: float = 30.0) -> None:
        deadline_s = time.monotonic() + limit_s
        while not holds():
            if time.monotonic() > deadline_s:
                return
            await asyncio.sleep(0.005)

    async def _wait_all_ready(self, but: int = 0) -> FleetStatus:
        def complete(status: FleetStatus) -> bool:
            roles = [member.address.role for member in status.members if member.connected and not member.suspect]
            counts = (roles.count("dispatcher"), roles.count("global_manager"), roles.count("kvstore"))
            all_there = counts == (self._plan.dispatchers, self._plan.managers, 1)
            return all_there and epoch_of(status) > 0 and placeable_count(status) >= self._plan.instances - but

        return await wait_until(self._status, complete, "the whole cluster", 120)

    async def _status(self) -> FleetStatus:
        while True:
            with contextlib.suppress(DunlinError):
                status = await self._session.status()
                self.broken += unbalanced(status)
                return status
            await asyncio.sleep(0.2)


def _has_begun(record: RequestRecord) -> bool:
    return len(record.tokens) > record.output_tokens // 8


async def run(plan: FaultMatrixPlan, cluster: ClusterProcess, cells: list[tuple[str, str, str]]) -> BenchmarkResult:
    """The campaign against a running cluster."""
    outcome = BenchmarkResult(f"roles: {len(cells)} faults under {plan.width} streams")
    async with CampaignSession(cluster) as session:
        campaign = FaultMatrixCampaign(session, cluster, plan)
        await campaign.load.record_references()
        for role, phase, fault in cells:
            try:
                await campaign.cell(role, phase, fault)
            except NotReached as unsettled:
                outcome.failures.append(f"before {fault} {role} in {phase}: {unsettled}")
                break
    _report(outcome, campaign)
    return outcome


def _report(outcome: BenchmarkResult, campaign: FaultMatrixCampaign) -> None:
    cells = campaign.cells
    outcome.failures += campaign.broken
    outcome.failures += [f"{cell.name}: {text}" for cell in cells for text in cell.failures]
    outcome.figures["faults done"] = len(cells)
    outcome.figures["requests"] = campaign.load.finished
    outcome.figures["requests failed or with another text"] = sum(len(cell.failures) for cell in cells)
    outcome.figures["faults while a sequence moved"] = campaign.moving
    outcome.figures["streams that a fault met"] = sum(len(cell.gaps_s) for cell in cells)
    for fault in ("kill", "stop"):
        met = percentiles(max(cell.gaps_s) for cell in cells if cell.fault == fault and cell.gaps_s)
        outcome.figures[f"longest silence per {fault}, p50 / p99 / max (s)"] = (met.p50, met.p99, met.max)
    for role in dict.fromkeys(cell.role for cell in cells):
        of = [cell for cell in cells if cell.role == role]
        worst = {c.phase + "/" + c.fault: max(c.gaps_s) for c in of if c.gaps_s}
        outcome.figures[f"{role}: silence (s)"] = ", ".join(f"{name} {gap:.2f}" for name, gap in worst.items())
    for (role, phase), because in EMPTY_CELLS.items():
        outcome.figures[f"void: {role} in {phase}"] = because


def table(roles: list[str], phases: list[str], faults: list[str]) -> list[tuple[str, str, str]]:
    """Every cell that is not void."""
    return [(r, p, f) for p in phases for r in roles for f in faults if (r, p) not in EMPTY_CELLS]


def random_kills(count: int, seed: int) -> list[tuple[str, str, str]]:
    """Instances, in phases drawn at random."""
    draw = random.Random(seed)
    return [("instance", draw.choice(["admission", "prefill", "decode", "decode"]), "kill") for _ in range(count)]


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--kills", type=int, default=0, help="so many random instance kills, not the table")
    arguments.add_argument("--dispatchers", type=int, default=2, metavar="N", help="dispatchers of the cluster")
    arguments.add_argument("--seed", type=int, default=1, help="of the random kills")
    arguments.add_argument("--roles", nargs="+", choices=ROLES, default=list(ROLES))
    arguments.add_argument("--phases", nargs="+", choices=PHASES, default=list(PHASES))
    arguments.add_argument("--faults", nargs="+", choices=("kill", "stop"), default=["kill", "stop"])
    given = arguments.parse_args(argv)
    cells = random_kills(given.kills, given.seed) if given.kills else table(given.roles, given.phases, given.faults)
    plan = FaultMatrixPlan(instances=given.instances, dispatchers=given.dispatchers)
    with ClusterProcess(*plan.flags()) as cluster:
        outcome = asyncio.run(run(plan, cluster, cells))
        cluster.keep = bool(outcome.failures)
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
