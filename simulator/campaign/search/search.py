"""A search: rounds of plans, fresh ones and mutations of those that covered something new. Prints nothing.

What a round covered enters the corpus when all of it has run, in the order of its plans: a search gives the same trials
with any number of processes.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from multiprocessing.pool import Pool
from random import Random

from simulator.campaign.outcome import TrialOutcome
from simulator.campaign.plans import TrialPlan
from simulator.campaign.runner import CampaignSummary, shrunk
from simulator.campaign.search.corpus import PlanCorpus
from simulator.campaign.search.dense_plans import dense_plan
from simulator.campaign.search.features import RunFeatures
from simulator.campaign.search.mutations import mutated, plan_named
from simulator.campaign.trial import CampaignTrial

ROUND = 16
"""Plans of a round."""
FRESH_SHARE = 0.5
"""Share of a round's plans that are fresh; all of the first round are."""


@dataclass(slots=True)
class SearchedRun:
    """What came of one plan."""

    plan: TrialPlan
    outcome: TrialOutcome
    coverage: RunFeatures


Runner = Callable[[Iterable[TrialPlan]], Iterable[SearchedRun]]
"""Runs plans; the results come in the order of the plans."""


class PlanSearch:
    """Chooses the plans of each round. `first_seed`: fresh plans are those of the seeds from there on."""

    def __init__(self, first_seed: int) -> None:
        self.corpus = PlanCorpus()
        self._next_seed = first_seed
        self._draw = Random(f"{first_seed} search")

    def next_round(self) -> list[TrialPlan]:
        """The plans to run next."""
        return [self._next_plan() for _ in range(ROUND)]

    def learn(self, run: SearchedRun) -> None:
        """Take in what a plan covered; one that breaks an invariant is not changed: it would go on breaking it."""
        if run.outcome.violation is None:
            self.corpus.admit(run.plan, run.coverage.found)

    def _next_plan(self) -> TrialPlan:
        if not self.corpus.entries or self._draw.random() < FRESH_SHARE:
            self._next_seed += 1
            return dense_plan(self._next_seed - 1)
        return mutated(*self.corpus.choose(self._draw))


def search_plans(
    first_seed: int,
    trials: int,
    on_outcome: Callable[[TrialOutcome], None] = lambda outcome: None,
    jobs: int = 1,
    shrink_runs: int = 100,
) -> CampaignSummary:
    """Search with so many trials in `jobs` processes, and shrink each failing plan with at most `shrink_runs` more.

    `on_outcome` is called after each trial.
    """
    return _summed(_runs(PlanSearch(first_seed), trials, jobs), on_outcome, shrink_runs)


def replay_plan(
    name: str, requests: frozenset[int] | None, faults: frozenset[int] | None, shrink_runs: int
) -> CampaignSummary:
    """Run the plan of a name, or a part of it (None: all), and shrink it if it fails.

    Raises:
        ValueError: no plan has that name.
    """
    plan = plan_named(name).only(requests, faults)
    return _summed([run_plan(plan)], lambda outcome: None, shrink_runs)


def search_rounds(search: PlanSearch, run: Runner) -> Iterator[SearchedRun]:
    """The runs of a search, without end."""
    while True:
        finished = []
        for one in run(search.next_round()):
            finished.append(one)
            yield one
        for one in finished:
            search.learn(one)


def run_plan(plan: TrialPlan) -> SearchedRun:
    """Run one plan."""
    coverage = RunFeatures()
    return SearchedRun(plan, CampaignTrial(plan, coverage).run(), coverage)


def run_named(name: str) -> SearchedRun:
    """Run the plan of a name."""
    return run_plan(plan_named(name))


def _summed(
    runs: Iterable[SearchedRun], on_outcome: Callable[[TrialOutcome], None], shrink_runs: int
) -> CampaignSummary:
    summary = CampaignSummary()
    for run in runs:
        summary.add(run.outcome)
        summary.coverage.add(run.coverage)
        on_outcome(run.outcome)
        if run.outcome.violation is not None:
            summary.found.append(shrunk(run.outcome, run.plan, shrink_runs))
    return summary


def _runs(search: PlanSearch, trials: int, jobs: int) -> Iterator[SearchedRun]:
    """So many runs of the search; each process takes one plan at a time."""
    if jobs < 2:
        yield from _first(trials, search_rounds(search, lambda plans: map(run_plan, plans)))
        return
    with get_context("spawn").Pool(jobs) as pool:
        yield from _first(trials, search_rounds(search, partial(_shared, pool)))


def _shared(pool: Pool, plans: Iterable[TrialPlan]) -> Iterator[SearchedRun]:
    return pool.imap(run_named, [plan.name for plan in plans])


def _first(count: int, runs: Iterator[SearchedRun]) -> Iterator[SearchedRun]:
    for _, run in zip(range(count), runs, strict=False):
        yield run
