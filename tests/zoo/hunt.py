"""Plants each bug and runs seeds until it is caught, or the bound is reached.

Knows nothing of what the bugs are; a bug counts as caught only if an invariant that it breaks noticed it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from simulator.campaign.job_plans import with_batch_jobs
from simulator.campaign.long_prompts import elastic_part
from simulator.campaign.plans import TrialPlan
from simulator.campaign.runner import plan_of, restless_part
from simulator.campaign.trial import CampaignTrial
from simulator.campaign.violation import Violation
from tests.zoo import (
    bugs_batches,
    bugs_control,
    bugs_dispatcher,
    bugs_engines,
    bugs_fences,
    bugs_groups,
    bugs_instance,
    bugs_starvation,
    bugs_steps,
)
from tests.zoo.plant import Bug, planted

BUGS = (
    *bugs_instance.BUGS,
    *bugs_dispatcher.BUGS,
    *bugs_control.BUGS,
    *bugs_steps.BUGS,
    *bugs_engines.BUGS,
    *bugs_fences.BUGS,
    *bugs_groups.BUGS,
    *bugs_starvation.BUGS,
    *bugs_batches.BUGS,
)
MOST_SEEDS = 400


@dataclass(frozen=True, slots=True)
class Result:
    """How a hunt ended: after `seeds` runs, the last of them of `seed`, by `violation`, which is None if nothing was
    noticed. `violation_seed`: of the run that it broke. `events`: of the last run, with the bug and without.
    """

    bug: Bug
    seeds: int
    seed: int
    violation: Violation | None
    violation_seed: int = 0
    events: int = 0

    @property
    def is_caught(self) -> bool:
        """Whether the right invariant noticed it."""
        return self.violation is not None and self.violation.invariant in self.bug.invariants

    def __str__(self) -> str:
        by = f"seed {self.violation_seed}: {self.violation}" if self.violation is not None else "nothing noticed"
        state = "caught" if self.is_caught else "NOT CAUGHT"
        return f"{self.bug.name}: {state} after {self.seeds} seeds; {by}"[:300]


def names() -> list[str]:
    """Of all bugs."""
    return [bug.name for bug in BUGS]


def hunt(
    wanted: list[str], first_seed: int | None, say: Callable[[str], object], most: int = MOST_SEEDS
) -> list[Result]:
    """Hunt the wanted bugs, or all of them.

    Raises:
        KeyError: no bug has that name.
    """
    known = {bug.name: bug for bug in BUGS}
    results = []
    for bug in [known[name] for name in wanted] or BUGS:
        results.append(search(bug, first_seed, most))
        say(str(results[-1]))
    return results


def search(bug: Bug, first_seed: int | None = None, most: int = MOST_SEEDS) -> Result:
    """Run seeds until the bug is caught, from the bug's own one on by default."""
    first = bug.seed if first_seed is None else first_seed
    last, last_seed = None, first
    with planted(bug):
        for seed in range(first, first + most):
            outcome = CampaignTrial(plan_for(bug, seed)).run()
            violation = outcome.violation
            if violation is not None:
                last, last_seed = violation, seed
            if violation is not None and violation.invariant in bug.invariants:
                break
        else:
            return Result(bug, most, seed, last, last_seed)
    without = CampaignTrial(plan_for(bug, seed)).run()
    if without.violation is not None:
        violation = Violation("none", without.violation.at_s, f"without the bug too: {without.violation}")
    return Result(bug, seed - first + 1, seed, violation, seed, outcome.events + without.events)


def plan_for(bug: Bug, seed: int) -> TrialPlan:
    """The plan of a seed in the campaign in which the bug is hunted."""
    plan = plan_of(seed)
    if bug.elastic:
        return elastic_part(plan)
    if bug.batch_jobs:
        return with_batch_jobs(plan)
    return restless_part(plan) if bug.restless else plan
