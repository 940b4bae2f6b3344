"""The cause that a late token is counted by."""

import pytest

from dunlin.messages.lifecycle import MissCause
from dunlin.messages.types import RejectedOption
from services.instance.objectives.miss_cause import WORDS, cause_of, reason_of
from services.instance.sequence.wait_clock import StepTiming, WaitClock
from tests.services.instance.bench import figures

STEP, SLOW, SLOTS, QUEUE = MissCause.STEP, MissCause.SLOW_STEP, MissCause.SLOTS, MissCause.QUEUE


@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        ({QUEUE: 1.0}, QUEUE),
        ({QUEUE: 0.3, SLOTS: 0.4, STEP: 0.9}, SLOTS),
        ({QUEUE: 0.3, SLOTS: 0.4, STEP: 1.1}, STEP),
        ({STEP: 1.0, SLOW: 0.1}, SLOW),
        ({STEP: 0.9}, STEP),
        ({SLOTS: 0.6, QUEUE: 0.6}, QUEUE),
        ({MissCause.MIGRATION: 0.7, MissCause.PREEMPTED: 0.6, STEP: 0.2}, MissCause.MIGRATION),
        ({}, STEP),
    ],
)
def test_it_is_the_longest_wait_unless_its_own_steps_are_too_long_alone(
    parts: dict[MissCause, float], cause: MissCause
) -> None:
    assert cause_of(parts, 1.0) is cause


@pytest.mark.parametrize("cause", list(MissCause))
def test_every_cause_has_words_and_a_figure(cause: MissCause) -> None:
    clock = WaitClock(0.0, 0.0, parts={cause: 0.75})
    why = reason_of(cause, False, 0.8, 0.1, clock)
    assert why.policy == WORDS[cause]
    found = figures(why)
    assert found.pop("late_s") == 0.8
    assert found.pop("tpot_objective_s") == 0.1
    assert list(found.values()) == [0.75]
    assert why.rejected == (RejectedOption("in time", "0.75 s went by"),)


def test_what_was_predicted_of_the_step_and_what_it_took() -> None:
    clock = WaitClock(0.0, 0.0, parts={SLOW: 0.3, STEP: 0.1})
    clock.step, clock.step_before = StepTiming(7, 0.0, 0.0, 0.4, 0.1), StepTiming(6, 0.0, 0.0, 0.9)
    why = reason_of(SLOW, True, 0.4, 0.2, clock)
    assert why.rejected[0].reason == "step 7 was to take 0.1 s and took 0.4 s"
    found = figures(why)
    assert (found["ttft_objective_s"], found["step"], found["step_predicted_s"], found["step_took_s"]) == (
        0.2,
        7,
        0.1,
        0.4,
    )
    clock.parts[MissCause.STEP_BEFORE] = 0.5
    before = reason_of(MissCause.STEP_BEFORE, True, 0.4, 0.2, clock)
    assert before.rejected[0].reason == "step 6 took 0.9 s"
    assert "step_predicted_s" not in figures(before)
