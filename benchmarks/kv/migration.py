"""Move running sequences between instances under load: what does the move add to the gap before the next token?

    python -m benchmarks.kv.migration --moves 1000
    python -m benchmarks.kv.migration --moves 1000 --nodes 3     each instance with a kvstore of its own
    python -m benchmarks.kv.migration --moves 100 --namespaces   two nodes with nothing but a cable between them

Instances are drained and taken back one after the other while the chorus sings; every text is compared with an
undisturbed run in deterministic mode. A moved stream's gap at the move is compared with the other gaps of that stream.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import pairwise

from benchmarks.harness import report
from benchmarks.harness.fleet_status import placeable_count, reports, unbalanced, wait_until
from benchmarks.harness.namespaces import two_nodes
from benchmarks.harness.report import BenchmarkResult, say
from benchmarks.harness.session import CampaignSession
from benchmarks.harness.verified_load import VerifiedLoad, make_jobs
from cli.launch.cluster_process import ClusterProcess
from dunlin.messages.dispatch import Place
from dunlin.messages.fleet import FleetStatus, InstanceReport
from dunlin.messages.plan import DrainOutcome
from dunlin.wire.codec import decode
from dunlin.workload.loadgen.stats import RequestRecord, percentiles


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """How much is moved, and beside what."""

    moves: int = 1000
    instances: int = 3
    nodes: int = 1
    width: int = 6
    distinct_prompts: int = 12
    prompt_tokens: int = 96
    output_tokens: int = 256


@dataclass(frozen=True, slots=True)
class TokenGap:
    """Before the first token after a move: `gap_s`, and `usual_s`, the median of the other gaps of that stream."""

    gap_s: float
    usual_s: float

    @property
    def added_s(self) -> float:
        """What the move cost the reader."""
        return max(0.0, self.gap_s - self.usual_s)


def gaps_at(record: RequestRecord, moved_at: Sequence[int]) -> list[TokenGap]:
    """The gaps before the tokens at `moved_at`, the first of each attempt that took over."""
    gaps = [later - earlier for earlier, later in pairwise(record.token_s)]
    usual = [gap for index, gap in enumerate(gaps) if index + 1 not in moved_at]
    if not usual:
        return []
    middle = statistics.median(usual)
    return [TokenGap(gaps[at - 1], middle) for at in moved_at if 0 < at <= len(gaps)]


def usual_gaps(record: RequestRecord, moved_at: Sequence[int]) -> list[float]:
    """All the others."""
    return [b - a for index, (a, b) in enumerate(pairwise(record.token_s)) if index + 1 not in moved_at]


class MigrationCampaign:
    """One cluster, one chorus, drains in turn."""

    def __init__(self, session: CampaignSession, plan: MigrationPlan) -> None:
        self.session = session
        self.plan = plan
        songs = make_jobs(plan.distinct_prompts, plan.prompt_tokens, plan.output_tokens, session.vocabulary)
        self.load = VerifiedLoad(session.door, songs, plan.width)
        self.gaps: list[TokenGap] = []
        self.usual: list[float] = []
        self.drains_s: list[float] = []
        self._looked_at = 0

    async def run(self) -> None:
        """Learn the texts, then drain until enough has moved."""
        await self.load.record_references()
        self._looked_at = len(self.load.records)
        async with self.load.running():
            while await self._moved() < self.plan.moves:
                for name in sorted(dict(reports(await self.session.status()))):
                    await self._drain(name)
                await self._read()
        await asyncio.sleep(1.0)  # for the last reasons
        await self._read()

    async def _moved(self) -> int:
        return total(reports(await self.session.status()), "migrations_total")

    async def _drain(self, name: str) -> None:
        await self._until(lambda report: report.running >= self.plan.width // self.plan.instances, name, 20)
        began_s = time.monotonic()
        reply = await self.session.client.drain(name)
        if reply.outcome is not DrainOutcome.ORDERED:
            raise RuntimeError(f"{name} was not drained: {reply.outcome.name} {reply.detail}")
        await self._until(lambda report: report.draining and report.running + report.waiting == 0, name, 60)
        self.drains_s.append(time.monotonic() - began_s)
        await self.session.client.drain(name, undo=True)
        await wait_until(self.session.status, self._is_whole, "all instances placeable", 30)
        say(f"{await self._moved():5} of {self.plan.moves} moved; {name} was empty after {self.drains_s[-1]:.2f} s")

    async def _until(self, holds: Callable[[InstanceReport], bool], name: str, limit_s: float) -> None:
        await wait_until(
            self.session.status, lambda status: holds(dict(reports(status))[name]), f"{name} as wanted", limit_s
        )

    def _is_whole(self, status: FleetStatus) -> bool:
        taking = [report for _, report in reports(status) if not report.draining]
        return len(taking) == self.plan.instances == placeable_count(status)

    async def _read(self) -> None:
        """The gaps of what ended since the last time, while the monitor still knows of it."""
        fresh, self._looked_at = self.load.records[self._looked_at :], len(self.load.records)
        for record in fresh:
            reasons = (await self.session.client.explain(record.request)).reasons
            places = [decode(reason.kind, reason.payload) for reason in reasons if reason.kind == "Place"]
            moved_at = [len(p.tokens) - p.prompt_tokens for p in places if isinstance(p, Place) and p.handle]
            self.gaps += gaps_at(record, moved_at)
            self.usual += usual_gaps(record, moved_at)


def total(found: Iterable[tuple[str, InstanceReport]], counter: str) -> int:
    """The sum of one counter over the instances."""
    return sum(getattr(report, counter) for _, report in found)


async def run(plan: MigrationPlan, cluster: ClusterProcess) -> BenchmarkResult:
    """The campaign against a running, deterministic cluster."""
    where = "on one node" if plan.nodes == 1 else f"on {plan.nodes} nodes"
    outcome = BenchmarkResult(f"migration: {plan.moves} moves under {plan.width} streams {where}")
    async with CampaignSession(cluster) as session:
        campaign = MigrationCampaign(session, plan)
        await campaign.run()
        status, dispatcher = await session.status(), await session.dispatcher()
    found = list(reports(status))
    outcome.failures = [*campaign.load.failures, *unbalanced(status)]
    outcome.figures["requests finished"] = campaign.load.finished
    outcome.figures["requests failed or with another text"] = len(campaign.load.failures)
    for counter in ("migrations_total", "migrations_failed_total", "migrated_tokens_total"):
        outcome.figures[counter.removesuffix("_total").replace("_", " ")] = total(found, counter)
    outcome.figures["dispatches repeated after a loss"] = dispatcher.replaced_total
    _gaps(outcome, campaign)
    outcome.expect(dispatcher.failed_total == 0, f"the dispatcher counts {dispatcher.failed_total} failed requests")
    outcome.expect(dispatcher.replaced_total == 0, f"{dispatcher.replaced_total} dispatches were lost")
    outcome.expect(bool(campaign.gaps), "no gap at a move was seen")
    return outcome


def _gaps(outcome: BenchmarkResult, campaign: MigrationCampaign) -> None:
    at_moves = percentiles(gap.gap_s for gap in campaign.gaps)
    added = percentiles(gap.added_s for gap in campaign.gaps)
    usual, drains = percentiles(campaign.usual), percentiles(campaign.drains_s)
    outcome.figures["moves whose gap was measured"] = len(campaign.gaps)
    outcome.figures["gap at a move, p50 / p99 / max (ms)"] = _ms(at_moves.p50, at_moves.p99, at_moves.max)
    outcome.figures["other gaps of all streams, p50 / p99 / max (ms)"] = _ms(usual.p50, usual.p99, usual.max)
    outcome.figures["added to the stream's usual gap, p50 / p99 / max (ms)"] = _ms(added.p50, added.p99, added.max)
    outcome.figures["drains"] = len(campaign.drains_s)
    outcome.figures["an instance was empty after, p50 / max (s)"] = (round(drains.p50, 2), round(drains.max, 2))


def _ms(*values_s: float) -> tuple[float, ...]:
    return tuple(round(1e3 * value, 1) for value in values_s)


def cluster_flags(plan: MigrationPlan) -> tuple[str, ...]:
    """What `dunlin up` needs for this campaign."""
    return ("--instances", str(plan.instances), "--nodes", str(plan.nodes), "--deterministic")


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--moves", type=int, default=1000, metavar="N", help="sequences to move in all")
    arguments.add_argument("--nodes", type=int, default=1, metavar="N", help="nodes that the instances are spread over")
    arguments.add_argument("--namespaces", action="store_true", help="two nodes with only a cable between (needs root)")
    arguments.add_argument("--transport", default="auto", help="between nodes: auto, sockets, nixl (default: auto)")
    given = arguments.parse_args(argv)
    plan = MigrationPlan(moves=given.moves, instances=given.instances, nodes=given.nodes)
    if given.namespaces:
        plan = replace(plan, instances=2, nodes=2)
    with started(plan, given.transport, given.namespaces) as cluster:
        outcome = asyncio.run(run(plan, cluster))
    return report.finish(outcome, given.json)


def started(plan: MigrationPlan, transport: str, has_namespaces: bool) -> AbstractContextManager[ClusterProcess]:
    """The cluster, to be entered."""
    return two_nodes(transport) if has_namespaces else ClusterProcess(*cluster_flags(plan), "--transport", transport)


if __name__ == "__main__":
    sys.exit(main())
