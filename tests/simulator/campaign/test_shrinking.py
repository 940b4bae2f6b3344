"""Shrinking keeps the entries that a failure needs, within its bound of trials."""

from simulator.campaign.plans import TrialPlan
from simulator.campaign.runner import plan_of
from simulator.campaign.shrinking import PlanShrinker


def fails_with(*needed: int) -> PlanShrinker:
    """Fails while these faults, and request 3, are there."""

    def fails(plan: TrialPlan) -> bool:
        there = {fault.number for fault in plan.faults}
        return there.issuperset(needed) and any(ask.number == 3 for ask in plan.requests)

    return PlanShrinker(fails, most=200)


def test_shrinking_keeps_what_is_needed_and_nothing_else() -> None:
    plan = next(plan for plan in map(plan_of, range(100)) if len(plan.faults) == 12)
    smallest = fails_with(2, 9).shrink(plan)
    assert [fault.number for fault in smallest.faults] == [2, 9]
    assert [ask.number for ask in smallest.requests] == [3]
    assert smallest.faults[0] == plan.faults[2]


def test_shrinking_is_bounded() -> None:
    plan = next(plan for plan in map(plan_of, range(100)) if len(plan.faults) == 12)
    shrinker = fails_with(2, 9)
    shrinker = PlanShrinker(lambda smaller: False, most=7)
    assert shrinker.shrink(plan) == plan
    assert shrinker.runs == 7
