"""How many tokens may be late on purpose: a share of those that came, less those that were."""

import pytest

from dunlin.cost.models import BatchCounts
from dunlin.messages.engine import Step
from services.instance.objectives.miss_allowance import LATE_SHARE, MissAllowance
from tests.services.instance.bench import ENGINE, D, Direct, done, only, ready_core
from tests.services.instance.objectives.test_misses import asked, core, repeated_batch


class SlowRows:
    """A hundredth of a second per prompt token, and a tenth per row that decodes."""

    def step_s(self, batch: BatchCounts) -> float:
        return 0.01 * batch.prefill_tokens + 0.1 * batch.decode_rows


def test_two_hundred_tokens_pay_for_one_that_is_late() -> None:
    allowance = MissAllowance(8)
    allowance.on_tokens(400)
    assert allowance.tokens == pytest.approx(2.0)
    allowance.on_late()
    assert allowance.tokens == pytest.approx(1.0)


def test_what_is_saved_and_what_is_owed_are_bounded_by_half_of_the_rows_of_a_step() -> None:
    allowance = MissAllowance(32)
    allowance.on_tokens(1_000_000)
    assert allowance.tokens == 16.0
    for _ in range(100):
        allowance.on_late()
    assert allowance.tokens == -16.0


def test_tokens_of_interactive_sequences_count_and_of_these_the_late_ones() -> None:
    direct = core(objectives__ttft_s=9.0)
    tokens, at_s = repeated_batch(direct)
    assert allowed(direct) == pytest.approx(12 * LATE_SHARE)
    direct.give(ENGINE, done(8, *tokens), at_s + 0.2)
    assert allowed(direct) == pytest.approx(14 * LATE_SHARE - 1), "the second one's objective is its own"


def test_a_first_token_that_is_late_takes_none_away() -> None:
    direct = core()
    direct.give(D, asked(1), 0.0)
    direct.give(ENGINE, done(1, (1, 5)), 0.6)
    assert allowed(direct) == pytest.approx(LATE_SHARE)


@pytest.mark.parametrize(
    ("ttft_s", "queued_s", "late_tokens", "chunk"),
    [
        (3.3, 0.0, 2.0, 89),
        (2.7, 0.0, 2.0, 200),
        (3.3, 0.4, 2.0, 200),
        (1.99, 0.0, 2.0, 89),
        (2.7, 0.0, 0.9, 89),
    ],
)
def test_a_prompt_that_would_be_late_has_a_longer_step(
    ttft_s: float, queued_s: float, late_tokens: float, chunk: int
) -> None:
    """200 tokens of 0.01 s each beside a row that decodes: three steps of 0.9975 s. When the first of them is composed,
    0.095 s went by and 0.1 s is still queued.
    """
    objectives = {"objectives__ttft_s": ttft_s, "objectives__tpot_s": 1.05}
    direct = ready_core({"slots": 1024}, SlowRows(), **objectives, scheduler__policy="harvest")
    direct.give(D, asked(1), 0.95)
    direct.give(ENGINE, done(1, (1, 5)), 0.99)
    direct.core._composer._allowance.tokens = late_tokens
    direct.give(D, asked(2, tokens=200, queued_s=queued_s), 0.995)
    step = only(Step, direct.give(ENGINE, done(2, (1, 5)), 1.09))
    assert list(zip(step.sequence, step.start, step.stop, strict=True))[1:] == [(2, 0, chunk)]
    assert step.why is not None
    assert [option.option for option in step.why.rejected] == ["a step within tpot_objective_s"] * (chunk == 200)


def allowed(direct: Direct) -> float:
    return direct.core._composer._allowance.tokens
