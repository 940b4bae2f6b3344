"""Mutated plans are legal, differ from what they come of, and follow from their names alone."""

from random import Random

import pytest

from dunlin.policies.presets import PRESETS
from simulator.campaign.faults.catalog import fault_kinds
from simulator.campaign.plans import TrialPlan, aims_of
from simulator.campaign.search.dense_plans import FEWEST_SLOTS, PROMPT_SLOTS, dense_plan
from simulator.campaign.search.mutations import MOST_FAULTS, MUTATIONS, Mutation, mutated, plan_named

SEEDS = range(12)
LONGEST_PROMPT = 60


def check_legal(plan: TrialPlan) -> None:
    """What every plan of a trial keeps to, whichever way it came about."""
    shape = plan.shape
    numbers = [fault.number for fault in plan.faults]
    assert len(set(numbers)) == len(numbers) <= MOST_FAULTS + 8
    for fault in plan.faults:
        assert fault.kind in fault_kinds()
        assert fault.aim in ("", *aims_of(fault.kind))
        assert fault.at_s >= 0.0
        assert 0.0 <= min(fault.pick, fault.other, fault.amount) <= max(fault.pick, fault.other, fault.amount) < 1.0
    assert 1 <= shape.nodes <= shape.instances
    assert shape.slots >= FEWEST_SLOTS
    assert all(ask.max_tokens <= shape.slots - PROMPT_SLOTS for ask in plan.requests)
    if not shape.has_long_prompts:
        assert max((len(ask.tokens) for ask in plan.requests), default=0) <= LONGEST_PROMPT
    if PRESETS[shape.preset].admit != "all":
        assert not plan.jobs
        assert not any(ask.is_batch for ask in plan.requests)


@pytest.mark.parametrize("mutation", dict.fromkeys(MUTATIONS))
def test_each_change_keeps_plans_legal_and_changes_some(mutation: Mutation) -> None:
    changed = 0
    for seed in SEEDS:
        plan = dense_plan(seed)
        after = mutation(Random(seed), plan)
        check_legal(after)
        changed += after != plan
    assert changed > 0


def test_a_plan_without_faults_can_be_changed_too() -> None:
    plan = dense_plan(3).only(None, frozenset())
    for number in range(40):
        check_legal(mutated(plan, number))


def test_long_chains_of_mutations_are_legal_and_each_differs_from_the_one_before() -> None:
    for seed in SEEDS:
        plan = dense_plan(seed)
        for number in range(1, 9):
            after = mutated(plan, number)
            check_legal(after)
            assert (after.seed, after.name) == (seed, f"{plan.name}.{number}")
            assert (after.shape, after.requests, after.faults) != (plan.shape, plan.requests, plan.faults)
            plan = after


def test_a_name_says_how_the_plan_came_about() -> None:
    assert plan_named("5") == dense_plan(5)
    assert plan_named("5.2.7") == mutated(mutated(dense_plan(5), 2), 7)
    assert plan_named("5.2.8") != plan_named("5.2.7")
    with pytest.raises(ValueError, match="invalid literal"):
        plan_named("5.x")
