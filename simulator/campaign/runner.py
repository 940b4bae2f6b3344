"""A campaign: one trial per seed, the violations found with their smallest plans, and the coverage. Prints nothing."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context

from dunlin.policies.presets import PRESETS
from simulator.campaign.coverage import Coverage
from simulator.campaign.faults.catalog import fault_kinds
from simulator.campaign.job_plans import with_batch_jobs
from simulator.campaign.long_prompts import elastic_part
from simulator.campaign.outcome import TrialOutcome
from simulator.campaign.plans import RESTLESS_KINDS, TrialPlan, draw_plan, draw_restless
from simulator.campaign.shrinking import PlanShrinker
from simulator.campaign.trial import CampaignTrial

RESTLESS, ELASTIC = "restless", "elastic"
UNDRAWN_PRESETS = {"loongserve_no_scale_up", "priority", "replicated_sp", "reservation"}
"""Presets that differ from another one only in what becomes of long prompts, and no plan says what is long."""
DRAWN_PRESETS = tuple(sorted(PRESETS.keys() - UNDRAWN_PRESETS))
"""The presets of plans."""
SEEDS_AT_ONCE = 8
"""Seeds that a worker process takes at a time."""


@dataclass
class FailingSeed:
    """A seed that breaks an invariant, its plan, and the smallest part that was found to break it too.

    `runs`: trials that shrinking took.
    """

    outcome: TrialOutcome
    plan: TrialPlan
    smallest: TrialPlan | None = None
    runs: int = 0

    def replay(self) -> str:
        """The command that replays the seed, or the plan of a search."""
        if self.plan.name:
            return f"dunlin sim --campaign --plan {self.plan.name}"
        shape = self.plan.shape
        part = RESTLESS if shape.interrupts == RESTLESS else ELASTIC if shape.has_long_prompts else ""
        preset = f" --preset {part}" if part else ""
        return f"dunlin sim --campaign --seeds 1 --first-seed {self.outcome.seed}{preset}"

    def replay_smallest(self) -> str:
        """The command that replays the smallest part."""
        part = self.smallest or self.plan
        asks = ",".join(str(ask.number) for ask in part.requests)
        faults = ",".join(str(fault.number) for fault in part.faults)
        return f"{self.replay()} --only-requests '{asks}' --only-faults '{faults}'"


@dataclass
class CampaignSummary:
    """The sums of a campaign. `done` counts faults by kind, `ends` the ends of clients, `excused` what was excused of
    each invariant, by its reason; `found` has the violations.
    """

    seeds: int = 0
    simulated_s: float = 0.0
    events: int = 0
    digest: int = 0
    done: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    excused: Counter[str] = field(default_factory=Counter)
    found: list[FailingSeed] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)

    def add(self, outcome: TrialOutcome) -> None:
        """Add the outcome of a seed."""
        self.seeds += 1
        self.simulated_s += outcome.simulated_s
        self.events += outcome.events
        self.digest = (self.digest * 31 + outcome.digest) & 0xFFFF_FFFF
        self.done += outcome.done
        self.ends += outcome.ends
        self.excused += outcome.excused

    def excuses(self) -> str:
        """How often a look at each invariant found it broken and was excused, in one line of text."""
        said = ", ".join(f"{reason} {count}" for reason, count in sorted(self.excused.items()))
        return f"excused looks: {said or 'none'}"

    def line(self) -> str:
        """The summary in one line of text."""
        return (
            f"{self.seeds} seeds, {self.simulated_s / 3600:.2f} simulated cluster-hours, {self.events} events, "
            f"{self.done.total()} faults, {self.ends.total()} clients: {len(self.found)} violations "
            f"[digest {self.digest:08x}]"
        )


def plan_of(seed: int) -> TrialPlan:
    """The plan of a seed, drawn from all presets and all faults but those that only restless plans have."""
    kinds = tuple(kind for kind in fault_kinds() if kind not in RESTLESS_KINDS)
    return draw_plan(seed, kinds, DRAWN_PRESETS)


def restless_part(plan: TrialPlan) -> TrialPlan:
    """The plan with rows that leave their steps, sequences that move, and layers that go and come back, all at random,
    under whichever preset it has.
    """
    shape = replace(plan.shape, interrupts=RESTLESS, rebalance=RESTLESS)
    return replace(plan, shape=shape, faults=(*plan.faults, *draw_restless(plan)))


PARTS: dict[str, Callable[[TrialPlan], TrialPlan]] = {RESTLESS: restless_part, ELASTIC: elastic_part}
"""What `--preset` makes of each plan."""


def whole_plan(plan: TrialPlan) -> TrialPlan:
    """All of a plan, as it is."""
    return plan


def run_campaign(
    seeds: Iterable[int],
    part: Callable[[TrialPlan], TrialPlan] = whole_plan,
    on_outcome: Callable[[TrialOutcome], None] = lambda outcome: None,
    jobs: int = 1,
    shrink_runs: int = 100,
) -> CampaignSummary:
    """Run the seeds in `jobs` processes, and shrink each failing plan with at most `shrink_runs` trials.

    `part` makes of each plan the one to run, to which batch jobs are added; with several processes it is a function of
    a module. `on_outcome` is called after each seed.
    """
    summary = CampaignSummary()
    for outcome, coverage in _outcomes(seeds, part, jobs):
        summary.add(outcome)
        summary.coverage.add(coverage)
        on_outcome(outcome)
        if outcome.violation is not None:
            summary.found.append(shrunk(outcome, with_batch_jobs(part(plan_of(outcome.seed))), shrink_runs))
    return summary


def _outcomes(
    seeds: Iterable[int], part: Callable[[TrialPlan], TrialPlan], jobs: int
) -> Iterator[tuple[TrialOutcome, Coverage]]:
    run = partial(run_seed, part=part)
    if jobs < 2:
        yield from map(run, seeds)
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(run, seeds, SEEDS_AT_ONCE)


def run_seed(seed: int, part: Callable[[TrialPlan], TrialPlan] = whole_plan) -> tuple[TrialOutcome, Coverage]:
    """The outcome and the coverage of one seed."""
    coverage = Coverage()
    return CampaignTrial(with_batch_jobs(part(plan_of(seed))), coverage).run(), coverage


def shrunk(outcome: TrialOutcome, plan: TrialPlan, most: int) -> FailingSeed:
    """The failing plan with the smallest part that breaks the same invariant, after at most so many trials."""
    invariant = outcome.violation.invariant if outcome.violation is not None else ""

    def fails(smaller: TrialPlan) -> bool:
        violation = CampaignTrial(smaller).run().violation
        return violation is not None and violation.invariant == invariant

    shrinker = PlanShrinker(fails, most)
    return FailingSeed(outcome, plan, shrinker.shrink(plan), shrinker.runs)
