"""What the policy for interrupts is asked, and what becomes of its answer."""

from collections.abc import Sequence
from typing import Any

import pytest

from dunlin.cost.models import BatchCounts
from dunlin.messages.engine import Discard, Interrupt, Interrupted, Resume, Step, StepDone
from dunlin.messages.types import RequestClass, Verdict, Why, f32, i8, i32, i64
from dunlin.policies.interrupt import INTERRUPT_POLICIES, InterruptCandidate, InterruptChoice, StepSituation
from services.instance.sequence.states import SequenceState
from tests.services.instance.bench import ENGINE, D, Direct, done, figures, make_place, of, only, ready_core

WHY = Why("scripted")


class Script:
    """A policy that answers once what it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.answer: InterruptChoice | None = None
        self.asked: list[tuple[list[InterruptCandidate], StepSituation]] = []

    def __call__(self, candidates: Sequence[InterruptCandidate], situation: StepSituation) -> InterruptChoice | None:
        self.asked.append((list(candidates), situation))
        answer, self.answer = self.answer, None
        return answer


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    script = Script()
    monkeypatch.setitem(INTERRUPT_POLICIES, "never", script)
    return script


def prefilling(script: Script) -> Direct:
    """Steps 1 and 2 are outstanding, of the prompt of one batch request; a decode row rides in step 2."""
    direct = ready_core(scheduler__budget_tokens=8)
    direct.give(D, make_place(1, tokens=4, request_class=RequestClass.INTERACTIVE, may_preempt=True))
    direct.give(D, make_place(2, tokens=40, request_class=RequestClass.BATCH))
    direct.give(ENGINE, done(1, (1, 5)))
    direct.give(ENGINE, done(2, (1, 6)))
    script.asked.clear()
    return direct


def park_second(direct: Direct, script: Script) -> None:
    script.answer = InterruptChoice(WHY, suspend=(1,))
    message = only(Interrupt, direct.give(ENGINE, done(3, (1, 7))))
    assert (message.verdict, list(message.sequence), message.why) == (Verdict.SUSPEND, [2], WHY)
    direct.give(
        ENGINE,
        Interrupted(i64([2, 2]), message.ticket, i64([4, 5]), i32([1, 0]), i32([0, 0]), i8([1, 0])),
    )


def test_it_is_asked_about_the_oldest_row_of_each_sequence(script: Script) -> None:
    direct = prefilling(script)
    direct.give(ENGINE, done(3, (1, 7)))
    candidates, situation = script.asked[0]
    assert situation == StepSituation(4), "without a profile no more is known"
    assert candidates == [
        InterruptCandidate(1, 4, 1, 1, is_prefill=False, request_class=RequestClass.INTERACTIVE, may_preempt=True),
        InterruptCandidate(2, 4, 7, 33, is_prefill=True, request_class=RequestClass.BATCH),
    ]


def test_what_it_suspends_is_parked_and_what_it_resumes_is_queued_before_new_rows(script: Script) -> None:
    direct = prefilling(script)
    park_second(direct, script)
    (_, two) = direct.core.sequences.by_arrival()
    assert two.state is SequenceState.PARKED
    assert (direct.core.report().parked, direct.core.report().running) == (1, 2)
    (candidates, _) = script.asked[-1]
    assert [(candidate.sequence, candidate.is_parked, candidate.row_tokens) for candidate in candidates] == [
        (1, False, 1),
        (2, True, 7),
    ]
    script.answer = InterruptChoice(WHY, resume=(1,))
    sends = direct.give(ENGINE, done(4, (1, 8)))
    assert [type(send.message) for send in sends if send.to == ENGINE] == [Resume]
    assert only(Resume, sends) == Resume(6, i64([2]), why=WHY)
    (step,) = of(Step, direct.give(ENGINE, done(5, (1, 9))))
    assert (list(step.sequence), list(step.start)[1]) == ([1, 2], 14), "the next chunk is queued behind it"


def test_a_sequence_is_not_asked_about_while_its_interrupt_is_unanswered(script: Script) -> None:
    direct = prefilling(script)
    script.answer = InterruptChoice(WHY, suspend=(1,))
    direct.give(ENGINE, done(3, (1, 7)))
    script.asked.clear()
    direct.give(ENGINE, done(4, (1, 8)))
    assert [candidate.sequence for candidate in script.asked[0][0]] == [1]


def test_what_is_parked_already_is_not_suspended_again(script: Script) -> None:
    direct = prefilling(script)
    park_second(direct, script)
    script.answer = InterruptChoice(WHY, suspend=(0, 1))
    message = only(Interrupt, direct.give(ENGINE, done(4, (1, 8))))
    assert (message.verdict, list(message.sequence)) == (Verdict.SUSPEND, [1])


def test_it_is_told_of_no_objective_while_nobody_waits_for_a_first_token(script: Script) -> None:
    direct = ready_core({}, PerToken(), objectives__ttft_s=1.0)
    direct.give(D, make_place(1, tokens=4))
    direct.give(ENGINE, done(1, (1, 5)), 0.04)
    candidates, situation = script.asked[-1]
    assert ([each.sequence for each in candidates], situation) == ([1], StepSituation(2))


def test_of_requests_that_wait_the_one_whose_first_token_is_due_first_counts(script: Script) -> None:
    direct = ready_core({}, PerToken())
    direct.give(D, make_place(1, tokens=4))
    direct.give(D, make_place(2, tokens=4, ttft_objective_s=4.0), 0.25)
    direct.give(D, make_place(3, tokens=4, ttft_objective_s=0.5), 0.5)
    _, situation = script.asked[-1]
    assert (situation.waiting_s, situation.ttft_s, situation.waiting_tokens) == (0.0, 0.5, 8)


def test_a_last_chunk_of_one_token_is_a_prefill(script: Script) -> None:
    direct = ready_core(scheduler__budget_tokens=8)
    direct.give(D, make_place(1, tokens=9))
    for step, row in ((1, (1, True)), (2, (1, False))):
        direct.give(ENGINE, done(step, *[(1, 5)][: step - 1]))
        ((candidate,), _) = script.asked[-1]
        assert (candidate.row_tokens, candidate.is_prefill) == row


def test_without_a_profile_it_is_not_told_who_waits(script: Script) -> None:
    direct = ready_core(objectives__ttft_s=1.0)
    direct.give(D, make_place(1, tokens=4))
    direct.give(D, make_place(2, tokens=30), 0.5)
    candidates, situation = script.asked[-1]
    assert ([each.sequence for each in candidates], situation) == ([1], StepSituation(2))


def test_what_it_discards_leaves_its_step_or_is_forgotten(script: Script) -> None:
    direct = prefilling(script)
    park_second(direct, script)
    script.answer = InterruptChoice(WHY, discard=(0, 1))
    sends = direct.give(ENGINE, done(4, (1, 8)))
    message = only(Interrupt, sends)
    assert (message.verdict, list(message.sequence), message.up_to_step) == (Verdict.DISCARD, [1], 5)
    assert list(only(Discard, sends).sequence) == [2]
    (step,) = of(Step, sends)
    assert (list(step.sequence), list(step.start)) == ([2], [7])


def test_it_is_not_asked_when_no_row_is_anywhere(script: Script) -> None:
    direct = ready_core()
    assert script.asked == []
    direct.give(D, make_place(1, tokens=4, max_tokens=1))
    assert script.asked == [], "its first row was composed afterwards"


class PerToken:
    """A hundredth of a second per row and prompt token."""

    def step_s(self, batch: BatchCounts) -> float:
        return 0.01 * (batch.prefill_tokens + batch.decode_rows)


def interrupting_core(**settings: Any) -> Direct:
    """An instance whose batch steps are interrupted for requests that would be late."""
    return ready_core(
        {"slots": 1024},
        PerToken(),
        scheduler__policy="slo_aware",
        **{
            "scheduler__max_step_tokens": 80,
            "interrupts__policy": "on_arrival",
            "objectives__ttft_s": 1.0,
        }
        | settings,
    )


def with_batch_steps(**settings: Any) -> Direct:
    """Steps 1 and 2 are outstanding since 0 s, each with 80 tokens of a batch prompt: 1.6 s."""
    direct = interrupting_core(**settings)
    direct.give(D, make_place(1, tokens=200, request_class=RequestClass.BATCH))
    return direct


def test_batch_steps_are_interrupted_for_a_request_that_would_be_late() -> None:
    direct = with_batch_steps()
    message = only(Interrupt, direct.give(D, make_place(2, tokens=30, may_preempt=True), 0.05))
    assert (message.verdict, list(message.sequence)) == (Verdict.DISCARD, [1])
    assert figures(message.why) == {
        "interactive_tokens": 30,
        "remaining_s": pytest.approx(1.55),
        "expected_ttft_s": pytest.approx(1.85),
        "ttft_objective_s": 1.0,
    }


def test_they_go_on_where_it_is_in_time() -> None:
    direct = with_batch_steps(objectives__ttft_s=1.86)
    assert of(Interrupt, direct.give(D, make_place(2, tokens=30, may_preempt=True), 0.05)) == []


def test_the_work_of_the_interrupted_steps_is_composed_again_behind_the_request() -> None:
    direct = with_batch_steps()
    message = only(Interrupt, direct.give(D, make_place(2, tokens=30, may_preempt=True), 0.05))
    left = Interrupted(i64([1, 1]), message.ticket, i64([1, 2]), i32([1, 0]), i32([0, 0]), i8([0, 0]))
    direct.give(ENGINE, left, 0.06)
    ended = StepDone(1, i64(), i32(), f32(), i8(), left=i64([1]))
    (step,) = of(Step, direct.give(ENGINE, ended, 0.06))
    assert (list(step.sequence), list(step.start), list(step.stop)) == ([1, 2], [0, 0], [50, 30])


def test_one_request_is_a_reason_to_interrupt_once() -> None:
    direct = with_batch_steps()
    message = only(Interrupt, direct.give(D, make_place(2, tokens=30, may_preempt=True), 0.05))
    direct.give(ENGINE, Interrupted(i64(), message.ticket, i64(), i32(), i32(), i8()), 0.06)
    assert of(Interrupt, direct.give(D, make_place(3, tokens=3, request_class=RequestClass.BATCH), 0.07)) == []
    assert len(of(Interrupt, direct.give(D, make_place(4, tokens=3, may_preempt=True), 0.08))) == 1


def test_the_first_request_is_no_reason_to_interrupt_steps_that_were_composed_after_it_came() -> None:
    """It waits for the kvstore, and batch work overtakes it."""
    direct = interrupting_core()
    direct.core.sequences.add(D, make_place(1, tokens=30, may_preempt=True)).is_claiming = True
    sends = direct.give(D, make_place(2, tokens=200, request_class=RequestClass.BATCH))
    assert [list(step.sequence) for step in of(Step, sends)] == [[2], [2]]
    assert of(Interrupt, direct.give(D, make_place(3, tokens=3, request_class=RequestClass.BATCH), 0.05)) == []


def test_a_step_of_batch_work_behind_one_that_is_spared_is_interrupted_once_it_runs() -> None:
    direct = with_batch_steps(objectives__tpot_s=1.0, objectives__ttft_s=5.0)
    direct.give(D, make_place(2, tokens=500, request_class=RequestClass.BATCH))
    direct.give(D, make_place(3, tokens=3, max_tokens=2, may_preempt=True))
    direct.give(ENGINE, done(1), 0.8)
    direct.give(ENGINE, done(2), 1.6)
    (alone,) = of(Step, direct.give(ENGINE, done(3, (1, 5), (3, 7)), 2.4))
    assert (alone.step, 3 in alone.sequence) == (5, False), "step 4 holds the last token of request 3"
    late = make_place(4, tokens=30, may_preempt=True, ttft_objective_s=1.0)
    assert of(Interrupt, direct.give(D, late, 2.5)) == [], "step 4 is spared"
    sends = direct.give(ENGINE, done(4, (1, 5), (3, 7)), 3.2)
    message = only(Interrupt, sends)
    assert (message.up_to_step, list(message.sequence)) == (5, list(alone.sequence))
    (step,) = of(Step, sends)
    assert list(step.sequence) == [4]
    direct.give(ENGINE, Interrupted(i64(), message.ticket, i64(), i32(), i32(), i8()), 3.3)
    assert of(Interrupt, direct.give(ENGINE, done(5), 4.0)) == [], "what was composed since then is no reason"


def test_a_queued_step_with_batch_rows_is_composed_again_with_the_request_that_came() -> None:
    objectives = {"objectives__ttft_s": 1.0, "objectives__tpot_s": 0.3}
    direct = ready_core(
        {"slots": 1024}, PerToken(), scheduler__policy="slo_aware", interrupts__policy="recall", **objectives
    )
    direct.give(D, make_place(1, tokens=3, max_tokens=9, may_preempt=True))
    direct.give(D, make_place(2, tokens=200, request_class=RequestClass.BATCH))
    direct.give(ENGINE, done(1, (1, 5)), 0.1)
    direct.give(ENGINE, done(2, (1, 6)), 0.2)  # steps 3 and 4 have a row of request 1 and a chunk of request 2
    sends = direct.give(D, make_place(3, tokens=10, may_preempt=True), 0.25)
    message = only(Interrupt, sends)
    assert (message.verdict, message.step, of(Step, sends)) == (Verdict.DISCARD, 4, [])
    left = Interrupted(i64([1, 2]), message.ticket, i64([4, 4]), i32([0, 0]), i32([0, 0]), i8([0, 0]))
    assert of(Step, direct.give(ENGINE, left, 0.26)) == []
    ended = StepDone(4, i64(), i32(), f32(), i8(), left=i64([1, 2]))
    (step,) = of(Step, direct.give(ENGINE, ended, 0.26))
    assert {1, 3} <= set(step.sequence), "the answer goes on beside the prompt"
    assert of(Interrupt, direct.give(ENGINE, done(3, (1, 7)), 0.5)) == []


def test_steps_of_batch_work_alone_are_preemptible_where_the_policy_interrupts_them() -> None:
    direct = with_batch_steps(scheduler__max_step_tokens=500)
    direct.give(ENGINE, done(1, (1, 5)), 2.0)
    (decode,) = of(Step, direct.give(ENGINE, done(2, (1, 5)), 2.1))
    direct.give(D, make_place(2, tokens=30, may_preempt=True), 2.1)
    (mixed,) = of(Step, direct.give(ENGINE, done(3, (1, 5)), 2.2))
    assert [(list(step.sequence), step.preemptible) for step in (decode, mixed)] == [([1], True), ([1, 2], False)]
    never = with_batch_steps(interrupts__policy="never")
    (step,) = of(Step, never.give(ENGINE, done(1, (1, 5)), 2.0))
    assert not step.preemptible
