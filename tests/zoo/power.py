"""`python -m tests.zoo.power`: how many fresh trials each planted bug takes, by plain sampling and by the search.

Caught is what breaks any invariant, in a plan that breaks none without it. Prints a line per bug, then the median and
the share within the bound. Plain sampling is told in which campaign a bug is hunted (restless, elastic); the search is
not.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from statistics import median

from simulator.campaign.outcome import TrialOutcome
from simulator.campaign.plans import TrialPlan
from simulator.campaign.search.search import PlanSearch, run_plan, search_rounds
from simulator.campaign.trial import CampaignTrial
from tests.zoo import bugs_unseen, bugs_unseen_groups
from tests.zoo.hunt import BUGS, plan_for
from tests.zoo.plant import Bug, planted

FIRST_SEED, STRIDE = 7_000_000, 1_000
"""Each bug begins at seeds of its own, that were never looked at before."""
BOUND = 50
UNSEEN = (*bugs_unseen.BUGS, *bugs_unseen_groups.BUGS)


@dataclass(frozen=True, slots=True)
class Power:
    """`trials` that a bug took until an invariant noticed it (`by`); None: more than were allowed."""

    bug: str
    trials: int | None
    by: str = ""

    def __str__(self) -> str:
        return f"{self.bug}: {'not caught' if self.trials is None else self.trials}; {self.by}"[:200]


Trial = tuple[TrialPlan, TrialOutcome]
Sampler = Callable[[Bug, int], Iterator[Trial]]
"""Trials for a bug from a first seed on, without end."""


def sampled(bug: Bug, first_seed: int) -> Iterator[Trial]:
    """The trials of the campaign in which the bug is hunted, seed by seed."""
    for seed in count(first_seed):
        plan = plan_for(bug, seed)
        yield plan, CampaignTrial(plan).run()


def searched(bug: Bug, first_seed: int) -> Iterator[Trial]:
    """The trials of a search, which knows nothing of the bug."""
    for run in search_rounds(PlanSearch(first_seed), lambda plans: map(run_plan, plans)):
        yield run.plan, run.outcome


SAMPLERS: dict[str, Sampler] = {"plain": sampled, "search": searched}


def power_of(bug: Bug, sampler: Sampler, first_seed: int, most: int) -> Power:
    """Run trials with the bug until it is caught, at most so many: until an invariant breaks, whichever, in a plan that
    breaks none without the bug.
    """
    trials, by = sampler(bug, first_seed), ""
    for number in range(1, most + 1):
        with planted(bug):
            plan, outcome = next(trials)
        if outcome.violation is None:
            continue
        innocent = CampaignTrial(plan).run().violation
        if innocent is None:
            return Power(bug.name, number, f"{outcome.label}: {outcome.violation}")
        by = f"{outcome.label}, without the bug too: {innocent}"
    return Power(bug.name, None, by)


def summary(found: list[Power], most: int) -> str:
    """The median number of trials, and how many bugs were caught."""
    trials = [one.trials or most + 1 for one in found]
    needed = [one.trials for one in found if one.trials is not None]
    within, caught = sum(count <= BOUND for count in needed), len(needed)
    return f"{len(found)} bugs: median {median(trials):g}, {within} within {BOUND}, {caught} within {most}"


def main(words: list[str]) -> int:
    """Measure; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.zoo.power", description=__doc__)
    parser.add_argument("bugs", nargs="*", metavar="BUG", help="these bugs alone")
    parser.add_argument("--by", choices=sorted(SAMPLERS), default="plain", help="how plans are found")
    parser.add_argument("--unseen", action="store_true", help="the bugs of tests/zoo/bugs_unseen.py")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th bug alone")
    parser.add_argument("--first-seed", type=int, default=FIRST_SEED, metavar="K")
    parser.add_argument("--most", type=int, default=BOUND, metavar="N", help="trials for each bug at most")
    arguments = parser.parse_args(words)
    found = []
    for index, bug in enumerate(UNSEEN if arguments.unseen else BUGS):
        if index % arguments.every or (arguments.bugs and bug.name not in arguments.bugs):
            continue
        first = arguments.first_seed + STRIDE * index
        found.append(power_of(bug, SAMPLERS[arguments.by], first, arguments.most))
        print(found[-1], flush=True)
    print(summary(found, arguments.most))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
