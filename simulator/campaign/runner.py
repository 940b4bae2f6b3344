"""Many runs, one per seed: what they found, what they covered, and how to see it again.

Knows nothing of what is printed where.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context

from dunlin.policies.presets import PRESETS
from simulator.campaign.coverage import Coverage
from simulator.campaign.faults.catalog import kinds
from simulator.campaign.plans import Plan, draw
from simulator.campaign.shrinking import Shrinker
from simulator.campaign.trial import Outcome, Trial

SEEDS_AT_ONCE = 8
"""Given to a process at a time, where several work."""


@dataclass
class Found:
    """A seed that breaks an invariant, its plan, and the smallest part of it that does so too."""

    outcome: Outcome
    plan: Plan
    smallest: Plan | None = None
    runs: int = 0

    def replay(self) -> str:
        """The command that replays the seed."""
        return f"dunlin sim --campaign --seeds 1 --first-seed {self.outcome.seed}"

    def replay_smallest(self) -> str:
        """The command that replays the smallest part."""
        part = self.smallest or self.plan
        asks = ",".join(str(ask.number) for ask in part.asks)
        faults = ",".join(str(fault.number) for fault in part.faults)
        return f"{self.replay()} --only-requests '{asks}' --only-faults '{faults}'"


@dataclass
class Summary:
    """What a campaign came to."""

    seeds: int = 0
    simulated_s: float = 0.0
    events: int = 0
    digest: int = 0
    done: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    found: list[Found] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)

    def add(self, outcome: Outcome) -> None:
        """One more seed."""
        self.seeds += 1
        self.simulated_s += outcome.simulated_s
        self.events += outcome.events
        self.digest = (self.digest * 31 + outcome.digest) & 0xFFFF_FFFF
        self.done += outcome.done
        self.ends += outcome.ends

    def line(self) -> str:
        """The summary."""
        return (
            f"{self.seeds} seeds, {self.simulated_s / 3600:.2f} simulated cluster-hours, {self.events} events, "
            f"{self.done.total()} faults, {self.ends.total()} clients: {len(self.found)} violations "
            f"[digest {self.digest:08x}]"
        )


def plan_of(seed: int) -> Plan:
    """The plan of a seed, of all faults and presets that there are."""
    return draw(seed, kinds(), tuple(sorted(PRESETS)))


def campaign(
    seeds: Iterable[int],
    part: Callable[[Plan], Plan] = lambda plan: plan,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
    jobs: int = 1,
    shrink_runs: int = 100,
) -> Summary:
    """Run the seeds. `part`: which part of each plan to run, all of it by default."""
    summary = Summary()
    for outcome, coverage in _outcomes(seeds, part, jobs):
        summary.add(outcome)
        summary.coverage.add(coverage)
        on_outcome(outcome)
        if outcome.violation is not None:
            summary.found.append(_shrunk(outcome, part(plan_of(outcome.seed)), shrink_runs))
    return summary


def _outcomes(seeds: Iterable[int], part: Callable[[Plan], Plan], jobs: int) -> Iterator[tuple[Outcome, Coverage]]:
    if jobs < 2:
        yield from map(partial(run_seed, part=part), seeds)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(run_seed, seeds, SEEDS_AT_ONCE)


def run_seed(seed: int, part: Callable[[Plan], Plan] = lambda plan: plan) -> tuple[Outcome, Coverage]:
    """One seed's run, and what it covered."""
    coverage = Coverage()
    return Trial(part(plan_of(seed)), coverage).run(), coverage


def _shrunk(outcome: Outcome, plan: Plan, most: int) -> Found:
    invariant = outcome.violation.invariant if outcome.violation is not None else ""

    def fails(smaller: Plan) -> bool:
        violation = Trial(smaller).run().violation
        return violation is not None and violation.invariant == invariant

    shrinker = Shrinker(fails, most)
    return Found(outcome, plan, shrinker.shrink(plan), shrinker.runs)
