"""Rows of the modelled engine that leave a step, wait and come back; 8 layers of 10 ms, so safepoints 5 ms apart."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.cost.interrupts import InterruptTimes
from dunlin.messages.engine import Close, Discard, Interrupt, Interrupted, Open, Resume, StepDone, Unsupported
from dunlin.messages.types import Verdict, i8, i64
from simulator.engine.errors import ContractBroken
from simulator.engine.stepping.running_step import LAYER_UNITS
from simulator.engine.token_model import continuation
from tests.simulator.engine.engine_bench import Bench, move_of, open_of, step_of

DISCARD, SUSPEND = Verdict.DISCARD, Verdict.SUSPEND
HALF = LAYER_UNITS // 2


def interrupt(ticket: int, verdict: Verdict, *sequences: int, up_to: int = 99) -> Interrupt:
    return Interrupt(verdict, i64(sequences), ticket=ticket, up_to_step=up_to)


def rows_of(answer: Interrupted) -> list[tuple[int, int, int, int, int]]:
    """(sequence, step, layer, block, parked) of each row that left."""
    columns = (answer.sequence, answer.step, answer.layer, answer.block, answer.parked)
    return list(zip(*columns, strict=True))


def two(**settings: Any) -> Bench:
    """Sequences 1 and 2 in step 1, which began at 0 s."""
    bench = Bench(**settings)
    bench.tell(open_of(1), open_of(2), step_of(1, (1, 0, 10), (2, 0, 10)))
    return bench


def answers(bench: Bench) -> list[tuple[float, Any]]:
    bench.run()
    return bench.heard


def test_a_row_leaves_at_the_next_safepoint_and_the_others_go_on() -> None:
    bench = two()
    bench.tell(interrupt(7, DISCARD, 2), at_s=0.022)
    (left_s, left), (done_s, done) = answers(bench)
    assert (left_s, left.ticket, rows_of(left)) == (0.025, 7, [(2, 1, 2, HALF, 0)])
    assert (done_s, list(done.sequence), list(done.left), done.tokens_computed) == (0.08, [1], [2], 10)
    assert done.compute_s == pytest.approx(0.08)


def test_the_rows_that_stay_take_their_own_time_for_what_is_left() -> None:
    """20 tokens take 8 + 20 ms, 10 take 8 + 10: after 2 of 8 layers (7 ms) the rest of those takes 13.5 ms."""
    bench = two(step_s=0.008, token_s=0.001)
    bench.tell(interrupt(7, DISCARD, 2), at_s=0.006)
    (left_s, left), (done_s, _) = answers(bench)
    assert (left_s, rows_of(left)) == (0.007, [(2, 1, 2, 0, 0)])
    assert done_s == pytest.approx(0.007 + 0.0135)


def test_an_answer_takes_its_time_in_which_the_step_stands_still() -> None:
    bench = two(interrupts=InterruptTimes(answer_s=0.002, layer_safepoints=8))
    bench.tell(interrupt(7, DISCARD, 2), at_s=0.022)
    found = answers(bench)
    assert [at_s for at_s, message in found if isinstance(message, Interrupted)] == [0.0245]  # 10 / 8 ms x 18, and 2
    assert [at_s for at_s, message in found if isinstance(message, StepDone)] == [0.082]


@pytest.mark.parametrize("verdict", [DISCARD, SUSPEND])
@pytest.mark.parametrize(
    ("named", "tokens"), [([[2]], 10), ([[1], [2]], 20), ([[1], [1, 2]], 20), ([[]], 20), ([[2], []], 20), ([[9]], 0)]
)
def test_an_answer_takes_longer_the_more_tokens_leave(named: list[list[int]], tokens: int, verdict: Verdict) -> None:
    """Two rows of ten tokens; each is set aside once, whatever its fate and however many interrupts name it."""
    bench = two(interrupts=InterruptTimes(answer_s=0.001, layer_safepoints=8, answer_token_s=1e-4))
    bench.tell(*(interrupt(7 + at, verdict, *each) for at, each in enumerate(named)), at_s=0.022)
    delay_s = 0.001 + 1e-4 * tokens
    found = answers(bench)
    left_s = [at_s for at_s, message in found if isinstance(message, Interrupted)]
    assert left_s == pytest.approx([0.0225 + delay_s] * len(named))
    (done_s,) = (at_s for at_s, message in found if isinstance(message, StepDone))
    assert done_s == pytest.approx(0.0225 + delay_s if tokens == 20 else 0.08 + delay_s)


def test_the_step_stands_still_for_each_of_its_answers() -> None:
    bench = two(interrupts=InterruptTimes(answer_token_s=1e-4))
    bench.tell(interrupt(7, SUSPEND, 1), at_s=0.002)
    bench.tell(interrupt(8, SUSPEND, 2), at_s=0.014)  # 13 ms of its work are done: the next safepoint is at 15
    assert [at_s for at_s, _ in bench.of(Interrupted)] == pytest.approx([0.005 + 0.001, 0.015 + 0.002])


def test_the_row_of_a_resumed_step_is_set_aside_again() -> None:
    bench = two(interrupts=InterruptTimes(answer_token_s=1e-4))
    bench.tell(interrupt(7, SUSPEND, 1), at_s=0.002)
    bench.tell(Resume(2, i64([1])), at_s=0.1)
    bench.tell(interrupt(8, SUSPEND), at_s=0.102)
    first, second = (at_s for at_s, left in bench.of(Interrupted))
    assert (first, second) == pytest.approx((0.005 + 0.001, 0.105 + 0.001))


def test_each_of_several_interrupts_before_one_safepoint_counts() -> None:
    bench = two()
    bench.tell(interrupt(7, SUSPEND, 2), interrupt(8, DISCARD, 2), interrupt(9, DISCARD), at_s=0.021)
    (_, first), (_, second), (_, third), (done_s, done) = answers(bench)
    assert [one.ticket for one in (first, second, third)] == [7, 8, 9]
    assert (rows_of(first), rows_of(second)) == ([(2, 1, 2, HALF, 1)], [])
    assert rows_of(third) == [(1, 1, 2, HALF, 0)]
    assert (done_s, list(done.sequence), list(done.left)) == (0.025, [], [2, 1])


def test_a_suspended_row_goes_on_where_it_stood_under_a_new_number() -> None:
    bench = two()
    bench.tell(interrupt(7, SUSPEND, 1), at_s=0.055)
    bench.tell(Resume(5, i64([1])), at_s=1.0)
    (_, left), (_, first), (done_s, done) = answers(bench)
    assert rows_of(left) == [(1, 1, 5, HALF, 1)]
    assert (list(first.sequence), list(first.left)) == ([2], [1])
    assert (round(done_s, 6), done.step) == (1.025, 5)
    assert list(done.token) == continuation(range(10), 1, seed=1)


def test_rows_at_one_place_of_different_steps_go_on_together_and_others_stay_parked() -> None:
    bench = two()
    bench.tell(open_of(3), step_of(2, (3, 0, 10)))
    bench.tell(interrupt(7, SUSPEND), at_s=0.02)  # step 2's row is forgotten
    bench.tell(step_of(3, (3, 0, 10)), at_s=0.1)
    bench.tell(interrupt(8, SUSPEND), at_s=0.12)
    bench.tell(Resume(4, i64([1, 2, 3])), at_s=0.2)
    done = [(at_s, one) for at_s, one in bench.of(StepDone) if one.sequence]
    assert [(at_s, one.step, list(one.sequence)) for at_s, one in done] == [(0.26, 4, [1, 2, 3])]
    tokens = [continuation(range(10), 1, seed=number)[0] for number in (1, 2, 3)]
    assert list(done[0][1].token) == tokens


def test_rows_at_different_places_are_not_resumed_together() -> None:
    bench = two()
    bench.tell(interrupt(7, SUSPEND, 1), at_s=0.02)
    bench.tell(interrupt(8, SUSPEND, 2), at_s=0.03)
    bench.tell(Resume(4, i64([1, 2])), Resume(5, i64([1])), Resume(6, i64([2])), at_s=0.1)
    (refused,) = (message for _, message in bench.of(Unsupported))
    assert (refused.what, refused.step) == ("Resume", 4)
    assert [(at_s, one.step) for at_s, one in bench.of(StepDone)][1:] == [(0.16, 5), (0.21, 6)]


def test_a_resumed_step_can_be_interrupted_again() -> None:
    bench = two()
    bench.tell(interrupt(7, SUSPEND), at_s=0.02)
    bench.tell(Resume(2, i64([1, 2])), at_s=0.1)
    bench.tell(interrupt(8, SUSPEND, 2), at_s=0.119)
    bench.tell(Resume(3, i64([2])), at_s=0.2)
    assert [rows_of(left) for _, left in bench.of(Interrupted)][1] == [(2, 2, 4, 0, 1)]
    done = [(at_s, one.step, list(one.sequence), list(one.left)) for at_s, one in bench.of(StepDone)]
    assert done[1:] == [(0.16, 2, [1], [2]), (0.24, 3, [2], [])]


def test_the_kv_of_a_row_that_was_discarded_ends_at_its_start() -> None:
    bench = two()
    bench.tell(interrupt(7, DISCARD, 1, up_to=1), step_of(2, (1, 10, 11)), at_s=0.02)
    with pytest.raises(ContractBroken, match="token 10 is computed, KV ends at 0"):
        bench.run()


@pytest.mark.parametrize("verdict", [DISCARD, SUSPEND])
def test_rows_that_left_may_be_computed_again_from_their_start(verdict: Verdict) -> None:
    bench = two()
    bench.tell(interrupt(7, verdict), at_s=0.02)
    bench.tell(Discard(i64([1, 2, 9])), step_of(2, (1, 0, 10)), at_s=0.1)
    (at_s, done) = bench.of(StepDone)[-1]
    assert (at_s, list(done.token)) == (0.18, continuation(range(10), 1, seed=1))


def test_rows_of_queued_steps_are_forgotten_up_to_the_number() -> None:
    bench = two()
    bench.tell(open_of(3), step_of(2, (3, 0, 5), sample=i8([0])), step_of(3, (3, 5, 10)), step_of(4, (3, 0, 10)))
    bench.tell(interrupt(7, SUSPEND, 3, up_to=3), at_s=0.021)
    (at_s, left), (_, second), (_, third), *rest = answers(bench)
    assert (at_s, rows_of(left)) == (0.025, [(3, 2, 0, 0, 0), (3, 3, 0, 0, 0)])
    assert [(one.step, list(one.left), one.compute_s) for one in (second, third)] == [(2, [3], 0.0), (3, [3], 0.0)]
    assert [(done_s, done.step) for done_s, done in rest] == [(0.08, 1), (0.16, 4)]


def test_an_interrupt_of_an_idle_engine_takes_effect_at_once() -> None:
    bench = Bench()
    bench.tell(interrupt(7, SUSPEND), at_s=0.01)
    assert [(at_s, rows_of(left)) for at_s, left in bench.of(Interrupted)] == [(0.01, [])]


def test_an_interrupt_takes_effect_at_once_when_all_steps_wait() -> None:
    bench = two(move_s=0.3)
    bench.tell(move_of(1), step_of(2, (1, 10, 11), after=i64([1])), at_s=0.1)
    bench.tell(interrupt(7, DISCARD), at_s=0.2)
    ((at_s, left),) = bench.of(Interrupted)
    assert (at_s, rows_of(left)) == (0.2, [(1, 2, 0, 0, 0)])
    assert [(done_s, list(done.left)) for done_s, done in bench.of(StepDone)][1:] == [(0.2, [1])]


def test_a_step_of_decode_rows_alone_ends_before_an_interrupt() -> None:
    bench = two()
    bench.tell(step_of(2, (1, 10, 11), (2, 10, 11)), step_of(3, (1, 11, 12)), at_s=0.08)
    bench.tell(interrupt(7, SUSPEND), at_s=0.1)
    kinds = [(at_s, type(one).__name__, getattr(one, "step", 0)) for at_s, one in answers(bench)][1:]
    assert [(at_s, kind) for at_s, kind, _ in kinds] == [(0.16, "StepDone"), (0.16, "Interrupted"), (0.16, "StepDone")]
    (left,) = (left for _, left in bench.of(Interrupted))
    assert rows_of(left) == [(1, 3, 0, 0, 0)]


def test_a_preemptible_step_of_decode_rows_alone_does_not_end_first() -> None:
    bench = two()
    bench.tell(replace(step_of(2, (1, 10, 11), (2, 10, 11)), preemptible=True), at_s=0.08)
    bench.tell(interrupt(7, DISCARD), at_s=0.101)
    (at_s, left), (done_s, done) = answers(bench)[1:]
    assert (at_s, done_s, rows_of(left)) == (0.105, 0.105, [(1, 2, 2, HALF, 0), (2, 2, 2, HALF, 0)])
    assert list(done.left) == [1, 2]


def test_an_interrupt_after_the_last_safepoint_waits_for_the_end() -> None:
    bench = two()
    bench.tell(interrupt(7, DISCARD), at_s=0.077)
    (done_s, done), (at_s, left) = answers(bench)
    assert (done_s, len(done.sequence), at_s, rows_of(left)) == (0.08, 2, 0.08, [])


def test_a_row_of_a_closed_sequence_leaves_and_is_not_parked() -> None:
    bench = two()
    bench.tell(Close(1), interrupt(7, SUSPEND), at_s=0.02)
    (_, left), (_, done) = answers(bench)
    assert [(sequence, parked) for sequence, *_, parked in rows_of(left)] == [(1, 0), (2, 1)]
    assert (list(done.dropped), list(done.left)) == ([], [1, 2])


def test_a_row_of_a_closed_sequence_goes_on_to_its_end_if_another_leaves() -> None:
    bench = two()
    bench.tell(Close(1), interrupt(7, DISCARD, 2), at_s=0.02)
    (_, left), (_, done) = answers(bench)
    assert [sequence for sequence, *_ in rows_of(left)] == [2]
    assert (list(done.sequence), list(done.dropped), done.tokens_computed) == ([1], [], 10)


@pytest.mark.parametrize(
    ("limits", "parked"), [({"parked_rows": 1}, [1, 0]), ({"parked_tokens": 15}, [1, 0]), ({}, [1, 1])]
)
def test_what_has_no_room_to_be_parked_is_discarded(limits: dict[str, int], parked: list[int]) -> None:
    bench = two(**limits)
    bench.tell(interrupt(7, SUSPEND), at_s=0.02)
    ((_, left),) = bench.of(Interrupted)
    assert list(left.parked) == parked


def test_a_step_that_names_a_parked_sequence_is_a_breach() -> None:
    bench = two()
    bench.tell(interrupt(7, SUSPEND), at_s=0.02)
    bench.tell(step_of(2, (1, 0, 10)), at_s=0.1)
    with pytest.raises(ContractBroken, match="step 2 names sequence 1, of which a row is parked"):
        bench.run()


def test_a_resumed_row_whose_sequence_was_closed_is_dropped() -> None:
    bench = two()
    bench.tell(interrupt(7, SUSPEND), at_s=0.02)
    bench.tell(Close(1), Resume(2, i64([1, 2])), at_s=0.1)
    (_, done) = bench.of(StepDone)[-1]
    assert (list(done.sequence), list(done.dropped)) == ([2], [1])


def test_a_sequence_of_which_no_row_is_parked_cannot_be_resumed() -> None:
    bench = two()
    bench.tell(Resume(2, i64([1])), at_s=0.02)
    with pytest.raises(ContractBroken, match="resumes sequence 1, of which no row is parked"):
        bench.run()


def test_slots_of_a_parked_row_that_another_sequence_wrote_are_noticed() -> None:
    bench = two()
    bench.tell(interrupt(7, SUSPEND, 1), at_s=0.02)
    stolen = step_of(2, (3, 0, 10), extent_start=i64([105]))
    bench.tell(open_of(3), stolen, Resume(3, i64([1])), at_s=0.1)
    with pytest.raises(ContractBroken, match="slot 105 of a parked row of sequence 1"):
        bench.run()


def test_what_a_row_that_left_had_written_may_not_be_read() -> None:
    bench = two()
    bench.tell(interrupt(7, DISCARD, 1), at_s=0.075)
    reader = Open(3, open_of(3).tokens, 10, 5, extent_start=i64([100]), extent_length=i64([9]))
    bench.tell(reader, step_of(2, (3, 9, 10)), at_s=0.1)
    with pytest.raises(ContractBroken, match="another's KV"):
        bench.run()


def test_what_a_row_that_left_had_written_may_not_be_copied() -> None:
    bench = two()
    bench.tell(interrupt(7, SUSPEND, 1), at_s=0.07)
    bench.tell(move_of(1), at_s=0.1)
    with pytest.raises(ContractBroken, match="10 slots are copied"):
        bench.run()


def test_a_row_that_left_a_queued_step_is_none_of_it_any_more() -> None:
    """Sequence 1 is parked by then; its row in step 2 was forgotten before, so that the others of step 2 run."""
    bench = two()
    bench.tell(interrupt(7, SUSPEND, 1), step_of(2, (1, 10, 11), (2, 10, 11)), at_s=0.02)
    assert [(one.step, list(one.sequence), list(one.left)) for _, one in bench.of(StepDone)] == [
        (1, [2], [1]),
        (2, [2], [1]),
    ]


def test_kv_that_a_row_was_writing_anew_is_not_valid_when_it_leaves() -> None:
    bench = two()
    bench.tell(step_of(2, (1, 4, 10), sample=i8([0])), at_s=0.08)
    bench.tell(interrupt(7, DISCARD, up_to=2), step_of(3, (1, 10, 11)), at_s=0.1)
    with pytest.raises(ContractBroken, match="token 10 is computed, KV ends at 4"):
        bench.run()


def test_a_row_that_is_to_be_resumed_takes_its_room_until_its_step_begins() -> None:
    bench = two(parked_rows=1)
    bench.tell(open_of(3), interrupt(7, SUSPEND, 1), at_s=0.02)
    bench.tell(Resume(2, i64([1])), step_of(3, (3, 0, 10)), at_s=0.03)
    bench.tell(interrupt(8, SUSPEND, 2), at_s=0.05)
    bench.tell(interrupt(9, SUSPEND, 3), at_s=0.15)
    parked = [list(answer.parked) for _, answer in bench.of(Interrupted)]
    assert parked == [[1], [0], [1]]
