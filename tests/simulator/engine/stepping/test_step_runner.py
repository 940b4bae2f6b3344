"""Steps of the modelled engine: their order, their times, and their ends."""

import pytest

from dunlin.cost.models import BatchCounts
from dunlin.messages.engine import Close, StepDone
from dunlin.messages.types import FinishReason, SamplingParams, i8, i32, i64
from simulator.engine.errors import ContractBroken
from simulator.engine.timing import LinearTiming
from simulator.engine.token_model import continuation
from tests.simulator.engine.engine_bench import STEP_S, Bench, move_of, open_of, step_of


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


class CountedTiming(LinearTiming):
    """Each step takes as many seconds as rows of it draw a token with a temperature."""

    def step_s(self, batch: BatchCounts) -> float:
        return float(batch.sampled_rows)


def test_rows_that_draw_a_token_with_a_temperature_are_counted() -> None:
    bench = Bench(timing=CountedTiming())
    greedy = SamplingParams(temperature=0.0, seed=3)
    bench.tell(open_of(1), open_of(2, 8), open_of(3, sampling=greedy))
    bench.tell(step_of(1, (1, 0, 10), (2, 0, 4), (3, 0, 10), sample=i8([1, 0, 1])))
    bench.tell(step_of(2, (1, 10, 11), (2, 4, 8), (3, 10, 11)))
    assert [done.compute_s for _, done in bench.of(StepDone)] == [1.0, 2.0]


def test_a_row_that_ended_is_dropped_from_the_step_queued_behind_and_a_closed_one_too() -> None:
    bench = Bench()
    bench.tell(open_of(1, max_tokens=1), open_of(2), step_of(1, (1, 0, 10), (2, 0, 10)))
    bench.tell(step_of(2, (1, 10, 11), (2, 10, 11)), Close(2))
    (_, first), (_, second) = bench.of(StepDone)
    assert list(first.finish) == [FinishReason.LENGTH, FinishReason.RUNNING]
    assert (list(first.dropped), list(second.dropped)) == ([], [1, 2])


def test_a_sequence_that_is_closed_in_its_step_is_computed_to_the_end_and_known_no_more_then() -> None:
    bench = Bench()
    bench.tell(open_of(1), step_of(1, (1, 0, 10)), Close(1))
    (_, done) = bench.of(StepDone)[0]
    assert (list(done.token), list(done.dropped)) == (continuation(range(10), 1, seed=1), [])
    bench.tell(open_of(1), step_of(2, (1, 0, 10)))
    bench.world.run_to(120.0)
    assert [list(each.token) for _, each in bench.of(StepDone)] == [list(done.token)] * 2


def test_a_sequence_that_is_computed_yet_cannot_be_opened_again() -> None:
    bench = Bench()
    bench.tell(open_of(1), step_of(1, (1, 0, 10)), Close(1), open_of(1))
    with pytest.raises(ContractBroken, match="sequence 1 is open already"):
        bench.run()


def test_a_token_named_by_stop_ids_ends_the_row() -> None:
    bench = Bench()
    said = continuation(range(10), 3, seed=1)
    bench.tell(
        open_of(1, stop_ids=i32([said[1]])), step_of(1, (1, 0, 10)), step_of(2, (1, 10, 11)), step_of(3, (1, 11, 12))
    )
    assert [list(done.finish) for _, done in bench.of(StepDone)] == [
        [FinishReason.RUNNING],
        [FinishReason.STOP],
        [],
    ]


def test_a_step_that_waits_holds_up_only_those_that_share_a_sequence() -> None:
    bench = Bench(move_s=1.0)
    bench.tell(*map(open_of, range(1, 5)), step_of(1, *((number, 0, 10) for number in range(1, 5))))
    bench.tell(move_of(1), step_of(2, (1, 10, 11), (2, 10, 11), after=i64([1])), at_s=0.08)
    bench.tell(step_of(3, (2, 11, 12), (3, 10, 11)), step_of(4, (3, 11, 12)), step_of(5, (4, 10, 11)))
    done = [(round(at_s, 6), one.step) for at_s, one in bench.of(StepDone)]
    assert done == [(0.08, 1), (0.16, 5), (1.16, 2), (1.24, 3), (1.32, 4)]
