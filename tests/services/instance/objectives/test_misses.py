"""Late tokens of one instance, at exact times: counted by cause, and recorded once for each cause."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dunlin.effects import Address, Gone, Joined, Send
from dunlin.messages.dispatch import Place
from dunlin.messages.engine import Interrupted, Step
from dunlin.messages.lifecycle import MissCause, Missed
from dunlin.messages.types import FinishReason, RequestClass, i8, i32, i64
from dunlin.policies.interrupt import INTERRUPT_POLICIES, InterruptCandidate, InterruptChoice, StepSituation
from dunlin.telemetry.decisions import DecisionRecord
from dunlin.telemetry.explain import explain
from simulator.engine.model import make_engine_ready
from tests.services.instance.bench import ENGINE, ME, D, Direct, done, figures, make_place, of, only, ready_core
from tests.services.instance.scheduling.test_interrupts import WHY, PerToken


def asked(request: int, **overrides: Any) -> Place:
    return make_place(request, key=f"req-a-{request}", **{"tokens": 4, "max_tokens": 50, **overrides})


def core(**settings: Any) -> Direct:
    """Objectives of 0.5 s and 0.05 s, and a hundredth of a second per row and prompt token."""
    return ready_core(
        {"slots": 1024}, PerToken(), **{"objectives__ttft_s": 0.5, "objectives__tpot_s": 0.05, **settings}
    )


def counted(direct: Direct) -> dict[str, int]:
    """The misses so far: `T-` of first tokens."""
    report = direct.core.report()
    columns = (("T-", report.ttft_misses_total), ("", report.tpot_misses_total))
    return {
        f"{kind}{cause.name}": count
        for kind, column in columns
        for cause, count in zip(MissCause, column, strict=True)
        if count
    }


def test_what_is_in_time_is_no_miss() -> None:
    direct = core()
    direct.give(D, asked(1), 0.0)
    sends = direct.give(ENGINE, done(1, (1, 5)), 0.5)
    for step in range(2, 20):
        sends += direct.give(ENGINE, done(step, (1, 5)), 0.5 + 0.05 * (step - 1) - 1e-9 * step)
    assert (counted(direct), of(Missed, sends)) == ({}, [])


def test_a_slow_step_a_long_one_and_one_that_is_behind_them() -> None:
    direct = core()
    direct.give(D, asked(1, tokens=10), 0.0)
    direct.give(D, asked(2, tokens=5), 0.02)
    first = only(Missed, direct.give(ENGINE, done(1, (1, 5)), 0.6))
    assert (first.request, first.attempt, first.cause, first.is_first) == ("req-a-1", 1, MissCause.SLOW_STEP, True)
    assert figures(first.why) == pytest.approx(
        {"late_s": 0.6, "ttft_objective_s": 0.5, "own_steps_s": 0.1, "slow_step_s": 0.5}
        | {"step": 1, "step_took_s": 0.6, "step_predicted_s": 0.1}
    )
    assert of(Missed, direct.give(ENGINE, done(2, (1, 6)), 0.64)) == []
    late, behind = of(Missed, direct.give(ENGINE, done(3, (1, 7), (2, 5)), 0.7))
    assert (late.cause, late.is_first) == (MissCause.STEP, False), "the prompt in its step makes it 0.06 s long"
    assert (behind.request, behind.cause, behind.is_first) == ("req-a-2", MissCause.STEP_BEFORE, True)
    assert figures(behind.why) == pytest.approx(
        {"late_s": 0.68, "ttft_objective_s": 0.5, "own_steps_s": 0.06, "step_before_s": 0.62}
        | {"step": 2, "step_took_s": 0.04, "step_predicted_s": 0.01}
    )
    assert counted(direct) == {"T-SLOW_STEP": 1, "T-STEP_BEFORE": 1, "STEP": 1}
    record = DecisionRecord(9.0, ME, Address("client", "req-a-2"), behind)
    (said,) = explain([record], "req-a-2")
    assert (
        "the first token of attempt 1 came late from i, because it waited for the steps before its own to end" in said
    )
    assert said.endswith("rather than in time (step 2 was to take 0.01 s and took 0.04 s).")


def test_what_waits_for_slots() -> None:
    direct = core(scheduler__max_running=1)
    direct.give(D, asked(1, max_tokens=2), 0.0)
    direct.give(D, asked(2), 0.05)
    direct.give(ENGINE, done(1, (1, 5)), 0.3)
    direct.give(ENGINE, done(2, (1, 6), finish=FinishReason.LENGTH), 0.6)
    missed = only(Missed, direct.give(ENGINE, done(3, (2, 5)), 0.62))
    assert missed.cause is MissCause.SLOTS
    assert figures(missed.why)["slots_s"] == pytest.approx(0.55)
    assert counted(direct) == {"T-SLOTS": 1, "SLOW_STEP": 1}


def repeated_batch(direct: Direct) -> tuple[tuple[tuple[int, int], ...], float]:
    """Seven steps, none of them late, of which five are of two interactive sequences and one of batch work; the next
    one's tokens, and the time.
    """
    direct.give(D, asked(1), 0.0)
    direct.give(D, asked(2, tpot_objective_s=0.5), 0.0)
    direct.give(D, asked(3, request_class=RequestClass.BATCH), 0.0)
    direct.give(ENGINE, done(1, (1, 5)), 0.04)
    direct.give(ENGINE, done(2, (1, 5)), 0.05)
    tokens, at_s = ((1, 5), (2, 5), (3, 5)), 0.05
    for step in range(3, 8):
        at_s += 0.01
        assert of(Missed, direct.give(ENGINE, done(step, *tokens), at_s)) == []
    return tokens, at_s


def test_a_repeated_decode_batch_that_is_late() -> None:
    direct = core(objectives__ttft_s=9.0)
    tokens, at_s = repeated_batch(direct)
    (missed,) = of(Missed, direct.give(ENGINE, done(8, *tokens), at_s + 0.2))
    assert (missed.request, missed.cause, missed.is_first) == ("req-a-1", MissCause.SLOW_STEP, False)
    assert figures(missed.why)["late_s"] == pytest.approx(0.2)
    assert counted(direct) == {"SLOW_STEP": 1}
    assert of(Missed, direct.give(ENGINE, done(9, *tokens), at_s + 0.4)) == [], "it is recorded once"
    assert of(Missed, direct.give(ENGINE, done(10, *tokens), at_s + 0.41)) == []
    both = of(Missed, direct.give(ENGINE, done(11, *tokens), at_s + 1.41))
    assert [each.request for each in both] == ["req-a-2"]
    assert counted(direct) == {"SLOW_STEP": 4}


def test_time_before_it_came_counts() -> None:
    direct = core()
    direct.give(D, asked(1, queued_s=0.48), 10.0)
    queued = only(Missed, direct.give(ENGINE, done(1, (1, 5)), 10.04))
    assert (queued.cause, queued.is_first, figures(queued.why)["queue_s"]) == (MissCause.QUEUE, True, 0.48)
    direct = core()
    direct.give(D, asked(1, tokens=5, prompt_tokens=4, attempt=2, lost_s=0.3), 10.0)
    lost = only(Missed, direct.give(ENGINE, done(1, (1, 5)), 10.04))
    assert (lost.cause, lost.attempt, lost.is_first) == (MissCause.EARLIER_ATTEMPT, 2, False)
    assert figures(lost.why)["late_s"] == pytest.approx(0.34)


def test_an_engine_that_is_lost() -> None:
    direct = core()
    direct.give(D, asked(1), 0.0)
    direct.give(ENGINE, done(1, (1, 5)), 0.1)
    direct.give(D, asked(2), 0.11)
    direct.give(ENGINE, Gone("killed"), 0.12)
    direct.give(ENGINE, Joined(), 0.9)
    step = of(Step, direct.give(ENGINE, make_engine_ready(slots=1024), 1.0))[0]
    ran, waited = step.sequence
    missed, first = of(Missed, direct.give(ENGINE, done(step.step, (ran, 6), (waited, 5)), 1.04))
    assert (missed.cause, missed.is_first, first.is_first) == (MissCause.ENGINE_LOST, False, True)
    assert figures(missed.why)["engine_lost_s"] == pytest.approx(0.9)
    assert figures(first.why)["engine_lost_s"] == pytest.approx(0.88), "it had waited 0.01 s for the steps before"
    assert counted(direct) == {"ENGINE_LOST": 1, "T-ENGINE_LOST": 1}


def test_a_row_that_left_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[InterruptChoice] = []

    def scripted(candidates: Sequence[InterruptCandidate], situation: StepSituation) -> InterruptChoice | None:
        return wanted.pop() if wanted else None

    monkeypatch.setitem(INTERRUPT_POLICIES, "never", scripted)
    direct = core(objectives__ttft_s=0.2, scheduler__budget_tokens=8)
    direct.give(D, asked(1, tokens=16), 0.0)
    wanted.append(InterruptChoice(WHY, discard=(0,)))
    direct.give(D, asked(2, request_class=RequestClass.BATCH), 0.01)
    left = Interrupted(i64([1, 1]), 1, i64([1, 2]), i32([1, 0]), i32([0, 0]), i8([0, 0]))
    direct.give(ENGINE, left, 0.15)
    direct.give(ENGINE, done(1), 0.15)
    direct.give(ENGINE, done(2), 0.15)
    direct.give(ENGINE, done(3), 0.2)
    missed = only(Missed, direct.give(ENGINE, done(4, (1, 5)), 0.22))
    assert missed.cause is MissCause.INTERRUPTED
    assert figures(missed.why)["interrupted_s"] == pytest.approx(0.15)


def test_batch_work_misses_nothing() -> None:
    direct = core()
    direct.give(D, asked(1, request_class=RequestClass.BATCH, queued_s=9.0), 0.0)
    sends: list[Send] = []
    for step in range(1, 9):
        sends += direct.give(ENGINE, done(step, (1, 5)), 3.0 * step)
    assert (counted(direct), of(Missed, sends)) == ({}, [])


def test_a_row_that_left_by_itself() -> None:
    direct = core(objectives__ttft_s=0.2, scheduler__budget_tokens=8)
    direct.give(D, asked(1, tokens=16), 0.0)
    for step in (1, 2):
        direct.give(ENGINE, replace(done(step), left=i64([1])), 0.15)
    direct.give(ENGINE, done(3), 0.2)
    missed = only(Missed, direct.give(ENGINE, done(4, (1, 5)), 0.22))
    assert missed.cause is MissCause.INTERRUPTED
    assert figures(missed.why)["interrupted_s"] == pytest.approx(0.15)
