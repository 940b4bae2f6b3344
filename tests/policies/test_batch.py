"""What goes into a step."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.messages.types import RequestClass
from dunlin.policies.batch import BATCH_POLICIES, chunked_prefill, prefill_first
from dunlin.policies.step_budget import BatchCandidate, StepBudget

DECODE = BatchCandidate(1, is_decode=True)


def prompt(tokens: int) -> BatchCandidate:
    return BatchCandidate(tokens, is_decode=False)


def test_chunks_of_interactive_prompts_come_before_those_of_batch_work() -> None:
    old, new = replace(prompt(9), request_class=RequestClass.BATCH), prompt(5)
    assert chunked_prefill([old, old, new, DECODE], StepBudget(8)) == [2, 0, 5, 1]


def test_decode_rows_come_first_wherever_they_stand() -> None:
    assert chunked_prefill([prompt(10), DECODE, prompt(10), DECODE], StepBudget(8)) == [6, 1, 0, 1]


def test_the_oldest_prompt_gets_the_budget_and_the_next_what_is_left() -> None:
    assert chunked_prefill([prompt(5), prompt(100), prompt(3)], StepBudget(12)) == [5, 7, 0]


def test_a_prompt_is_never_given_more_than_it_has() -> None:
    assert chunked_prefill([prompt(5)], StepBudget(512)) == [5]


def test_the_last_token_of_a_prompt_costs_budget_and_waits_like_any_other() -> None:
    assert chunked_prefill([prompt(4), prompt(1)], StepBudget(4)) == [4, 0]


def test_no_decode_row_is_held_up_and_the_oldest_prompt_does_not_starve() -> None:
    assert chunked_prefill([DECODE, DECODE, DECODE, prompt(9), prompt(9)], StepBudget(2)) == [1, 1, 1, 1, 0]


def test_no_candidates_get_no_rows() -> None:
    assert chunked_prefill([], StepBudget(8)) == []


candidates = st.lists(st.one_of(st.just(DECODE), st.integers(1, 300).map(prompt)), max_size=20)


@pytest.mark.parametrize("policy", BATCH_POLICIES.values(), ids=BATCH_POLICIES)
@given(candidates=candidates, budget=st.integers(1, 400))
def test_any_policy_gets_on_and_gives_no_candidate_more_than_it_has(
    policy: object, candidates: list[BatchCandidate], budget: int
) -> None:
    assert callable(policy)
    taken = policy(candidates, StepBudget(budget, [0] * len(candidates)))
    assert len(taken) == len(candidates)
    assert all(0 <= tokens <= one.remaining_tokens for tokens, one in zip(taken, candidates, strict=True))
    assert sum(taken) > 0 or not candidates


@given(candidates=candidates, budget=st.integers(1, 400))
def test_chunks_keep_to_the_budget(candidates: list[BatchCandidate], budget: int) -> None:
    assert sum(chunked_prefill(candidates, StepBudget(budget))) <= max(
        budget, 1 + sum(one.is_decode for one in candidates)
    )


def test_while_a_prompt_waits_no_decode_row_runs() -> None:
    assert prefill_first([DECODE, prompt(5), DECODE, prompt(3)], StepBudget(8)) == [0, 5, 0, 3]
    assert prefill_first([DECODE, DECODE, DECODE], StepBudget(2)) == [1, 1, 1]


def test_a_prompt_is_never_cut_and_none_overtakes_an_older_one() -> None:
    assert prefill_first([prompt(5), prompt(4), prompt(1)], StepBudget(8)) == [5, 0, 0]
    assert prefill_first([prompt(900), prompt(1)], StepBudget(8)) == [900, 0]


def test_the_last_token_of_the_budget_is_used() -> None:
    assert prefill_first([prompt(5), prompt(3)], StepBudget(8)) == [5, 3]


@given(candidates=candidates, budget=st.integers(1, 400))
def test_whole_prompts_are_the_oldest_and_only_the_first_exceeds_the_budget(
    candidates: list[BatchCandidate], budget: int
) -> None:
    taken = prefill_first(candidates, StepBudget(budget))
    prompts = [(one, tokens) for one, tokens in zip(candidates, taken, strict=True) if not one.is_decode]
    begun = [tokens for _, tokens in prompts if tokens]
    assert begun == [one.remaining_tokens for one, _ in prompts][: len(begun)]
    assert sum(begun[1:]) <= max(0, budget - (begun[0] if begun else 0))
    assert (sum(taken) == sum(begun)) is bool(prompts) or not candidates
