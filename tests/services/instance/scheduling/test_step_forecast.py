"""When the outstanding steps will be done, by the profile and by what steps took."""

from dataclasses import dataclass

import pytest

from dunlin.cost.models import BatchCounts
from dunlin.messages.engine import Step, StepDone
from dunlin.messages.types import f32, i8, i32, i64
from services.instance.scheduling.step_forecast import CORRECTION_WEIGHT, MOST_CORRECTION, StepForecast, step_counts


@dataclass(frozen=True)
class PerToken:
    def step_s(self, batch: BatchCounts) -> float:
        return 0.01 * (batch.prefill_tokens + batch.decode_rows)


def step(number: int, *spans: tuple[int, int]) -> Step:
    """A step of prompt rows."""
    rows = range(len(spans))
    return Step(
        number,
        i64(rows),
        i64([start for start, _ in spans]),
        i64([stop for _, stop in spans]),
        i8([0] * len(spans)),
        i32(rows),
        i64(rows),
        i64([stop - start for start, stop in spans]),
    )


def done(number: int, compute_s: float, **fields: object) -> StepDone:
    return StepDone(number, i64(), i32(), f32(), i8(), compute_s=compute_s, **fields)  # type: ignore[arg-type]


def test_what_remains_shrinks_with_time_and_with_answers() -> None:
    forecast = StepForecast(PerToken())
    assert forecast.remaining_s(5.0) == 0.0
    forecast.on_sent(5.0, step(1, (0, 10)))
    forecast.on_sent(5.0, step(2, (10, 30)))
    assert forecast.remaining_s(5.0) == pytest.approx(0.3)
    assert forecast.remaining_s(5.04) == pytest.approx(0.26)
    assert forecast.remaining_s(6.0) == pytest.approx(0.2), "the second has not begun as long as the first runs"
    forecast.on_done(6.0, done(1, 0.1))
    assert forecast.remaining_s(6.05) == pytest.approx(0.15)
    forecast.clear()
    assert forecast.remaining_s(6.05) == 0.0


def test_a_step_that_waited_for_nothing_runs_since_it_was_sent() -> None:
    forecast = StepForecast(PerToken())
    forecast.on_sent(1.0, step(1, (0, 10)))
    forecast.on_done(1.1, done(1, 0.1))
    forecast.on_sent(9.0, step(2, (0, 10)))
    assert forecast.remaining_s(9.02) == pytest.approx(0.08)


def test_the_profile_is_corrected_by_what_steps_take_but_not_by_one_that_rows_left() -> None:
    forecast = StepForecast(PerToken())
    for number, taken in ((1, done(1, 0.2)), (2, done(2, 5.0, left=i64([0]))), (3, done(3, 5.0, dropped=i64([0])))):
        forecast.on_sent(0.0, step(number, (0, 10)))
        forecast.on_done(1.0, taken)
    assert forecast.correction == pytest.approx(1 + CORRECTION_WEIGHT)
    assert forecast.step_s(BatchCounts(1, 10)) == pytest.approx(0.1 * (1 + CORRECTION_WEIGHT))
    forecast.on_sent(0.0, step(4, (0, 10)))
    forecast.on_done(1.0, done(4, 1000.0))
    assert forecast.correction < 1 + CORRECTION_WEIGHT * (1 + MOST_CORRECTION), "one hiccup is no new machine"


def test_without_a_profile_nothing_is_predicted() -> None:
    forecast = StepForecast()
    forecast.on_sent(0.0, step(1, (0, 10)))
    forecast.on_done(1.0, done(1, 0.1))
    assert (forecast.is_on, forecast.remaining_s(1.0), forecast.step_s(BatchCounts(1, 10))) == (False, 0.0, 0.0)


def test_rows_are_counted_as_what_they_are() -> None:
    starts, stops, samples = i64([7, 0, 4]), i64([8, 5, 5]), i8([1, 1, 0])
    composed = Step(1, i64([1, 2, 3]), starts, stops, samples, i32([0, 1, 2]), i64([0, 9, 30]), i64([1, 5, 1]))
    counts = step_counts(composed)
    assert (counts.decode_rows, counts.decode_context) == (1, 8)
    assert (counts.prefill_rows, counts.prefill_tokens, counts.prefix_products) == (2, 6, 4)
