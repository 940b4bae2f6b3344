"""Clients that hang up right after their first token, many at once, through both doors: no slot may be lost.

python -m benchmarks.disconnects --count 2000 --open 32
"""

import asyncio
import sys
from contextlib import aclosing
from dataclasses import dataclass

from benchmarks import output
from benchmarks.chorus import make_songs
from benchmarks.fleet import Unsettled, occupied, settle, unbalanced
from benchmarks.output import Outcome, say
from benchmarks.session import Session
from dunlin.launch.process import ClusterProcess
from dunlin.workload.generator import Door, DoorFailed, DoorRefused
from dunlin.workload.prompts import Job


@dataclass(frozen=True, slots=True)
class Plan:
    """`count` disconnects, half through each door, `open_at_once` streams open at any time."""

    count: int = 2000
    open_at_once: int = 32
    prompt_tokens: int = 32
    output_tokens: int = 256


class Rude:
    """Clients that leave. Owns the counts."""

    def __init__(self, doors: dict[str, Door], jobs: list[Job], plan: Plan) -> None:
        self._doors = doors
        self._jobs = jobs
        self._plan = plan
        self._turns = iter(range(plan.count))
        self.left = dict.fromkeys(doors, 0)
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
                await self._leave_early(name, self._jobs[turn % len(self._jobs)])
            except (DoorFailed, DoorRefused) as error:
                self.failures.append(f"{name} #{turn}: {type(error).__name__}: {error}")

    async def _leave_early(self, name: str, job: Job) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            async with aclosing(self._doors[name].stream(job)) as stream:
                async for arrived in stream:
                    if arrived.tokens:
                        self.left[name] += 1
                        return
            raise DoorFailed("it ended before its first token")
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
    outcome = Outcome(f"disconnects: {plan.count} after their first token, {plan.open_at_once} open at once")
    async with Session(cluster) as session:
        jobs = make_songs(64, plan.prompt_tokens, plan.output_tokens, session.vocabulary)
        rude = Rude({"grpc": session.door, "http": session.http_door}, jobs, plan)
        watcher = Watcher(session)
        watching = asyncio.create_task(watcher.run())
        try:
            await rude.run()
            say(f"all {plan.count} have left")
            await settle(session.look, lambda status: not occupied(status), "every slot to be free", 30)
        except Unsettled as unsettled:
            outcome.broken.append(f"{unsettled}: {', '.join(occupied(await session.look()))}")
        finally:
            watcher.finish()
            await watching
    outcome.broken += rude.failures[:5] + watcher.lost[:5]
    outcome.figures |= {f"left through {name}": count for name, count in rude.left.items()}
    outcome.figures |= {"most open at once": rude.most_open, "failures": len(rude.failures)}
    outcome.figures |= {"looks at the slots": watcher.looks, "looks that did not add up": len(watcher.lost)}
    outcome.expect(sum(rude.left.values()) == plan.count, f"only {sum(rude.left.values())} of {plan.count} got a token")
    outcome.expect(rude.most_open >= plan.open_at_once, f"never more than {rude.most_open} were open at once")
    return outcome


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = output.parser(__doc__ or "")
    arguments.add_argument("--count", type=int, default=2000)
    arguments.add_argument("--open", type=int, default=32)
    given = arguments.parse_args(argv)
    with ClusterProcess("--instances", str(given.instances)) as cluster:
        outcome = asyncio.run(run(Plan(given.count, given.open), cluster))
    return output.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
