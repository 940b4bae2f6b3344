"""The fresh plans of a search are small, dense and of every kind, and the same whenever they are drawn."""

from dunlin.policies.presets import PRESETS
from simulator.campaign.search.dense_plans import (
    FAULTS_S,
    FEWEST_SLOTS,
    LOAD_S,
    PROMPT_SLOTS,
    dense_plan,
    with_slots,
)

PLANS = [dense_plan(seed) for seed in range(60)]


def test_a_seed_has_one_plan_named_after_it() -> None:
    assert [dense_plan(seed) for seed in range(5)] == PLANS[:5]
    assert [plan.name for plan in PLANS[:3]] == ["0", "1", "2"]


def test_load_and_faults_meet_in_small_clusters() -> None:
    for plan in PLANS:
        assert all(ask.at_s <= LOAD_S for ask in plan.requests)
        own = [fault for fault in plan.faults if fault.kind not in ("remap", "late_answers")]
        assert all(fault.at_s <= FAULTS_S for fault in own)
    counts = [len(plan.faults) for plan in PLANS]
    assert sum(count >= 8 for count in counts) > len(PLANS) / 3
    assert sum(count <= 6 for count in counts) > len(PLANS) / 6
    assert sum(ask.disconnect_s is not None for plan in PLANS for ask in plan.requests) > len(PLANS)
    assert sum(plan.shape.slots <= 128 for plan in PLANS) > len(PLANS) / 2
    assert sum(plan.shape.slots == FEWEST_SLOTS for plan in PLANS) > len(PLANS) / 4


def test_there_are_restless_elastic_and_plain_plans_with_and_without_batch_jobs() -> None:
    kinds = {(plan.shape.interrupts, plan.shape.has_long_prompts) for plan in PLANS}
    assert kinds == {("restless", False), ("restless", True), ("never", True), ("never", False)}
    for plan in PLANS:
        assert bool(plan.jobs) == (PRESETS[plan.shape.preset].admit == "all")


def test_with_fewer_slots_answers_are_shorter_too() -> None:
    (plan, *_) = [plan for plan in PLANS if max(ask.max_tokens for ask in plan.requests) > 30]
    smaller = with_slots(plan, 90)
    assert smaller.shape.slots == 90
    assert max(ask.max_tokens for ask in smaller.requests) == 90 - PROMPT_SLOTS
