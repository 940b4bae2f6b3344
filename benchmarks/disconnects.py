"""Clients that hang up right after their first token, many at once, through both doors: no slot may be lost, and no
descriptor of the dispatcher.

python -m benchmarks.disconnects --count 2000 --open 32
python -m benchmarks.disconnects --count 500 --open 500 --cut 339
"""

import asyncio
import sys
from contextlib import aclosing
from dataclasses import dataclass

from benchmarks import output
from benchmarks.chorus import make_songs
from benchmarks.fleet import Unsettled, occupied, settle, unbalanced
from benchmarks.output import Outcome, say
from benchmarks.processes import descriptors
from benchmarks.session import Session
from benchmarks.victims import pid_of
from dunlin.launch.process import ClusterProcess
from dunlin.workload.generator import Door, DoorFailed, DoorRefused
from dunlin.workload.prompts import Job


@dataclass(frozen=True, slots=True)
class Plan:
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


class Rude:
    """Clients that leave. Owns the counts."""

    def __init__(self, doors: dict[str, Door], jobs: list[Job], plan: Plan) -> None:
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
                await self._read(name, self._jobs[turn % len(self._jobs)], self._plan.is_cut(turn))
            except (DoorFailed, DoorRefused) as error:
                self.failures.append(f"{name} #{turn}: {type(error).__name__}: {error}")

    async def _read(self, name: str, job: Job, is_cut: bool) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            async with aclosing(self._doors[name].stream(job)) as stream:
                async for arrived in stream:
                    if arrived.tokens and is_cut:
                        self.left[name] += 1
                        return
            if is_cut:
                raise DoorFailed("it ended before its first token")
            self.finished += 1
        finally:
            self.open -= 1


class Watcher:
    """Looks at the slots ten times a second: every look must add up. Owns what did not."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._over = False
        self.looks = 0
        self.lost: list[str] = []

    async def run(self) -> None:
        """Until `finish`."""
        while not self._over:
            self.lost += unbalanced(await self._session.look())
            self.looks += 1
            await asyncio.sleep(0.1)

    def finish(self) -> None:
        """Look no more."""
        self._over = True


async def run(plan: Plan, cluster: ClusterProcess) -> Outcome:
    """The campaign against a running cluster."""
    title = f"disconnects: {plan.cuts} of {plan.count} after their first token, {plan.open_at_once} open at once"
    outcome = Outcome(title)
    async with Session(cluster) as session:
        jobs = make_songs(64, plan.prompt_tokens, plan.output_tokens, session.vocabulary)
        doors: dict[str, Door] = {"grpc": session.door, "http": session.http_door}
        await Rude(doors, jobs, Plan(count=4, open_at_once=1)).run()  # what opens at the first call stays open
        pid = pid_of("dispatcher", await session.look(), cluster)
        before = descriptors(pid)
        rude = Rude(doors, jobs, plan)
        watcher = Watcher(session)
        watching = asyncio.create_task(watcher.run())
        try:
            await rude.run()
            say(f"all {plan.count} have left")
            await settle(session.look, lambda status: not occupied(status), "every slot to be free", 30)
            await settle(session.look, lambda _: descriptors(pid) <= before, "every descriptor to be closed", 30)
        except Unsettled as unsettled:
            outcome.broken.append(f"{unsettled}: {', '.join(occupied(await session.look()))}")
        finally:
            watcher.finish()
            await watching
    outcome.broken += rude.failures[:5] + watcher.lost[:5]
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
    arguments = output.parser(__doc__ or "")
    arguments.add_argument("--count", type=int, default=2000)
    arguments.add_argument("--open", type=int, default=32)
    arguments.add_argument("--cut", type=int, help="how many end early (all unless said)")
    given = arguments.parse_args(argv)
    with ClusterProcess("--instances", str(given.instances)) as cluster:
        outcome = asyncio.run(run(Plan(given.count, given.open, given.cut), cluster))
    return output.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
