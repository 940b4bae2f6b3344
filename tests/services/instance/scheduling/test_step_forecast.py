"""When the outstanding steps will be done, by the profile and by what steps took."""

from dataclasses import dataclass

import pytest

from dunlin.cost.models import BatchCounts
from dunlin.effects import Effect, Send
from dunlin.messages.engine import Step, StepDone
from dunlin.messages.types import StepTimesSource, f32, i8, i32, i64
from services.instance.config import InstanceConfig
from services.instance.scheduling.step_forecast import (
    CORRECTION_WEIGHT,
    MOST_CORRECTION,
    StepForecast,
    make_forecast,
    step_counts,
)
from services.instance.scheduling.step_times import PROFILES, SaveLearntSteps
from tests.settings import configured


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


def test_a_queued_step_that_is_taken_back_changes_nothing_of_the_running_one() -> None:
    forecast = StepForecast(PerToken())
    assert (forecast.elapsed_s(4.0), forecast.sent_s(1)) == (0.0, 0.0)
    forecast.on_sent(5.0, step(1, (0, 10)))
    forecast.on_sent(5.0, step(2, (10, 30)))
    assert [forecast.elapsed_s(5.03), forecast.sent_s(2)] == pytest.approx([0.03, 0.2])
    forecast.on_done(5.04, done(2, 0.0, left=i64([0])))
    assert [forecast.elapsed_s(5.05), forecast.sent_s(2)] == pytest.approx([0.05, 0.0])
    assert forecast.remaining_s(5.05) == pytest.approx(0.05)


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
    counts = step_counts(composed.start, composed.stop, composed.sample)
    assert (counts.decode_rows, counts.decode_context) == (1, 8)
    assert (counts.prefill_rows, counts.prefill_tokens, counts.prefix_products) == (2, 6, 4)


def learning() -> StepForecast:
    config = configured(InstanceConfig, role="instance", scheduler__policy="harvest", scheduler__budget_tokens=64)
    return make_forecast(config, None)


def decode(number: int, rows: int, context: int) -> Step:
    starts, ones = i64([context] * rows), i64([1] * rows)
    columns = i64(range(rows)), starts, i64([context + 1] * rows), i8([1] * rows)
    return Step(number, *columns, i32(range(rows)), i64(range(rows)), ones)


def serve(forecast: StepForecast, steps: int, slowness: float = 1.0, **fields: object) -> list[Effect]:
    """Steps of prompts and of decode rows in turn, on an engine of 10 ms a step and 0.1 ms a token."""
    effects: list[Effect] = []
    for number in range(1, steps + 1):
        one = step(number, (0, 8 + number % 60)) if number % 2 else decode(number, 1 + number % 7, 40)
        counts = step_counts(one.start, one.stop, one.sample)
        taken_s = slowness * (0.01 + 1e-4 * (counts.prefill_tokens + counts.decode_rows))
        forecast.on_sent(0.0, one)
        forecast.on_done(1.0, done(number, taken_s, **fields))
        effects += forecast.learnt()
    return effects


def test_without_a_profile_it_learns_from_what_steps_take_and_has_it_saved() -> None:
    forecast = learning()
    assert forecast.report_fields()["step_times"] is StepTimesSource.LEARNING
    serve(forecast, 40)
    assert (forecast.is_on, forecast.times) == (False, None), "it has not seen enough"
    (save,) = serve(forecast, 140)
    assert isinstance(save, Send)
    assert save.to == PROFILES
    assert isinstance(save.message, SaveLearntSteps)
    assert forecast.times is forecast
    assert forecast.step_s(BatchCounts(1, 50, 0, 2500)) == pytest.approx(0.015, rel=0.05)
    said = forecast.report_fields()
    assert said["step_times"] is StepTimesSource.LEARNT
    assert 0 < said["prompt_step_error"] < 0.05
    assert said["learnt_steps_total"] > 100
    config = configured(InstanceConfig, role="instance", scheduler__policy="harvest")
    second = make_forecast(config, save.message.learnt)
    assert second.step_s(BatchCounts(1, 50, 0, 2500)) == pytest.approx(0.015, rel=0.05)
    assert second.is_on


def test_steps_that_rows_left_teach_nothing() -> None:
    forecast = learning()
    serve(forecast, 300, left=i64([0]))
    assert forecast.report_fields()["learnt_steps_total"] == 0


def test_predictions_that_turn_out_bad_are_not_used_until_they_are_good_again() -> None:
    forecast = learning()
    serve(forecast, 200)
    forecast.on_sent(0.0, step(1, (0, 10)))
    assert forecast.on_done(1.0, done(1, 0.01)).predicted_s > 0
    for slowness in (8.0, 1.0) * 20:  # something that no model of counts can predict holds the engine up
        serve(forecast, 4, slowness)
    assert not forecast.is_on
    assert forecast.report_fields()["step_times"] is StepTimesSource.LEARNING
    forecast.on_sent(0.0, step(1, (0, 10)))
    assert forecast.on_done(1.0, done(1, 0.01)).predicted_s == 0.0, "what is not used explains no miss"
    serve(forecast, 300)
    assert forecast.is_on


def test_a_profile_is_not_learnt_over_and_policies_that_ask_nothing_learn_nothing() -> None:
    config = configured(InstanceConfig, role="instance", scheduler__policy="harvest")
    profiled = make_forecast(config, PerToken())
    serve(profiled, 200)
    said = profiled.report_fields()
    assert (said["step_times"], said["learnt_steps_total"]) == (StepTimesSource.PROFILE, 0)
    assert said["decode_step_error"] > 0
    idle = make_forecast(configured(InstanceConfig, role="instance"), None)
    serve(idle, 200)
    said = idle.report_fields()
    assert (said["step_times"], said["learnt_steps_total"]) == (StepTimesSource.NONE, 0)
