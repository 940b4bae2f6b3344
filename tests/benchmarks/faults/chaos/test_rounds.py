"""Plans of the campaign as rounds of a live run: nothing is lost, and what plans say of each other stays true."""

from benchmarks.faults.chaos.kinds import LIVE_KINDS, REFUSED_KINDS
from benchmarks.faults.chaos.rounds import (
    LONGEST_FAULT_S,
    PROMPT_SCALE,
    QUIET_S,
    ROUND_S,
    RoundPlanner,
    live_tokens,
    scaled_faults,
)
from simulator.campaign.faults.catalog import fault_kinds
from simulator.campaign.plans import draw_plan

VOCABULARY = 1500


def planner(seed: int = 3) -> RoundPlanner:
    return RoundPlanner(seed, "unified", VOCABULARY, sets=4, waves=2)


def test_every_fault_of_the_campaign_is_struck_live_or_refused_with_a_reason() -> None:
    assert sorted([*LIVE_KINDS, *REFUSED_KINDS]) == sorted(fault_kinds())
    assert all(REFUSED_KINDS.values())


def test_a_round_is_the_same_each_time_and_another_for_another_seed() -> None:
    assert planner().round(2) == planner().round(2)
    assert planner().round(2).requests != planner(4).round(2).requests


def test_a_round_has_the_faults_of_its_own_seed_in_order_within_its_time() -> None:
    for number in range(20):
        planned = planner().round(number)
        plan = draw_plan(3 + number, LIVE_KINDS, ("unified",))
        assert sorted(fault.number for fault in planned.faults) == [fault.number for fault in plan.faults]
        by_time = sorted(plan.faults, key=lambda fault: fault.at_s)
        assert [fault.kind for fault in planned.faults] == [fault.kind for fault in by_time]
        assert all(0 <= fault.at_s < ROUND_S - QUIET_S + 1e-6 for fault in planned.faults)
        assert all(fault.lasts_s <= LONGEST_FAULT_S and not fault.aim for fault in planned.faults)


def test_faults_spread_over_the_round_whatever_the_length_of_the_plan() -> None:
    lengths = {seed: scaled_faults(draw_plan(seed, LIVE_KINDS, ("unified",))) for seed in range(40)}
    last = [max(fault.at_s for fault in faults) for faults in lengths.values() if faults]
    assert len(last) > 20
    assert all(abs(at_s - (ROUND_S - QUIET_S)) < 1e-6 for at_s in last)


def test_a_round_sends_each_request_of_its_set_once_a_wave() -> None:
    found = planner()
    planned = found.round(5)
    plan = draw_plan(3 + 5 % 4, LIVE_KINDS, ("unified",))
    texts = [one.text for one in planned.requests]
    assert len(texts) == 2 * len(plan.requests)
    assert all(texts.count(text) == 2 for text in texts)
    assert all(0 <= one.at_s < ROUND_S for one in planned.requests)
    assert [one.at_s for one in planned.requests] == sorted(one.at_s for one in planned.requests)


def test_only_an_equal_wave_of_an_equal_round_repeats_a_key() -> None:
    found = planner()
    keys = [one.key for number in range(9) for one in found.round(number).requests if one.key]
    assert keys
    assert len(set(keys)) == len(keys)


def test_prompts_that_begin_alike_do_so_live() -> None:
    one, other = live_tokens((7, 8, 9), VOCABULARY), live_tokens((7, 8, 5), VOCABULARY)
    assert one[: 2 * PROMPT_SCALE] == other[: 2 * PROMPT_SCALE]
    assert one[2 * PROMPT_SCALE :] != other[2 * PROMPT_SCALE :]
    assert len(one) == 3 * PROMPT_SCALE
    assert max(live_tokens((999,), VOCABULARY)) < VOCABULARY


def test_the_expected_text_of_a_request_is_that_of_the_same_prompt_answer_and_seed() -> None:
    found = planner()
    for number in range(8):
        for one in found.round(number).requests:
            known = found.texts[one.text]
            assert (one.prompt, one.max_tokens, one.seed) == (known.prompt, known.max_tokens, known.seed)


def test_instances_that_form_groups_have_requests_too_long_for_one_that_a_node_can_hold() -> None:
    alone, several = planner(), RoundPlanner(3, "unified", VOCABULARY, sets=4, waves=2, per_node=2)
    assert several.slots == alone.slots
    found = [len(one.prompt) + one.max_tokens for one in several.texts]
    assert max(len(one.prompt) + one.max_tokens for one in alone.texts) <= alone.slots
    assert len([length for length in found if length > several.slots]) >= 4, "the first of each plan at least"
    assert max(found) <= 2 * several.slots
