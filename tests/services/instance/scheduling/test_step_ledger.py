"""The ledger of steps: rows that leave a step are counted once, are parked or rolled back, and come back."""

from typing import Any

import pytest

from dunlin.effects import Effect, Gone, Joined, Send
from dunlin.messages.dispatch import Cancel, Ended, Preempted
from dunlin.messages.engine import (
    Close,
    Discard,
    EngineExited,
    Interrupt,
    Interrupted,
    Open,
    Resume,
    Step,
    StepDone,
    StopEngine,
    Unsupported,
)
from dunlin.messages.types import Verdict, Why, i8, i32, i64
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from simulator.engine.model import make_engine_ready
from tests.services.instance.bench import ENGINE, MANAGER, D, Direct, done, make_order, make_place, of, only

SUSPEND, DISCARD = Verdict.SUSPEND, Verdict.DISCARD


def sends(effects: list[Effect]) -> list[Send]:
    return [effect for effect in effects if isinstance(effect, Send)]


def prefilling(*tokens: int, budget: int = 8, **config: Any) -> tuple[Direct, list[Sequence]]:
    """Two steps of prompt chunks are outstanding; one sequence per entry of `tokens`."""
    direct = Direct(scheduler__budget_tokens=budget, **config)
    direct.give(ENGINE, Joined())
    direct.give(ENGINE, make_engine_ready())
    direct.give(MANAGER, make_order())
    for request, length in enumerate(tokens, 1):
        direct.core.sequences.add(D, make_place(request, tokens=length))
    direct.give(D, Joined())
    return direct, direct.core.sequences.by_arrival()


def interrupted(ticket: int, *rows: tuple[int, int, int, int], blocks: dict[int, int] | None = None) -> Interrupted:
    """Rows of (sequence, step, layer, parked), which stand at the start of that layer or at one of its `blocks`."""
    numbers, steps, layers, parked = zip(*rows, strict=True) if rows else ((), (), (), ())
    at = [(blocks or {}).get(number, 0) for number in numbers]
    return Interrupted(i64(numbers), ticket, i64(steps), i32(layers), i32(at), i8(parked))


def left(step: int, *numbers: int) -> StepDone:
    return StepDone(step, i64(), i32(), done(1).logprob, i8(), left=i64(numbers))


def park(direct: Direct, sequence: Sequence, layer: int = 1) -> list[Send]:
    """Have the sequence's rows leave both outstanding steps, the first one's parked; what follows from the answers."""
    message = only(Interrupt, sends(direct.core.steps.interrupt([sequence], SUSPEND)))
    number, steps = sequence.number, direct.core.steps
    rows = [(number, step, layer if not index else 0, int(not index)) for index, step in enumerate(_steps_of(direct))]
    answers = [*direct.give(ENGINE, interrupted(message.ticket, *rows))]
    for step in [step for step, columns in steps._outstanding.items() if not columns.sequences]:
        answers += direct.give(ENGINE, left(step, number))
    return answers


def _steps_of(direct: Direct) -> list[int]:
    return list(direct.core.steps._outstanding)


# --- rows leave ---


def test_an_interrupt_names_the_rows_and_the_newest_step() -> None:
    direct, (one,) = prefilling(20)
    message = only(Interrupt, sends(direct.core.steps.interrupt([one], SUSPEND)))
    assert (message.verdict, list(message.sequence), message.ticket, message.up_to_step) == (SUSPEND, [1], 1, 2)
    assert only(Interrupt, sends(direct.core.steps.interrupt([one], DISCARD))).ticket == 2


def test_nothing_is_interrupted_where_no_row_is_outstanding() -> None:
    direct, (one,) = prefilling(20)
    direct.give(ENGINE, done(1, dropped=(1,)))
    direct.give(ENGINE, done(2, dropped=(1,)))
    assert direct.core.steps.interrupt([one], DISCARD) == []


@pytest.mark.parametrize("order", ["interrupted first", "done first"])
def test_rows_that_left_roll_back_to_the_valid_kv_once(order: str) -> None:
    direct, (one,) = prefilling(40)
    direct.give(ENGINE, done(1))
    assert (one.valid, one.issued, one.in_steps) == (8, 24, 2)
    direct.core.steps.interrupt([one], DISCARD)
    answers = [interrupted(1, (1, 2, 1, 0), (1, 3, 0, 0)), left(2, 1), left(3, 1)]
    if order == "done first":
        answers = [*answers[1:], answers[0]]
    steps = [step for answer in answers for step in of(Step, direct.give(ENGINE, answer))]
    assert [(list(step.start), list(step.stop)) for step in steps] == [([8], [16]), ([16], [24])]
    assert (one.valid, one.issued, one.in_steps, one.pending) == (8, 24, 2, 0)


def test_a_sampling_row_that_left_samples_again() -> None:
    direct, (one,) = prefilling(10, budget=64)
    assert (one.issued, one.pending) == (11, 2)
    direct.core.steps.interrupt([one], DISCARD)
    direct.give(ENGINE, interrupted(1, (1, 1, 1, 0), (1, 2, 0, 0)))
    assert (one.issued, one.pending, one.in_steps) == (0, 0, 0)
    (step,) = of(Step, direct.give(ENGINE, left(1, 1)))
    assert (list(step.start), list(step.stop), list(step.sample)) == ([0], [10], [1])


def test_a_sequence_gets_no_row_before_its_interrupt_is_answered_and_others_do() -> None:
    direct, (_one, two) = prefilling(6, 40)
    direct.core.steps.interrupt([two], DISCARD)
    (step,) = of(Step, direct.give(ENGINE, done(1, (1, 5))))
    assert list(step.sequence) == [1]
    assert of(Step, direct.give(ENGINE, interrupted(1, (2, 2, 1, 0)))) == []
    (step,) = of(
        Step, direct.give(ENGINE, StepDone(2, i64([1]), i32([6]), done(1, (1, 1)).logprob, i8([0]), left=i64([2])))
    )
    assert (list(step.sequence), list(step.start)) == ([1, 2], [8, 2])


def test_a_batch_of_decode_rows_is_composed_anew_after_rows_left() -> None:
    direct, (one, two) = prefilling(4, 4, budget=64)
    for step in range(1, 5):
        direct.give(ENGINE, done(step, (1, 5), (2, 6)))
    direct.core.steps.interrupt([one, two], DISCARD)
    direct.give(ENGINE, done(5, (1, 5), (2, 6)))
    (step,) = of(Step, direct.give(ENGINE, interrupted(1, (1, 6, 0, 0), (2, 6, 0, 0))))
    assert (list(step.sequence), list(step.start), list(step.stop)) == ([1, 2], [8, 8], [9, 9])


def test_rows_that_leave_with_no_interrupt_unanswered_are_rolled_back_at_once() -> None:
    direct, (one,) = prefilling(40)
    direct.give(ENGINE, left(1, 1))
    assert (one.in_steps, one.issued) == (2, 8), "it was composed anew from its valid KV"


def test_rows_that_left_are_rolled_back_when_the_interrupt_that_named_them_did_not_take_them() -> None:
    """The step ended without a peer's; the interrupt found nothing of it."""
    direct, (one,) = prefilling(40)
    message = only(Interrupt, sends(direct.core.steps.interrupt([one], SUSPEND)))
    direct.give(ENGINE, left(1, 1))
    assert (one.in_steps, one.issued) == (2, 16), "how it left is not known yet"
    direct.give(ENGINE, left(2, 1))
    direct.give(ENGINE, interrupted(message.ticket))
    assert (one.in_steps, one.issued, one.state) == (2, 16, SequenceState.RUNNING)
    assert list(direct.core.steps._undecided) == []
    assert _steps_of(direct) == [3, 4], "composed anew from its valid KV"


def test_what_waited_for_rows_that_left_follows_in_either_order() -> None:
    direct, (_one,) = prefilling(40)
    direct.give(D, Cancel(1, 1))
    assert of(Ended, direct.give(ENGINE, left(1, 1))) == []
    assert only(Ended, direct.give(ENGINE, left(2, 1))).request == 1
    assert direct.core.slot_table.free == 256


def test_an_answer_to_no_interrupt_is_stale() -> None:
    direct, (one,) = prefilling(20)
    assert direct.give(ENGINE, interrupted(1, (1, 1, 1, 1))) == []
    assert (direct.core.report().stale_total, one.state, one.in_steps) == (1, SequenceState.RUNNING, 2)


def test_an_engine_that_cannot_interrupt_goes_on() -> None:
    direct, (one,) = prefilling(20)
    direct.core.steps.interrupt([one], SUSPEND)
    assert of(StopEngine, direct.give(ENGINE, Unsupported("Interrupt", "rows stay", ticket=1))) == []
    assert (direct.core.steps.unanswered, one.in_steps) == (2, 2)


def test_the_steps_with_a_sequence_are_those_that_have_a_row_of_it() -> None:
    direct, (one, two) = prefilling(40, 40)
    steps = direct.core.steps
    assert (steps.steps_with(one), steps.steps_with(two)) == ([1, 2], [])
    direct.give(ENGINE, done(1))
    assert (steps.steps_with(one), steps.steps_with(two)) == ([2, 3], [])


def test_the_rows_of_a_refused_step_are_rolled_back_and_their_sequences_named() -> None:
    direct, (one, two) = prefilling(12, 40)
    assert direct.core.steps.refuse(2) == [one, two]
    assert [(each.issued, each.in_steps, each.pending) for each in (one, two)] == [(8, 1, 0), (0, 0, 0)]
    assert direct.core.steps.outstanding == 1


# --- rows are parked, and come back ---


def test_a_parked_row_waits_and_is_resumed_under_a_new_number() -> None:
    direct, (one, _two) = prefilling(20, 4)
    park(direct, one)
    assert (one.state, one.issued, one.valid, one.in_steps) == (SequenceState.PARKED, 8, 0, 0)
    direct.core.steps.complete(done(3, (2, 7)))
    (effect,) = sends(direct.core.steps.resume([one]))
    assert effect.message == Resume(5, i64([1]))
    assert (one.state, one.in_steps, direct.core.steps.outstanding) == (SequenceState.RUNNING, 1, 2)
    direct.give(ENGINE, done(4, (2, 8)))
    direct.give(ENGINE, done(5))
    assert one.valid == 8


def test_an_idle_engine_resumes_what_is_parked() -> None:
    direct, (one,) = prefilling(20)
    answers = park(direct, one)
    resume = only(Resume, answers)
    assert (resume.step, list(resume.sequence), resume.why.policy) == (3, [1], "idle engine")
    (step,) = of(Step, answers + direct.give(D, Cancel(9, 1)))
    assert (list(step.start), step.step) == ([8], 4), "the next chunk is queued behind it"


@pytest.mark.parametrize(
    ("layer", "block", "trial_stop"), [(1, 0, 0), (0, 1, 0), (0, 0, 9)], ids=["layer", "block", "on trial"]
)
def test_rows_at_different_places_and_on_trial_are_resumed_by_steps_of_their_own(
    layer: int, block: int, trial_stop: int
) -> None:
    direct, (one, two, three) = prefilling(3, 3, 3, budget=9)
    direct.core.steps.interrupt([one, two, three], SUSPEND)
    three.trial_stop = trial_stop
    parked = [(1, 1, 0, 1), (2, 1, 0, 1), (3, 1, layer, 1)]
    direct.give(ENGINE, interrupted(1, *parked, (1, 2, 0, 0), (2, 2, 0, 0), (3, 2, 0, 0), blocks={3: block}))
    resumes = of(Resume, [*direct.give(ENGINE, left(1, 1, 2, 3)), *direct.give(ENGINE, left(2, 1, 2, 3))])
    assert [list(resume.sequence) for resume in resumes] == [[1, 2], [3]]


def test_no_more_steps_are_resumed_than_the_queue_has_room_for() -> None:
    direct, (one, _two) = prefilling(20, 4)
    park(direct, one)
    assert direct.core.steps.outstanding == 2
    assert direct.core.steps.resume([one]) == []
    assert one.state is SequenceState.PARKED


def test_what_is_not_parked_is_not_resumed() -> None:
    direct, (one, two) = prefilling(20, 4)
    park(direct, one)
    direct.core.steps.complete(done(3, (2, 7)))
    assert direct.core.steps.resume([two]) == []
    assert only(Resume, sends(direct.core.steps.resume([two, one]))) == Resume(5, i64([1]))


def test_a_discarded_row_is_computed_again_from_the_valid_kv() -> None:
    direct, (one, two) = prefilling(20, 4)
    park(direct, one)
    (effect,) = sends(direct.core.steps.discard([one, two]))
    assert effect.message == Discard(i64([1]))
    assert (one.state, one.issued, one.valid) == (SequenceState.RUNNING, 0, 0)
    (step,) = of(Step, direct.give(ENGINE, done(3, (2, 7))))
    assert (list(step.sequence), list(step.start)) == ([1, 2], [0, 5]), "the other one's step 4 is outstanding"


def test_a_row_that_was_resumed_can_leave_again() -> None:
    direct, (one,) = prefilling(20)
    park(direct, one)
    direct.core.steps.interrupt([one], SUSPEND)
    direct.give(ENGINE, interrupted(2, (1, 3, 2, 1), (1, 4, 0, 0)))
    assert (one.state, one.issued, one.valid) == (SequenceState.PARKED, 8, 0)


# --- what else happens to a parked sequence ---


def test_a_rested_engine_is_not_stuck_and_an_unanswered_interrupt_is_work() -> None:
    direct, (one, two) = prefilling(20, 4)
    park(direct, one)
    ledger = direct.core.steps
    assert ledger.unanswered == ledger.outstanding == 2
    ledger.interrupt([two], SUSPEND)
    assert (ledger.unanswered, direct.core.report().outstanding_steps) == (3, 3)
    direct.give(ENGINE, interrupted(2))
    assert direct.core.report().outstanding_steps == 2


def test_a_parked_sequence_is_cancelled_at_once() -> None:
    direct, (one, _) = prefilling(20, 4)
    park(direct, one)
    answers = direct.give(D, Cancel(1, 1))
    assert (only(Close, answers).sequence, only(Ended, answers).request) == (1, 1)
    assert direct.core.steps.parked_rows() == []


def test_a_row_that_parks_after_its_sequence_was_cancelled_is_forgotten() -> None:
    direct, (one,) = prefilling(20)
    direct.core.steps.interrupt([one], SUSPEND)
    assert of(Ended, direct.give(D, Cancel(1, 1))) == []
    answers = direct.give(ENGINE, interrupted(1, (1, 1, 1, 1), (1, 2, 0, 0)))
    assert only(Ended, answers).request == 1
    assert direct.core.slot_table.free == 256


def test_a_parked_sequence_gives_its_slots_up_for_an_older_one() -> None:
    direct, (_old, young) = prefilling(20, 20, budget=64, kv_cache__max_slots=48, scheduler__allocate_ahead_tokens=2)
    park(direct, young)
    assert young.state is SequenceState.PARKED
    answers: list[Send] = []
    for step in range(1, 9):
        answers += direct.give(ENGINE, done(step, (1, 5))) if young.state is SequenceState.PARKED else []
    assert only(Preempted, answers).request == 2
    kinds = [type(send.message) for send in answers if isinstance(send.message, Discard | Close)]
    assert kinds == [Discard, Close]


def test_a_row_that_parks_after_its_sequence_was_preempted_is_discarded() -> None:
    direct, (_one, two) = prefilling(4, 30)
    direct.core.steps.interrupt([two], SUSPEND)
    direct.core.lifecycle.preempt(two, Why("test"))
    assert two.state is SequenceState.DRAINING
    answers = direct.give(ENGINE, interrupted(1, (2, 1, 1, 1), (2, 2, 0, 0)))
    kinds = [type(send.message) for send in answers if isinstance(send.message, Discard | Close)]
    assert kinds == [Discard, Close]
    assert not direct.core.steps.is_parked(two)


def test_a_crash_takes_parked_rows_along_and_does_not_blame_them() -> None:
    direct, (one, two) = prefilling(20, 4)
    park(direct, one)
    direct.give(ENGINE, EngineExited(1))
    direct.give(ENGINE, Gone("exit code 1"))
    assert [(each.suspicion > 0, each.state) for each in (one, two)] == [
        (False, SequenceState.RUNNING),
        (True, SequenceState.RUNNING),
    ]
    assert (one.issued, one.valid, direct.core.steps.unanswered, direct.core.steps.parked_rows()) == (0, 0, 0, [])
    direct.give(ENGINE, Joined())
    answers = direct.give(ENGINE, make_engine_ready())
    assert [message.sequence for message in of(Open, answers)] == [1, 2]


def test_a_step_that_all_rows_have_left_is_not_the_one_that_executes() -> None:
    direct, (one, two) = prefilling(8, 20)
    direct.core.steps.interrupt([one], SUSPEND)
    direct.give(ENGINE, interrupted(1, (1, 1, 1, 1), (1, 2, 0, 0)))
    assert direct.core.steps.executing_rows() == [(two, 7)]


def test_the_interrupts_of_a_lost_engine_hold_no_sequence() -> None:
    direct, (one,) = prefilling(20)
    direct.core.steps.interrupt([one], SUSPEND)
    direct.give(ENGINE, EngineExited(0, 9))
    direct.give(ENGINE, Gone("killed"))
    direct.give(ENGINE, Joined())
    assert len(of(Step, direct.give(ENGINE, make_engine_ready()))) == 2


def test_a_recalled_step_is_composed_again_once_the_engine_has_answered() -> None:
    direct, (one, *_) = prefilling(40)
    steps = direct.core.steps
    message = only(Interrupt, sends(steps.recall(2, [])))
    assert (message.verdict, message.step, len(message.sequence)) == (DISCARD, 2, 0)
    assert (steps.is_recalling, steps.is_held(one), one.issued) == (True, True, 16)
    assert of(Step, direct.give(ENGINE, done(1))) == [], "nothing is composed while rows are held for a moment only"
    composed = of(Step, direct.give(ENGINE, interrupted(message.ticket, (one.number, 2, 0, 0))))
    assert (steps.is_recalling, steps.is_held(one)) == (False, False)
    assert [(step.step, list(step.start), list(step.stop)) for step in composed] == [(3, [8], [16])]
    (behind,) = of(Step, direct.give(ENGINE, left(2, one.number)))
    assert (list(behind.start), one.issued) == ([16], 24), "the row that left is not rolled back again"


def test_a_step_is_not_recalled_whose_rows_all_leave_with_another_interrupt() -> None:
    direct, (one, *_) = prefilling(40)
    assert direct.core.steps.recall(2, [one]) == []
    assert direct.core.steps.recall(7, []) == [], "no such step is outstanding"
    assert not direct.core.steps.is_recalling


def test_a_lost_engine_recalls_nothing_any_more() -> None:
    direct, _ = prefilling(40)
    direct.core.steps.recall(2, [])
    direct.core.steps.clear()
    assert not direct.core.steps.is_recalling


def test_the_queued_step_is_named_where_it_has_batch_rows() -> None:
    direct, (one, *_) = prefilling(40)
    assert direct.core.steps.queued_batch_step() == 0
    one.is_batch = True
    assert direct.core.steps.queued_batch_step() == 2
    direct.core.steps.clear()
    assert direct.core.steps.queued_batch_step() == 0
