"""Kill and stop instances and engines in mid-sequence, under load: nobody may notice more than a pause.

    python -m benchmarks.failover --kills 30 --stops 10

Each victim holds a sequence between its first and last token (printed). Every text is compared with an undisturbed run
in deterministic mode. A fault counts as noticed when a dispatcher hands the sequence out again, or it
goes on in the next engine.
"""

import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks import output
from benchmarks.chorus import Chorus, make_songs
from benchmarks.explaining import HandOut
from benchmarks.fleet import instances, placeable_count, settle, unbalanced
from benchmarks.output import Outcome, say
from benchmarks.processes import gone
from benchmarks.session import Session
from dunlin.launch.process import ClusterProcess
from dunlin.messages.fleet import FleetStatus, MemberStatus
from dunlin.workload.stats import Record, spread

KILL_LIMIT_S = 0.5
STOP_LIMIT_S = 3.5


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is done: `kills` and `stops` alternate between instance and engine."""

    kills: int = 30
    stops: int = 10
    instances: int = 3
    width: int = 6
    songs: int = 12
    prompt_tokens: int = 48
    output_tokens: int = 192


@dataclass(frozen=True, slots=True)
class Fault:
    """A process killed or stopped: which sequence it held, at which token, and after how long that went on.

    `record` is the sequence's own, with the times of its tokens.
    """

    kind: str
    part: str
    instance: str
    pid: int
    record: Record
    held: int
    noticed_s: float


class Campaign:
    """One cluster, one chorus, faults one after the other."""

    def __init__(self, session: Session, plan: Plan) -> None:
        self.session = session
        self.plan = plan
        songs = make_songs(plan.songs, plan.prompt_tokens, plan.output_tokens, session.vocabulary)
        self.chorus = Chorus(session.door, songs, plan.width)
        self.faults: list[Fault] = []
        self.broken: list[str] = []

    async def run(self) -> None:
        """Learn the texts, then do every fault while the chorus sings."""
        await self.chorus.learn()
        async with self.chorus.singing():
            for kind, part in faults(self.plan):
                await self._whole()
                while not await self._do(kind, part):
                    await self._whole()
        self.broken += unbalanced(await self._whole())

    async def _whole(self) -> FleetStatus:
        return await settle(
            self.session.look, lambda s: placeable_count(s) == self.plan.instances, "all instances placeable", 90
        )

    async def _do(self, kind: str, part: str) -> bool:
        """One fault; False when the sequence had ended just before it, which proves nothing."""
        record, hand_out, pid = await self._victim(part)
        held, at_s = len(record.tokens), time.time()
        os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
        try:
            again = await self._goes_on(record, hand_out.attempt, at_s)
        finally:
            if kind == "stop" and not gone(pid):
                os.kill(pid, signal.SIGCONT)
        if again is None:
            say(f"    {record.request} ended before the {kind} of its {part}; once more")
            return False
        fault = Fault(kind, part, hand_out.instance, pid, record, held, again.at_s - at_s)
        self.faults.append(fault)
        say(
            f"{len(self.faults):3} {kind:4} {part:8} of {fault.instance} (pid {pid}) while it held {record.request} "
            f"at token {held} of {record.output_tokens}: it goes on after {fault.noticed_s:.3f} s "
            f"with {again.done} tokens"
        )
        return True

    async def _victim(self, part: str) -> tuple[Record, HandOut, int]:
        """An open request between its first and last token, and the process that holds it."""
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:
            for record in self.chorus.midway()[:1]:
                status = await self.session.look()
                held = await self.session.hand_outs(record.request)
                pid = _pid(instances(status), held[-1].instance, part) if held else 0
                if pid and record in self.chorus.midway():
                    return record, held[-1], pid
            await asyncio.sleep(0.01)
        raise RuntimeError("no sequence between its first and last token for a minute")

    async def _goes_on(self, record: Record, attempt: int, since_s: float) -> HandOut | None:
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            for hand_out in await self.session.hand_outs(record.request):
                if hand_out.attempt > attempt:
                    return hand_out
            if again := await self.session.revived(record.request, since_s):
                return again
            if record.outcome == "ok":
                return None
            await asyncio.sleep(0.02)
        raise RuntimeError(
            f"{record.request} was not handed out again and did not go on within 30 s of a fault of its instance"
        )


def faults(plan: Plan) -> Iterator[tuple[str, str]]:
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


async def run(plan: Plan, cluster: ClusterProcess) -> Outcome:
    """The campaign against a running, deterministic cluster."""
    outcome = Outcome(f"failover: {plan.kills} kills and {plan.stops} stops under {plan.width} streams")
    async with Session(cluster) as session:
        campaign = Campaign(session, plan)
        await campaign.run()
        dispatcher = await session.dispatcher()
    outcome.broken = campaign.chorus.failures + campaign.broken
    outcome.figures["requests finished"] = campaign.chorus.finished
    outcome.figures["requests failed or with another text"] = len(campaign.chorus.failures)
    outcome.figures["hand-outs repeated"] = dispatcher.replaced_total
    _latencies(outcome, campaign.faults, "kill", KILL_LIMIT_S)
    _latencies(outcome, campaign.faults, "stop", STOP_LIMIT_S)
    pauses = spread(longest_pause_s(fault.record.token_s) for fault in campaign.faults)
    outcome.figures["longest pause of a stream that a fault met, p50 / max (s)"] = (pauses.p50, pauses.max)
    outcome.figures["faults"] = len(campaign.faults)
    outcome.expect(dispatcher.failed_total == 0, f"the dispatcher counts {dispatcher.failed_total} failed requests")
    return outcome


def _latencies(outcome: Outcome, done: list[Fault], kind: str, limit_s: float) -> None:
    noticed = spread(fault.noticed_s for fault in done if fault.kind == kind)
    outcome.figures[f"{kind} noticed after, p50 / max (s)"] = (noticed.p50, noticed.max)
    outcome.figures[f"{kind} noticed later than {limit_s:g} s"] = sum(
        fault.noticed_s > limit_s for fault in done if fault.kind == kind
    )


def cluster_flags(plan: Plan) -> tuple[str, ...]:
    """What `dunlin up` needs for this campaign."""
    return ("--instances", str(plan.instances), "--deterministic")


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = output.parser(__doc__ or "")
    arguments.add_argument("--kills", type=int, default=30)
    arguments.add_argument("--stops", type=int, default=10)
    given = arguments.parse_args(argv)
    plan = Plan(kills=given.kills, stops=given.stops, instances=given.instances)
    with ClusterProcess(*cluster_flags(plan)) as cluster:
        outcome = asyncio.run(run(plan, cluster))
    for kind in ("kill", "stop"):
        limit = KILL_LIMIT_S if kind == "kill" else STOP_LIMIT_S
        late = outcome.figures[f"{kind} noticed later than {limit:g} s"]
        outcome.expect(late == 0, f"{late} of the {kind}s were noticed after more than {limit:g} s")
    return output.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
