"""When served steps have taught enough to predict further ones, and when predictions are believed."""

from dataclasses import replace

import pytest

from dunlin.cost.models import BatchCounts
from dunlin.policies.slo_batch import LEAST_CHUNK_TOKENS
from services.instance.scheduling.step_learner import (
    CHUNK_TOKENS,
    DECODES_PER_SAMPLE,
    LEAST_LARGE,
    LEAST_PREDICTED,
    LEAST_SMALL,
    LEAST_WITH_DECODES,
    MOST_ERROR,
    SAVED_EVERY,
    WARM_UP_STEPS,
    StepErrors,
    StepLearner,
)

BUDGET, TPOT_S = 64, 0.1
MIXED = BatchCounts(1, 40, 0, 1600, 2, 100)
PROMPT, CHUNK, DECODE = BatchCounts(1, 8, 0, 64), BatchCounts(1, 40, 0, 1600), BatchCounts(0, 0, 0, 0, 4, 400)


def step_s(batch: BatchCounts) -> float:
    return 0.01 + 1e-4 * batch.prefill_tokens + 1e-3 * batch.decode_rows


def teach(learner: StepLearner, batch: BatchCounts, steps: int) -> None:
    for _ in range(steps):
        learner.add(batch, step_s(batch))


def warm(*given: tuple[BatchCounts, int]) -> StepLearner:
    """A learner whose engine is warm, after these steps."""
    learner = StepLearner(BUDGET, TPOT_S)
    teach(learner, BatchCounts(1, 1, 0, 1), WARM_UP_STEPS)
    for batch, steps in given:
        teach(learner, batch, steps)
    return learner


def proven(learner: StepLearner, error: float = 0.0) -> StepLearner:
    for has_prompt in (True, False):
        for _ in range(LEAST_PREDICTED):
            learner.errors.add(has_prompt, error)
    return learner


ENOUGH = ((PROMPT, LEAST_SMALL), (CHUNK, LEAST_LARGE), (DECODE, LEAST_WITH_DECODES))


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        (((PROMPT, 4), (DECODE, LEAST_SMALL - 5), (MIXED, LEAST_LARGE + 9)), PROMPT),
        (((PROMPT, 9), (DECODE, LEAST_WITH_DECODES), (CHUNK, LEAST_LARGE - 1)), CHUNK),
        (((PROMPT, LEAST_SMALL), (CHUNK, LEAST_LARGE), (DECODE, LEAST_WITH_DECODES - 1)), DECODE),
        (((PROMPT, LEAST_SMALL), (MIXED, LEAST_WITH_DECODES - 1)), MIXED),
    ],
)
def test_small_and_large_steps_and_decode_rows_are_needed(
    given: tuple[tuple[BatchCounts, int], ...], missing: BatchCounts
) -> None:
    learner = warm(*given)
    assert learner.model is None
    teach(learner, missing, 1)
    assert learner.model is not None


def slow(learner: StepLearner, tokens: int, steps: int) -> None:
    """Steps of one chunk that take a millisecond per token, with a decode row."""
    for _ in range(steps):
        learner.add(BatchCounts(1, tokens, 0, tokens**2, 1, 10), 0.001 * (tokens + 1))


def test_the_least_chunk_of_a_long_prompt_tells_the_pace() -> None:
    assert CHUNK_TOKENS <= LEAST_CHUNK_TOKENS


def test_the_last_step_with_a_chunk_tells_the_pace_also_of_a_cold_engine() -> None:
    learner = StepLearner(512, TPOT_S)
    slow(learner, CHUNK_TOKENS - 1, 1)
    assert learner.token_s == 0.0
    slow(learner, CHUNK_TOKENS, 1)
    assert learner.taken == 0
    assert learner.token_s == pytest.approx(0.001)
    learner.add(BatchCounts(1, 128, 0, 128**2), 0.64)
    learner.add(DECODE, 1.0)
    assert learner.token_s == pytest.approx(0.005)


@pytest.mark.parametrize(("tpot_s", "is_large"), [(2 * CHUNK_TOKENS * 0.001, True), (0.13, False)])
def test_on_a_slow_engine_a_chunk_of_half_the_objective_is_large(tpot_s: float, is_large: bool) -> None:
    """No larger one is composed there before it is known what steps take."""
    learner = StepLearner(512, tpot_s)
    slow(learner, CHUNK_TOKENS, WARM_UP_STEPS)
    slow(learner, CHUNK_TOKENS - 1, LEAST_SMALL)
    slow(learner, CHUNK_TOKENS, LEAST_LARGE - 1)
    assert learner.model is None
    slow(learner, CHUNK_TOKENS, 1)
    assert (learner.model is not None) == is_large


def test_what_was_seen_is_predicted() -> None:
    learner = warm(*ENOUGH)
    assert learner.model is not None
    for batch in (PROMPT, CHUNK, DECODE):
        assert learner.model.step_s(batch) == pytest.approx(step_s(batch), rel=0.02)


def test_an_engines_first_steps_teach_nothing() -> None:
    learner = warm()
    assert learner.taken == 0
    teach(learner, DECODE, 3)
    learner.on_engine_lost()
    teach(learner, DECODE, WARM_UP_STEPS + 1)
    assert learner.taken == 4


def test_its_predictions_are_believed_while_they_are_good() -> None:
    learner = warm(*ENOUGH)
    assert not learner.is_trusted, "nothing was predicted yet"
    assert proven(learner).is_trusted
    for _ in range(200):
        learner.errors.add(False, 2 * MOST_ERROR)
    assert not learner.is_trusted
    for _ in range(200):
        learner.errors.add(False, 0.0)
    assert learner.is_trusted


def test_errors_are_means_of_either_kind() -> None:
    errors = StepErrors()
    for error in (0.1, 0.3):
        errors.add(True, error)
    errors.add(False, 0.5)
    assert errors.means == pytest.approx((0.2, 0.5))
    assert errors.counts == (2, 1)


def test_of_enough_decode_steps_only_some_more_are_summed_and_every_prompt() -> None:
    learner = warm((DECODE, LEAST_WITH_DECODES - 1))
    assert [learner.wants(DECODE) for _ in range(20)] == [True] * 20
    learner = warm((DECODE, LEAST_WITH_DECODES))
    assert learner.model is None, "large steps are still missing"
    assert sum(learner.wants(DECODE) for _ in range(10 * DECODES_PER_SAMPLE)) == 10
    learner = warm(*ENOUGH)
    assert [learner.wants(CHUNK) for _ in range(20)] == [True] * 20
    assert sum(learner.wants(DECODE) for _ in range(10 * DECODES_PER_SAMPLE)) == 10


def test_what_was_learnt_is_saved_now_and_then_and_the_next_goes_on_from_it() -> None:
    learner = warm(*ENOUGH)
    assert learner.to_save() is None, "not before it is believed"
    saved = proven(learner).to_save()
    assert saved is not None
    before = replace(saved, large=saved.large.copy())
    teach(learner, CHUNK, SAVED_EVERY - 1)
    assert learner.to_save() is None
    teach(learner, CHUNK, 1)
    assert learner.to_save() is not None
    assert saved == before, "what was given away does not change"
    second = StepLearner(BUDGET, TPOT_S, saved)
    assert (second.is_trusted, second.taken) == (True, saved.small.steps + saved.large.steps)
    assert second.model is not None
    assert second.model.step_s(CHUNK) == pytest.approx(step_s(CHUNK), rel=0.02)
    assert second.to_save() is None, "it is kept already"
    assert saved == before


def test_a_changed_machine_is_followed() -> None:
    learner = warm(*ENOUGH)
    for _ in range(600):
        for batch in (CHUNK, PROMPT, DECODE):
            learner.add(batch, 3 * step_s(batch))
    assert learner.model is not None
    assert learner.model.step_s(CHUNK) > 2 * step_s(CHUNK)
