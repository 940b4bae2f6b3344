"""What the policy for interrupts is asked, and what becomes of its answer."""

from collections.abc import Sequence

import pytest

from dunlin.messages.engine import Discard, Interrupt, Interrupted, Resume, Step
from dunlin.messages.types import RequestClass, Verdict, Why, i8, i32, i64
from dunlin.policies.interrupt import INTERRUPT_POLICIES, InterruptCandidate, InterruptChoice, StepSituation
from services.instance.sequence.table import SequenceState
from tests.services.instance.bench import ENGINE, D, Direct, done, make_place, of, only, ready_core

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
