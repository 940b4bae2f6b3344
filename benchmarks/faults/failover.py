"""Kill and stop instances and engines in mid-sequence, under load: nobody may notice more than a pause.

    python -m benchmarks.faults.failover --kills 30 --stops 10
    python -m benchmarks.faults.failover --kills 200 --stops 0 --interrupts restless --prompt-tokens 400

Each victim holds a sequence between its first and last token (printed). Every text is compared with an undisturbed run
in deterministic mode. A fault counts as noticed when a dispatcher hands the sequence out again, or it
goes on in the next engine. With `--interrupts` rows leave running steps all the time, by that policy, and the
interrupts that met the requests are counted.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.harness import report
from benchmarks.harness.decisions import DispatchedAttempt
from benchmarks.harness.fleet_status import instances, placeable_count, unbalanced, wait_until
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
ASKED_REQUESTS = 100
"""Of the newest requests it is asked how often their rows were interrupted."""


@dataclass(frozen=True, slots=True)
class FailoverPlan:
    """How much is done: `kills` and `stops` alternate between instance and engine."""

    kills: int = 30
    stops: int = 10
    instances: int = 3
    width: int = 6
    distinct_prompts: int = 12
    prompt_tokens: int = 48
    output_tokens: int = 192
    interrupts: str = "never"


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A process killed or stopped: which sequence it held, at which token, and after how long that went on.

    `record` is the sequence's own, with the times of its tokens.
    """

    kind: str
    part: str
    instance: str
    pid: int
    record: RequestRecord
    held: int
    noticed_s: float


class InstanceFailoverCampaign:
    """One cluster, one chorus, faults one after the other."""

    def __init__(self, session: CampaignSession, plan: FailoverPlan) -> None:
        self.session = session
        self.plan = plan
        songs = make_jobs(plan.distinct_prompts, plan.prompt_tokens, plan.output_tokens, session.vocabulary)
        self.load = VerifiedLoad(session.door, songs, plan.width)
        self.faults: list[InjectedFault] = []
        self.broken: list[str] = []

    async def run(self) -> None:
        """Learn the texts, then do every fault while the chorus sings."""
        await self.load.record_references()
        async with self.load.running():
            for kind, part in faults(self.plan):
                await self._whole()
                while not await self._do(kind, part):
                    await self._whole()
        self.broken += unbalanced(await self._whole())

    async def _whole(self) -> FleetStatus:
        return await wait_until(
            self.session.status, lambda s: placeable_count(s) == self.plan.instances, "all instances placeable", 90
        )

    async def _do(self, kind: str, part: str) -> bool:
        """One fault; False when the sequence had ended just before it, which proves nothing."""
        record, dispatched, pid = await self._victim(part)
        held, at_s = len(record.tokens), time.time()
        os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        try:
            again = await self._goes_on(record, dispatched.attempt, at_s)
        finally:
            if kind == "stop" and not gone(pid):
                os.kill(pid, signal.SIGCONT)
        if again is None:
            say(f"    {record.request} ended before the {kind} of its {part}; once more")
            return False
        fault = InjectedFault(kind, part, dispatched.instance, pid, record, held, again.at_s - at_s)
        self.faults.append(fault)
        say(
            f"{len(self.faults):3} {kind:4} {part:8} of {fault.instance} (pid {pid}) while it held {record.request} "
            f"at token {held} of {record.output_tokens}: it goes on after {fault.noticed_s:.3f} s "
            f"with {again.done} tokens"
        )
        return True

    async def _victim(self, part: str) -> tuple[RequestRecord, DispatchedAttempt, int]:
        """An open request between its first and last token, and the process that holds it."""
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            for record in self.load.mid_stream()[:1]:
                status = await self.session.status()
                held = await self.session.dispatched_attempts(record.request)
                pid = _pid(instances(status), held[-1].instance, part) if held else 0
                if pid and record in self.load.mid_stream():
                    return record, held[-1], pid
            await asyncio.sleep(0.01)
        raise RuntimeError("no sequence between its first and last token for a minute")

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
        left = [await session.row_commands(record.request) for record in campaign.load.records[-ASKED_REQUESTS:]]
    outcome.failures = campaign.load.failures + campaign.broken
    outcome.figures["requests finished"] = campaign.load.finished
    outcome.figures["requests failed or with another text"] = len(campaign.load.failures)
    outcome.figures["dispatches repeated"] = dispatcher.replaced_total
    _latencies(outcome, campaign.faults, "kill", KILL_LIMIT_S)
    _latencies(outcome, campaign.faults, "stop", STOP_LIMIT_S)
    pauses = percentiles(longest_pause_s(fault.record.token_s) for fault in campaign.faults)
    outcome.figures["longest pause of a stream that a fault met, p50 / max (s)"] = (pauses.p50, pauses.max)
    outcome.figures["faults"] = len(campaign.faults)
    interrupts, resumed = sum(each.interrupts for each in left), sum(each.resumes for each in left)
    outcome.figures[f"interrupts / resumes of rows of the last {len(left)} requests"] = (interrupts, resumed)
    outcome.expect((interrupts > 0) == (plan.interrupts != "never"), f"{interrupts} interrupts by {plan.interrupts}")
    outcome.expect(dispatcher.failed_total == 0, f"the dispatcher counts {dispatcher.failed_total} failed requests")
    return outcome


def _latencies(outcome: BenchmarkResult, done: list[InjectedFault], kind: str, limit_s: float) -> None:
    noticed = percentiles(fault.noticed_s for fault in done if fault.kind == kind)
    outcome.figures[f"{kind} noticed after, p50 / max (s)"] = (noticed.p50, noticed.max)
    outcome.figures[f"{kind} noticed later than {limit_s:g} s"] = sum(
        fault.noticed_s > limit_s for fault in done if fault.kind == kind
    )


def cluster_flags(plan: FailoverPlan) -> tuple[str, ...]:
    """What `dunlin up` needs for this campaign."""
    policy = f"instance.interrupts.policy={plan.interrupts}"
    return ("--instances", str(plan.instances), "--deterministic", "--set", policy)


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--kills", type=int, default=30)
    arguments.add_argument("--stops", type=int, default=10)
    arguments.add_argument("--prompt-tokens", type=int, default=FailoverPlan().prompt_tokens, metavar="N")
    arguments.add_argument("--interrupts", choices=sorted(INTERRUPT_POLICIES), default=FailoverPlan().interrupts)
    given = arguments.parse_args(argv)
    plan = FailoverPlan(
        kills=given.kills,
        stops=given.stops,
        instances=given.instances,
        prompt_tokens=given.prompt_tokens,
        interrupts=given.interrupts,
    )
    with ClusterProcess(*cluster_flags(plan)) as cluster:
        outcome = asyncio.run(run(plan, cluster))
    for kind in ("kill", "stop"):
        limit = KILL_LIMIT_S if kind == "kill" else STOP_LIMIT_S
        late = outcome.figures[f"{kind} noticed later than {limit:g} s"]
        outcome.expect(late == 0, f"{late} of the {kind}s were noticed after more than {limit:g} s")
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
