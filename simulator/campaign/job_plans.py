"""Batch jobs for a plan: drawn from a random stream of their own, so that everything else stays what the seed means."""

from dataclasses import replace
from random import Random

from dunlin.policies.presets import PRESETS
from simulator.campaign.plans import TENANTS, VOCABULARY, PlannedJob, PlannedRequest, TrialPlan

FIRST_NUMBER = 1_000
"""Lines of job 0 are numbered from here on, those of each further job from one thousand later on."""
MOST_LINES = 12
"""So few that the tightest quota of a plan, 600 tokens a minute, lets all of them through in the time of a trial."""
BEGIN_S = 2.0
"""Jobs are created within so many seconds, among the first requests."""


def with_batch_jobs(plan: TrialPlan) -> TrialPlan:
    """The plan with one or two jobs; none where no batch work is admitted."""
    if PRESETS[plan.shape.preset].admit != "all":
        return plan
    draw = Random(f"{plan.seed} batch jobs")
    return replace(plan, jobs=tuple(_job(draw, number) for number in range(draw.choice([1, 1, 2]))))


def _job(draw: Random, number: int) -> PlannedJob:
    tenant, at_s = draw.choice(TENANTS), draw.uniform(0.0, BEGIN_S)
    first = FIRST_NUMBER * (number + 1)
    lines = tuple(_line(draw, first + index, tenant, at_s) for index in range(draw.randint(4, MOST_LINES)))
    return PlannedJob(number, at_s, lines, lines_in_flight=draw.choice([1, 4, 8]), segment_lines=draw.choice([1, 3, 8]))


def _line(draw: Random, number: int, tenant: str, at_s: float) -> PlannedRequest:
    tokens = tuple(draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 12)))
    return PlannedRequest(number, at_s, tokens, draw.randint(1, 12), tenant, 0, is_batch=True)
