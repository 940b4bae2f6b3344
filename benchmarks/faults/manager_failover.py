"""Two managers: the one that leads is killed, then stopped, under load; the other one leads and no stream notices.

python -m benchmarks.faults.manager_failover --rounds 5
"""

import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from benchmarks.harness import report
from benchmarks.harness.fault_targets import leads
from benchmarks.harness.fleet_status import placeable_count, wait_until
from benchmarks.harness.processes import stopped
from benchmarks.harness.report import BenchmarkResult, say
from benchmarks.harness.session import CampaignSession
from benchmarks.harness.verified_load import VerifiedLoad, make_jobs
from cli.launch.cluster_process import ClusterProcess
from dunlin.messages.fleet import FleetStatus, MemberStatus
from dunlin.wire.codec import decode


@dataclass(frozen=True, slots=True)
class ManagerFailoverPlan:
    """`rounds` of a kill and a stop each; a stop lasts until the other one leads and `stopped_s` more."""

    rounds: int = 5
    stopped_s: float = 1.0
    instances: int = 2
    width: int = 4
    distinct_prompts: int = 6
    prompt_tokens: int = 32
    output_tokens: int = 128


@dataclass(slots=True)
class ManagerFailoverFindings:
    """Epochs in the order in which they were seen, seconds from each fault to the next epoch, and the disturbed."""

    epochs: list[int] = field(default_factory=list)
    successions_s: dict[str, list[float]] = field(default_factory=lambda: {"killed": [], "stopped": []})
    disturbed: list[str] = field(default_factory=list)
    watched: int = 0


def leaders(status: FleetStatus) -> list[MemberStatus]:
    """The managers that say that they lead, the one with the highest epoch last."""
    return sorted(filter(leads, status.members), key=epoch_of)


def epoch_of(member: MemberStatus) -> int:
    """The term that a manager says it leads; 0: none."""
    return member.manager.epoch if member.manager is not None else 0


async def run(plan: ManagerFailoverPlan, cluster: ClusterProcess) -> BenchmarkResult:
    """The campaign against a running, deterministic cluster with two managers."""
    outcome = BenchmarkResult(f"two managers: the leader killed and stopped, {plan.rounds} times each")
    findings = ManagerFailoverFindings()
    async with CampaignSession(cluster) as session:
        songs = make_jobs(plan.distinct_prompts, plan.prompt_tokens, plan.output_tokens, session.vocabulary)
        chorus = VerifiedLoad(session.door, songs, plan.width)
        await chorus.record_references()
        async with chorus.running():
            for _ in range(plan.rounds):
                for how, fault in (("killed", _killed), ("stopped", _stopped)):
                    await _one(plan, session, chorus, findings, how, fault)
    _judge(outcome, chorus, findings)
    return outcome


Fault = Callable[[ManagerFailoverPlan, CampaignSession, MemberStatus], Awaitable[tuple[float, int]]]


async def _one(
    plan: ManagerFailoverPlan,
    session: CampaignSession,
    chorus: VerifiedLoad,
    findings: ManagerFailoverFindings,
    how: str,
    fault: Fault,
) -> None:
    """One fault; then the cluster is given time to be as before."""
    status = await wait_until(session.status, lambda s: _whole(plan, s), "two managers, of which one leads")
    leader = leaders(status)[-1]
    running = [record.request for record in chorus.open.values() if record.request]
    say(f"{leader.address.name}, which leads in epoch {epoch_of(leader)}, is {how}")
    took_s, epoch = await fault(plan, session, leader)
    findings.successions_s[how].append(took_s)
    findings.epochs += [epoch_of(leader), epoch]
    running += [record.request for record in chorus.open.values() if record.request]
    await asyncio.sleep(1.0)  # until the monitor has heard of the latest decisions
    for request in dict.fromkeys(running):
        findings.watched += 1
        if len(await session.dispatched_attempts(request)) > 1:
            findings.disturbed.append(f"{request} ({await _story(session, request)})")


async def _story(session: CampaignSession, request: str) -> str:
    """What happened to a request besides steps, in the words of its decisions."""
    told = [
        (reason.kind, decode(reason.kind, reason.payload)) for reason in (await session.client.explain(request)).reasons
    ]
    return "; ".join(f"{kind}: {getattr(message, 'why', None)}" for kind, message in told if kind != "Step")


async def _killed(plan: ManagerFailoverPlan, session: CampaignSession, leader: MemberStatus) -> tuple[float, int]:
    began_s = time.monotonic()
    os.kill(leader.pid, signal.SIGKILL)
    return await _succession(session, epoch_of(leader), began_s)


async def _stopped(plan: ManagerFailoverPlan, session: CampaignSession, leader: MemberStatus) -> tuple[float, int]:
    began_s = time.monotonic()
    with stopped(leader.pid):
        found = await _succession(session, epoch_of(leader), began_s)
        await asyncio.sleep(plan.stopped_s)
    return found


async def _succession(session: CampaignSession, epoch: int, began_s: float) -> tuple[float, int]:
    """Seconds until a manager leads in a higher epoch, and that epoch."""
    status = await wait_until(
        session.status, lambda s: any(epoch_of(member) > epoch for member in leaders(s)), "the next leader"
    )
    return time.monotonic() - began_s, epoch_of(leaders(status)[-1])


def _whole(plan: ManagerFailoverPlan, status: FleetStatus) -> bool:
    managers = [member for member in status.members if member.address.role == "global_manager" and member.connected]
    return len(managers) == 2 and len(leaders(status)) == 1 and placeable_count(status) == plan.instances


def _judge(outcome: BenchmarkResult, chorus: VerifiedLoad, findings: ManagerFailoverFindings) -> None:
    outcome.failures = list(chorus.failures)
    outcome.expect(findings.epochs == sorted(findings.epochs), f"epochs do not rise: {findings.epochs}")
    outcome.expect(not findings.disturbed, f"dispatched more than once: {', '.join(findings.disturbed)}")
    gaps = [later - earlier for record in chorus.records for earlier, later in itertools.pairwise(record.token_s)]
    outcome.figures |= {
        "requests finished": chorus.finished,
        "failed or different": len(chorus.failures),
        "requests under a fault": findings.watched,
        "of these dispatched more than once": len(findings.disturbed),
        "terms": len(set(findings.epochs)),
        "from a kill to the next epoch (s)": findings.successions_s["killed"],
        "from a stop to the next epoch (s)": findings.successions_s["stopped"],
        "longest gap within a stream (s)": max(gaps, default=0.0),
    }


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument(
        "--rounds", type=int, default=ManagerFailoverPlan().rounds, metavar="N", help="kills, and as many stops"
    )
    given = arguments.parse_args(argv)
    plan = ManagerFailoverPlan(rounds=given.rounds, instances=given.instances)
    with ClusterProcess(*cluster_flags(plan)) as cluster:
        outcome = asyncio.run(run(plan, cluster))
    return report.finish(outcome, given.json)


def cluster_flags(plan: ManagerFailoverPlan) -> tuple[str, ...]:
    """For `dunlin up`."""
    return ("--instances", str(plan.instances), "--managers", "2", "--deterministic")


if __name__ == "__main__":
    sys.exit(main())
