"""Clients that hang up right after their first token, many at once, through both doors: no slot may be lost, and no
descriptor of the dispatcher.

python -m benchmarks.faults.disconnects --count 2000 --open 32
python -m benchmarks.faults.disconnects --count 500 --open 500 --cut 339
"""

import asyncio
import sys
from contextlib import aclosing
from dataclasses import dataclass

from benchmarks.harness import report
from benchmarks.harness.fault_targets import pid_of
from benchmarks.harness.fleet_status import NotReached, instances_with_used_slots, unbalanced, wait_until
from benchmarks.harness.processes import descriptors
from benchmarks.harness.report import BenchmarkResult, say
from benchmarks.harness.session import CampaignSession
from benchmarks.harness.verified_load import make_jobs
from cli.launch.cluster_process import ClusterProcess
from dunlin.workload.loadgen.load_generator import LoadTarget, RequestFailed, RequestRejected
from dunlin.workload.traffic.prompts import Job


@dataclass(frozen=True, slots=True)
class DisconnectPlan:
    """`count` streams, half through each door, `open_at_once` at any time; `cut` of them end early, None: all."""

    count: int = 2000
    open_at_once: int = 32
    cut: int | None = None
    prompt_tokens: int = 32
    output_tokens: int = 256

    @property
    def cuts(self) -> int:
        """How many end early."""
        return self.count if self.cut is None else self.cut

    def is_cut(self, turn: int) -> bool:
        """Whether this one ends early; those that do are spread evenly."""
        return turn * self.cuts // self.count != (turn + 1) * self.cuts // self.count


class DisconnectingClients:
    """Clients that leave. Owns the counts."""

    def __init__(self, doors: dict[str, LoadTarget], jobs: list[Job], plan: DisconnectPlan) -> None:
        self._doors = doors
        self._jobs = jobs
        self._plan = plan
        self._turns = iter(range(plan.count))
        self.left = dict.fromkeys(doors, 0)
        self.finished = 0
        self.open = 0
        self.most_open = 0
        self.failures: list[str] = []

    async def run(self) -> None:
        """All of them."""
        await asyncio.gather(*(self._client() for _ in range(self._plan.open_at_once)))

    async def _client(self) -> None:
        names = list(self._doors)
        for turn in self._turns:
            name = names[turn % len(names)]
            try:
                await self._read_stream(name, self._jobs[turn % len(self._jobs)], self._plan.is_cut(turn))
            except (RequestFailed, RequestRejected) as error:
                self.failures.append(f"{name} #{turn}: {type(error).__name__}: {error}")

    async def _read_stream(self, name: str, job: Job, is_cut: bool) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            async with aclosing(self._doors[name].stream(job)) as stream:
                async for arrived in stream:
                    if arrived.tokens and is_cut:
                        self.left[name] += 1
                        return
            if is_cut:
                raise RequestFailed("it ended before its first token")
            self.finished += 1
        finally:
            self.open -= 1


class SlotWatch:
    """Looks at the slots ten times a second: every look must add up. Owns what did not."""

    def __init__(self, session: CampaignSession) -> None:
        self._session = session
        self._over = False
        self.looks = 0
        self.lost: list[str] = []

    async def run(self) -> None:
        """Until `finish`."""
        while not self._over:
            self.lost += unbalanced(await self._session.status())
            self.looks += 1
            await asyncio.sleep(0.1)

    def finish(self) -> None:
        """Look no more."""
        self._over = True


async def run(plan: DisconnectPlan, cluster: ClusterProcess) -> BenchmarkResult:
    """The campaign against a running cluster."""
    title = f"disconnects: {plan.cuts} of {plan.count} after their first token, {plan.open_at_once} open at once"
    outcome = BenchmarkResult(title)
    async with CampaignSession(cluster) as session:
        jobs = make_jobs(64, plan.prompt_tokens, plan.output_tokens, session.vocabulary)
        doors: dict[str, LoadTarget] = {"grpc": session.door, "http": session.http_door}
        await DisconnectingClients(
            doors, jobs, DisconnectPlan(count=4, open_at_once=1)
        ).run()  # what opens at the first call stays open
        pid = pid_of("dispatcher", await session.status(), cluster)
        before = descriptors(pid)
        rude = DisconnectingClients(doors, jobs, plan)
        watcher = SlotWatch(session)
        watching = asyncio.create_task(watcher.run())
        try:
            await rude.run()
            say(f"all {plan.count} have left")
            await wait_until(
                session.status, lambda status: not instances_with_used_slots(status), "every slot to be free", 30
            )
            await wait_until(session.status, lambda _: descriptors(pid) <= before, "every descriptor to be closed", 30)
        except NotReached as unsettled:
            outcome.failures.append(f"{unsettled}: {', '.join(instances_with_used_slots(await session.status()))}")
        finally:
            watcher.finish()
            await watching
    outcome.failures += rude.failures[:5] + watcher.lost[:5]
    outcome.figures |= {f"left through {name}": count for name, count in rude.left.items()}
    outcome.figures["read to the end"] = rude.finished
    outcome.figures |= {"descriptors of the dispatcher before": before, "after": descriptors(pid)}
    outcome.figures |= {"most open at once": rude.most_open, "failures": len(rude.failures)}
    outcome.figures |= {"looks at the slots": watcher.looks, "looks that did not add up": len(watcher.lost)}
    left = sum(rude.left.values())
    outcome.expect(left == plan.cuts, f"only {left} of {plan.cuts} got a token")
    outcome.expect(rude.finished == plan.count - plan.cuts, f"only {rude.finished} others were read to the end")
    outcome.expect(rude.most_open >= plan.open_at_once, f"never more than {rude.most_open} were open at once")
    return outcome


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--count", type=int, default=2000)
    arguments.add_argument("--open", type=int, default=32)
    arguments.add_argument("--cut", type=int, help="how many end early (all unless said)")
    given = arguments.parse_args(argv)
    with ClusterProcess("--instances", str(given.instances)) as cluster:
        outcome = asyncio.run(run(DisconnectPlan(given.count, given.open, given.cut), cluster))
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
