"""Steps of the modelled engine: their order, their times, repeats, ends, and rows that leave early."""

import pytest

from dunlin.messages.engine import Close, Discard, Interrupt, Resume, StepDone, StepInterrupted
from dunlin.messages.types import FinishReason, Verdict, i8, i32, i64
from simulator.engine.token_model import continuation
from tests.simulator.engine.engine_bench import STEP_S, Bench, open_of, step_of


def test_a_row_without_a_next_token_ends_alone() -> None:
    """As the engine's own runner does: tests/engine/execution/test_runner.py."""
    bench = Bench(failing_token=77)
    bench.tell(open_of(1, tokens=i32([5, 77, 7]), prompt_tokens=3), open_of(2, 8))
    bench.tell(step_of(1, (1, 0, 2), (2, 0, 8), sample=i8([0, 1])))
    bench.tell(step_of(2, (1, 2, 3), (2, 8, 9)), step_of(3, (1, 3, 4), (2, 9, 10)))
    done = [message for _, message in bench.of(StepDone)]
    assert [list(one.failed) for one in done] == [[], [1], []]
    assert [list(one.dropped) for one in done] == [[], [], [1]]
    assert [list(one.sequence) for one in done] == [[2], [2], [2]]


def test_steps_are_answered_in_their_order_each_after_its_time() -> None:
    bench = Bench()
    bench.tell(open_of(1), step_of(1, (1, 0, 10)), step_of(2, (1, 10, 11)))
    said = continuation(range(10), 2, seed=1)
    assert [(at_s, done.step, list(done.token)) for at_s, done in bench.of(StepDone)] == [
        (0.08, 1, said[:1]),
        (0.16, 2, said[1:]),
    ]
    done = bench.of(StepDone)[0][1]
    assert (done.prefill_rows, done.decode_rows, done.tokens_computed) == (1, 0, 10)
    assert done.compute_s == pytest.approx(STEP_S)


def test_a_row_that_ended_is_dropped_from_the_step_queued_behind_and_a_closed_one_too() -> None:
    bench = Bench()
    bench.tell(open_of(1, max_tokens=1), open_of(2), step_of(1, (1, 0, 10), (2, 0, 10)))
    bench.tell(step_of(2, (1, 10, 11), (2, 10, 11)), Close(2))
    (_, first), (_, second) = bench.of(StepDone)
    assert list(first.finish) == [FinishReason.LENGTH]
    assert (list(first.dropped), list(second.dropped)) == ([2], [1, 2])


def test_repeats_answer_once_each_until_a_row_finishes() -> None:
    bench = Bench()
    bench.tell(open_of(1, max_tokens=20), open_of(2, max_tokens=3))
    bench.tell(step_of(1, (1, 0, 10), (2, 0, 10), repeat=8), step_of(2, (1, 12, 13)))
    done = bench.of(StepDone)
    assert [(at_s, one.step) for at_s, one in done] == [(0.08, 1), (0.16, 1), (0.24, 1), (0.32, 2)]
    assert [one.token[0] for _, one in done] == continuation(range(10), 4, seed=1)
    assert [(one.prefill_rows, one.decode_rows) for _, one in done] == [(2, 0), (0, 2), (0, 2), (0, 1)]


def test_a_token_named_by_stop_ids_ends_the_row() -> None:
    bench = Bench()
    said = continuation(range(10), 3, seed=1)
    bench.tell(open_of(1, stop_ids=i32([said[1]])), step_of(1, (1, 0, 10), repeat=4))
    assert [list(done.finish) for _, done in bench.of(StepDone)] == [[FinishReason.RUNNING], [FinishReason.STOP]]


# --- rows that leave ---


def test_rows_leave_at_the_next_layer_and_the_others_go_on() -> None:
    bench = Bench()
    bench.tell(open_of(1), open_of(2), step_of(1, (1, 0, 10), (2, 0, 10)))
    bench.tell(Interrupt(1, Verdict.DISCARD, i64([2])), at_s=0.025)
    ((at_s, left),) = bench.of(StepInterrupted)
    assert (at_s, left.layer, list(left.sequences)) == (0.03, 3, [2])
    ((done_s, done),) = bench.of(StepDone)
    assert (done_s, list(done.sequence)) == (0.08, [1])


def test_suspended_rows_keep_what_was_computed_and_go_on_when_resumed() -> None:
    bench = Bench()
    bench.tell(open_of(1), step_of(1, (1, 0, 10)))
    bench.tell(Interrupt(1, Verdict.SUSPEND), at_s=0.055)
    bench.tell(Resume(1), at_s=1.0)
    ((at_s, left),) = bench.of(StepInterrupted)
    assert (at_s, left.layer, list(left.sequences)) == (0.06, 6, [1])
    ((done_s, done),) = bench.of(StepDone)
    assert (done_s, list(done.token)) == (1.02, continuation(range(10), 1, seed=1))


def test_discarded_rows_may_be_asked_for_again_from_their_start() -> None:
    bench = Bench()
    bench.tell(open_of(1), step_of(1, (1, 0, 10)))
    bench.tell(Interrupt(1, Verdict.SUSPEND), at_s=0.015)
    bench.tell(Discard(1), step_of(2, (1, 0, 10)), at_s=0.1)
    assert [(at_s, done.step) for at_s, done in bench.of(StepDone)] == [(0.18, 2)]


def test_rows_of_a_step_that_has_not_begun_leave_at_once() -> None:
    bench = Bench()
    bench.tell(open_of(1), open_of(2), step_of(1, (1, 0, 10)), step_of(2, (2, 0, 10)))
    bench.tell(Interrupt(2, Verdict.DISCARD), at_s=0.02)
    assert [(at_s, left.step, left.layer) for at_s, left in bench.of(StepInterrupted)] == [(0.02, 2, 0)]
    assert [done.step for _, done in bench.of(StepDone)] == [1]


def test_an_interruption_that_comes_too_late_changes_nothing() -> None:
    bench = Bench()
    bench.tell(open_of(1), step_of(1, (1, 0, 10)))
    bench.tell(Interrupt(1, Verdict.DISCARD), at_s=0.075)
    assert [done.step for _, done in bench.of(StepDone)] == [1]
    assert bench.of(StepInterrupted) == []
