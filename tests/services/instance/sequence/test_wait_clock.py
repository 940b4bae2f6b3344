"""Where the time between two tokens of a sequence went."""

import pytest

from dunlin.messages.lifecycle import MissCause
from dunlin.messages.types import RequestClass
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable
from services.instance.sequence.wait_clock import LastTokens, StepTiming, WaitClock, clock_of
from tests.services.instance.bench import D, make_place

S = SequenceState


def course(*states: tuple[float, SequenceState], **place: object) -> tuple[SequenceTable, Sequence]:
    """A sequence that came at 1 s and changed its state at these times."""
    table = SequenceTable()
    sequence = table.add(D, make_place(1, **place), 1.0)  # type: ignore[arg-type]
    for table.now_s, state in states:
        table.transition(sequence, state)
    return table, sequence


def parts(sequence: Sequence) -> dict[MissCause, float]:
    assert sequence.clock is not None
    return {cause: round(part_s, 6) for cause, part_s in sequence.clock.parts.items()}


def test_what_waits_for_no_slots_waits_for_the_steps_before() -> None:
    _, sequence = course((1.5, S.RUNNING), (2.0, S.DRAINING))
    assert parts(sequence) == {MissCause.STEP_BEFORE: 0.5, MissCause.LEFT_OUT: 0.5}


def test_what_found_no_slots_waits_for_them() -> None:
    table, sequence = course()
    table.now_s = table.blocked_s = 1.25
    table.now_s = 1.5
    table.transition(sequence, S.RUNNING)
    assert parts(sequence) == {MissCause.SLOTS: 0.5}
    late = table.add(D, make_place(2), 1.4)
    table.now_s = 1.6
    table.transition(late, S.RUNNING)
    assert parts(late) == {MissCause.STEP_BEFORE: pytest.approx(0.2)}, "none was missing since it came"


def test_a_preemption_lasts_until_it_runs_again() -> None:
    spilled = ((2.0, S.DRAINING), (2.1, S.ASKING), (2.2, S.SPILLING), (2.5, S.WAITING), (3.0, S.RESTORING))
    _, sequence = course((1.0, S.RUNNING), *spilled, (4.0, S.RUNNING), (4.5, S.LEAVING), (4.75, S.RUNNING))
    assert parts(sequence) == {MissCause.LEFT_OUT: 1.5, MissCause.PREEMPTED: 2.0, MissCause.MIGRATION: 0.25}


def test_a_parked_row_was_interrupted() -> None:
    _, sequence = course((1.0, S.RUNNING), (1.5, S.PARKED), (3.0, S.RUNNING))
    assert parts(sequence) == {MissCause.LEFT_OUT: 0.5, MissCause.INTERRUPTED: 1.5}


def test_what_a_lost_engine_computed_is_lost_with_it() -> None:
    table, sequence = course((1.0, S.RUNNING))
    waiting = table.add(D, make_place(2), 1.5)
    table.now_s = 2.0
    table.on_engine_lost()
    for table.now_s, state in ((2.5, S.WAITING), (4.0, S.RUNNING)):
        table.transition(sequence, state)
    table.transition(waiting, S.RUNNING)
    assert parts(sequence) == {MissCause.ENGINE_LOST: 3.0}
    assert parts(waiting) == {MissCause.STEP_BEFORE: 0.5, MissCause.ENGINE_LOST: 2.0}


def test_kv_of_an_earlier_attempt_that_comes_back_is_that_attempts() -> None:
    _, sequence = course((2.0, S.RESTORING), (3.0, S.RUNNING), queued_s=0.5, lost_s=0.25)
    assert parts(sequence) == {
        MissCause.QUEUE: 0.5,
        MissCause.EARLIER_ATTEMPT: 1.25,
        MissCause.STEP_BEFORE: 1.0,
    }


def test_batch_work_has_no_clock() -> None:
    table, sequence = course((2.0, S.RUNNING), request_class=RequestClass.BATCH)
    table.on_engine_lost()
    assert sequence.clock is None


def test_what_was_elsewhere_before_is_counted() -> None:
    clock = clock_of(make_place(1, queued_s=0.25, lost_s=0.5), 2.0)
    assert (clock.waits_since_s, clock.since_s) == (1.25, 2.0)
    assert clock.parts == {MissCause.QUEUE: 0.25, MissCause.EARLIER_ATTEMPT: 0.5}
    assert clock_of(make_place(1, handle=3, lost_s=0.5), 2.0).parts == {MissCause.MIGRATION: 0.5}


def test_a_step_is_divided_into_the_wait_for_it_what_was_predicted_and_the_rest() -> None:
    clock, before = WaitClock(1.0, 1.0, MissCause.LEFT_OUT), StepTiming(6, 0.0, 0.0, 1.75)
    clock.on_step(StepTiming(7, 1.5, 1.75, 3.0, 1.0), before)
    assert clock.parts == {
        MissCause.LEFT_OUT: 0.5,
        MissCause.STEP_BEFORE: 0.25,
        MissCause.STEP: 1.0,
        MissCause.SLOW_STEP: 0.25,
    }
    clock.on_step(StepTiming(8, 2.0, 3.0, 3.5), clock.step)
    assert clock.parts[MissCause.STEP] == 1.5, "without a prediction it is as it is"
    assert (clock.step and clock.step.step, clock.step_before) == (7, before), "the longest, and the first one's"


def test_a_token_starts_it_over_but_what_does_not_run_waits_for_the_same() -> None:
    clock = WaitClock(1.0, 1.0, MissCause.PREEMPTED, {MissCause.SLOTS: 1.0})
    clock.restart(2.0, False)
    assert (clock.parts, clock.cause, clock.waits_since_s) == ({}, MissCause.PREEMPTED, 2.0)
    clock.restart(3.0, True)
    assert clock.cause is MissCause.LEFT_OUT


def test_in_an_unchanged_batch_it_counts_since_the_batchs_last_token() -> None:
    clock, tokens = WaitClock(1.0, 1.0, MissCause.LEFT_OUT), LastTokens(2.0)
    clock.batch = tokens
    tokens.at_s = 5.0
    assert clock.waits_since_s == 5.0
    clock.switch(5.5, MissCause.PREEMPTED)
    tokens.at_s = 9.0
    assert (clock.parts, clock.waits_since_s) == ({MissCause.LEFT_OUT: 0.5}, 5.0)
