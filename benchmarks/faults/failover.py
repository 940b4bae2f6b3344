"""Kill and stop instances and engines in mid-sequence, under load: a client may notice a pause, no more.

    python -m benchmarks.faults.failover --kills 30 --stops 10
    python -m benchmarks.faults.failover --kills 200 --stops 0 --instances 2 --restless --prompt-tokens 300

Each victim holds a sequence between its first and last token (printed). Every text is compared with an undisturbed run
in deterministic mode. A fault counts as noticed when a dispatcher hands the sequence out again, or it
goes on in the next engine. With `--interrupts` rows leave running steps all the time, by that policy. `--restless` is
that policy, sequences that move from instance to instance at random, and layers that are ordered away and back every
`--remap-s` seconds; all of it is counted, of all requests, and a run in which one of them never happened fails.
"""

import asyncio
import dataclasses
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.harness import report
from benchmarks.harness.decisions import DispatchedAttempt, RowCommands
from benchmarks.harness.fleet_status import instances, placeable_count, unbalanced, wait_until
from benchmarks.harness.layer_orders import RandomLayerOrders, missing_layers
from benchmarks.harness.processes import gone
from benchmarks.harness.report import BenchmarkResult, say
from benchmarks.harness.session import CampaignSession
from benchmarks.harness.verified_load import VerifiedLoad, make_jobs
from cli.launch.cluster_process import ClusterProcess
from dunlin.messages.fleet import FleetStatus, MemberStatus
from dunlin.policies.interrupt import INTERRUPT_POLICIES
from dunlin.workload.loadgen.stats import RequestRecord, percentiles

KILL_LIMIT_S = 0.5
STOP_LIMIT_S = 3.5
RESTLESS = "restless"
RESTLESS_MOVES = ("rebalance.policy=restless", "rebalance.interval_s=0.5", "rebalance.rest_s=0.25")


@dataclass(frozen=True, slots=True)
class FailoverPlan:
    """How much is done: `kills` and `stops` alternate between instance and engine.

    `moves`: sequences move between instances at random. Every `remap_s` seconds layers are ordered away and back; 0:
    never.
    """

    kills: int = 30
    stops: int = 10
    instances: int = 3
    width: int = 6
    distinct_prompts: int = 12
    prompt_tokens: int = 48
    output_tokens: int = 192
    interrupts: str = "never"
    moves: bool = False
    remap_s: float = 0.0


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A process killed or stopped: which sequence it held, at which token, and after how long that went on.

    `record` is the sequence's own, with the times of its tokens. `by_order`: layers were missing by order meanwhile.
    """

    kind: str
    part: str
    instance: str
    pid: int
    record: RequestRecord
    held: int
    noticed_s: float
    by_order: bool = False


class InstanceFailoverCampaign:
    """One cluster, one chorus, faults one after the other."""

    def __init__(self, session: CampaignSession, plan: FailoverPlan) -> None:
        self.session = session
        self.plan = plan
        songs = make_jobs(plan.distinct_prompts, plan.prompt_tokens, plan.output_tokens, session.vocabulary)
        self.load = VerifiedLoad(session.door, songs, plan.width)
        self.orders = RandomLayerOrders(session.status, plan.remap_s)
        self.faults: list[InjectedFault] = []
        self.broken: list[str] = []
        self.commands = RowCommands()
        self._asked = 0

    async def run(self) -> None:
        """Learn the texts, then do every fault while the chorus sings."""
        await self.load.record_references()
        self._asked = len(self.load.records)
        async with self.load.running(), self.orders:
            for kind, part in faults(self.plan):
                await self._whole()
                while not await self._do(kind, part):
                    await self._whole()
                await self._count_commands()
        await self._count_commands()
        status = await self._whole()
        self.broken += [*unbalanced(status), *missing_layers(status), *self.orders.failed]

    async def _count_commands(self) -> None:
        """Before the monitor forgets: what was done to the requests that ended since the last time."""
        ended = self.load.records[self._asked :]
        self._asked += len(ended)
        for record in ended:
            self.commands += await self.session.row_commands(record.request)

    async def _whole(self) -> FleetStatus:
        return await wait_until(
            self.session.status, lambda s: placeable_count(s) == self.plan.instances, "all instances placeable", 90
        )

    async def _do(self, kind: str, part: str) -> bool:
        """One fault; False when the sequence had ended just before it, which proves nothing."""
        record, dispatched, pid = await self._victim(part)
        held, at_s, by_order = len(record.tokens), time.time(), self.orders.is_changing
        os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        try:
            again = await self._goes_on(record, dispatched.attempt, at_s)
        finally:
            if kind == "stop" and not gone(pid):
                os.kill(pid, signal.SIGCONT)
        if again is None:
            say(f"    {record.request} ended before the {kind} of its {part}; once more")
            return False
        by_order = by_order or self.orders.is_changing
        fault = InjectedFault(kind, part, dispatched.instance, pid, record, held, again.at_s - at_s, by_order)
        self.faults.append(fault)
        say(
            f"{len(self.faults):3} {kind:4} {part:8} of {fault.instance} (pid {pid}) while it held {record.request} "
            f"at token {held} of {record.output_tokens}: it goes on after {fault.noticed_s:.3f} s "
            f"with {again.done} tokens"
        )
        return True

    async def _victim(self, part: str) -> tuple[RequestRecord, DispatchedAttempt, int]:
        """An open request that was between its first and last token, and the process that holds it.

        On a busy machine the monitor answers late: what counts is that the request is open after its answer.
        """
        seen: Counter[str] = Counter()
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            going = self.load.mid_stream()[:1]
            seen["no stream"] += not going
            for record in going:
                status = await self.session.status()
                held = await self.session.dispatched_attempts(record.request)
                pid = _pid(instances(status), held[-1].instance, part) if held else 0
                is_open = self.load.is_open(record)
                if pid and is_open:
                    return record, held[-1], pid
                seen["ended too early" if not is_open else "no process" if held else "unknown to the monitor"] += 1
            await asyncio.sleep(0.01)
        streams = [(one.request, len(one.tokens)) for one in self.load.open.values()]
        raise RuntimeError(f"nothing to {part} for a minute: {dict(seen)}; open streams and their tokens: {streams}")

    async def _goes_on(self, record: RequestRecord, attempt: int, since_s: float) -> DispatchedAttempt | None:
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            for dispatched in await self.session.dispatched_attempts(record.request):
                if dispatched.attempt > attempt:
                    return dispatched
            if again := await self.session.resumed_at(record.request, since_s):
                return again
            if record.outcome == "ok":
                return None
            await asyncio.sleep(0.02)
        raise RuntimeError(
            f"{record.request} was not dispatched again and did not go on within 30 s of a fault of its instance"
        )


def faults(plan: FailoverPlan) -> Iterator[tuple[str, str]]:
    """The faults in order: stops spread among the kills, each kind of instance and engine in turn."""
    total = plan.kills + plan.stops
    kills = stops = 0
    for turn in range(total):
        if stops * total < turn * plan.stops or kills == plan.kills:
            yield "stop", ("instance", "engine")[stops % 2]
            stops += 1
        else:
            yield "kill", ("instance", "engine")[kills % 2]
            kills += 1


def longest_pause_s(token_s: Sequence[float]) -> float:
    """Seconds of the longest gap between two tokens of a stream; 0 with fewer than two."""
    return max((later - before for before, later in pairwise(token_s)), default=0.0)


def _pid(members: list[MemberStatus], name: str, part: str) -> int:
    for member in members:
        if member.address.name == name and member.instance is not None:
            return member.pid if part == "instance" else member.instance.engine_pid
    return 0


async def run(plan: FailoverPlan, cluster: ClusterProcess) -> BenchmarkResult:
    """The campaign against a running, deterministic cluster."""
    outcome = BenchmarkResult(f"failover: {plan.kills} kills and {plan.stops} stops under {plan.width} streams")
    async with CampaignSession(cluster) as session:
        campaign = InstanceFailoverCampaign(session, plan)
        await campaign.run()
        dispatcher = await session.dispatcher()
    outcome.failures = campaign.load.failures + campaign.broken
    outcome.figures["requests finished"] = campaign.load.finished
    outcome.figures["requests failed or with another text"] = len(campaign.load.failures)
    outcome.figures["dispatches repeated"] = dispatcher.replaced_total
    _latencies(outcome, campaign.faults, "kill", KILL_LIMIT_S)
    _latencies(outcome, campaign.faults, "stop", STOP_LIMIT_S)
    pauses = percentiles(longest_pause_s(fault.record.token_s) for fault in campaign.faults)
    outcome.figures["longest pause of a stream that a fault met, p50 / max (s)"] = (pauses.p50, pauses.max)
    outcome.figures["faults"] = len(campaign.faults)
    _restlessness(outcome, plan, campaign.commands, campaign.orders)
    outcome.expect(dispatcher.failed_total == 0, f"the dispatcher counts {dispatcher.failed_total} failed requests")
    return outcome


def _restlessness(
    outcome: BenchmarkResult, plan: FailoverPlan, commands: RowCommands, orders: RandomLayerOrders
) -> None:
    """What was ordered beside the faults; all that was planned must have happened, and nothing else."""
    is_interrupting = plan.interrupts != "never"
    counted = (
        ("rows told to leave a step, to be suspended", commands.suspends, is_interrupting),
        ("rows told to leave a step, discarded", commands.discards, is_interrupting),
        ("parked rows resumed", commands.resumes, is_interrupting),
        ("sequences moved", commands.moves, plan.moves),
        ("layers dropped by order", orders.dropped, plan.remap_s > 0),
        ("all layers restored by order", orders.restored, plan.remap_s > 0),
    )
    for name, count, is_planned in counted:
        outcome.figures[name] = count
        outcome.expect((count > 0) == is_planned, f"{name}: {count}")


def _latencies(outcome: BenchmarkResult, done: list[InjectedFault], kind: str, limit_s: float) -> None:
    """Where layers are missing by order, the sequence goes on when they are back: no limit is for that."""
    noticed_s = [fault.noticed_s for fault in done if fault.kind == kind and not fault.by_order]
    noticed = percentiles(noticed_s)
    outcome.figures[f"{kind} noticed after, p50 / max (s)"] = (noticed.p50, noticed.max)
    outcome.figures[f"{kind} noticed later than {limit_s:g} s"] = sum(each > limit_s for each in noticed_s)
    later_s = [fault.noticed_s for fault in done if fault.kind == kind and fault.by_order]
    if later_s:
        later = percentiles(later_s)
        name = f"{kind} while layers were missing by order: how many, p50 / max (s)"
        outcome.figures[name] = (len(later_s), later.p50, later.max)


def cluster_flags(plan: FailoverPlan) -> tuple[str, ...]:
    """What `dunlin up` needs for this campaign."""
    policy = f"instance.interrupts.policy={plan.interrupts}"
    moves = [flag for setting in RESTLESS_MOVES if plan.moves for flag in ("--set", f"manager.{setting}")]
    return ("--instances", str(plan.instances), "--deterministic", "--set", policy, *moves)


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--kills", type=int, default=30)
    arguments.add_argument("--stops", type=int, default=10)
    arguments.add_argument("--prompt-tokens", type=int, default=FailoverPlan().prompt_tokens, metavar="N")
    arguments.add_argument("--interrupts", choices=sorted(INTERRUPT_POLICIES), default=FailoverPlan().interrupts)
    arguments.add_argument("--restless", action="store_true", help="interrupts, moves and changes of layers at random")
    arguments.add_argument("--remap-s", type=float, default=10.0, metavar="S", help="of --restless")
    given = arguments.parse_args(argv)
    plan = FailoverPlan(
        kills=given.kills,
        stops=given.stops,
        instances=given.instances,
        prompt_tokens=given.prompt_tokens,
        interrupts=given.interrupts,
    )
    if given.restless:
        plan = dataclasses.replace(plan, interrupts=RESTLESS, moves=True, remap_s=given.remap_s)
    with ClusterProcess(*cluster_flags(plan)) as cluster:
        outcome = asyncio.run(run(plan, cluster))
    for kind in ("kill", "stop"):
        limit = KILL_LIMIT_S if kind == "kill" else STOP_LIMIT_S
        late = outcome.figures[f"{kind} noticed later than {limit:g} s"]
        outcome.expect(late == 0, f"{late} of the {kind}s were noticed after more than {limit:g} s")
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
