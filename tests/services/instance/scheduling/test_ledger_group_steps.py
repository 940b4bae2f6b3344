"""Steps of a group in the ledger: outstanding like others, none of this instance's rows, answered and refused apart."""

from dataclasses import replace

import pytest

from dunlin.effects import Effect, Send
from dunlin.messages.engine import Interrupt, StepDone
from dunlin.messages.types import Verdict, Why, i64
from services.instance.scheduling.step_forecast import StepForecast
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.sequence.table import SequenceTable
from tests.services.instance.bench import ENGINE, done


def ledger_of(forecast: StepForecast | None = None) -> StepLedger:
    return StepLedger(ENGINE, SequenceTable(), forecast)


def interrupt_of(*effects: Effect) -> Interrupt:
    (effect,) = effects
    assert isinstance(effect, Send)
    assert effect.to == ENGINE
    assert isinstance(effect.message, Interrupt)
    return effect.message


def answered(step: int) -> StepDone:
    """A chunk of ten tokens and a decode row, in 0.55 s."""
    return replace(done(step, (7, 5)), prefill_rows=1, decode_rows=1, tokens_computed=11, compute_s=0.55)


def test_a_groups_step_is_outstanding_like_any_other_until_it_is_answered() -> None:
    ledger = ledger_of()
    assert [ledger.add_group_step(0.0), ledger.add_group_step(0.0)] == [1, 2]
    assert [ledger.is_group_step(step) for step in (1, 2, 3)] == [True, True, False]
    assert (ledger.outstanding, ledger.has_room) == (2, False)
    ledger.complete_group_step(1.0, answered(1))
    assert [ledger.is_group_step(step) for step in (1, 2)] == [False, True]
    assert (ledger.outstanding, ledger.oldest_step, ledger.has_room) == (1, 2, True)


def test_the_answer_to_a_groups_step_is_counted() -> None:
    ledger = ledger_of()
    ledger.complete_group_step(1.0, answered(ledger.add_group_step(0.0)))
    totals = ledger.totals
    assert (totals.done, totals.mixed, totals.multi_row, totals.tokens, totals.prefill_tokens) == (1, 1, 1, 1, 10)
    assert totals.s_per_token == pytest.approx(0.05)


def test_the_next_step_runs_since_a_groups_step_was_answered() -> None:
    forecast = StepForecast()
    ledger = ledger_of(forecast)
    ledger.add_group_step(1.0)
    ledger.add_group_step(1.5)
    assert forecast.elapsed_s(2.0) == 1.0
    ledger.complete_group_step(2.0, answered(1))
    assert forecast.elapsed_s(2.25) == 0.25
    ledger.complete_group_step(3.0, answered(2))
    assert forecast.elapsed_s(4.0) == 0.0


def test_a_groups_step_that_the_engine_refuses_is_not_outstanding_and_counts_for_nothing() -> None:
    ledger = ledger_of()
    ledger.refuse_group_step(ledger.add_group_step(0.0))
    assert (ledger.is_group_step(1), ledger.outstanding, ledger.totals.done) == (False, 0, 0)


@pytest.mark.parametrize("step", [1, 2])
def test_an_answer_to_no_groups_step_changes_nothing(step: int) -> None:
    ledger = ledger_of()
    ledger.complete_group_step(1.0, answered(ledger.add_group_step(0.0)))
    with pytest.raises(KeyError):
        ledger.complete_group_step(2.0, answered(step))
    assert ledger.totals.done == 1


def test_the_groups_steps_of_a_lost_engine_are_forgotten() -> None:
    ledger = ledger_of()
    ledger.add_group_step(0.0)
    ledger.clear()
    assert (ledger.is_group_step(1), ledger.outstanding) == (False, 0)
    assert ledger.add_group_step(0.0) == 2, "numbers are not used again"


def test_a_probe_names_no_sequence_and_is_unanswered_under_a_ticket_of_its_own() -> None:
    ledger = ledger_of()
    assert interrupt_of(ledger.probe()) == Interrupt(Verdict.DISCARD, i64([0]), ticket=1)
    assert interrupt_of(ledger.probe()) == Interrupt(Verdict.DISCARD, i64([0]), ticket=2)
    assert [ledger.is_interrupt(ticket) for ticket in (1, 2, 3)] == [True, True, False]
    assert ledger.unanswered == 2


def test_a_groups_step_is_interrupted_whole_under_a_ticket_of_its_own() -> None:
    ledger, why = ledger_of(), Why("cancelled")
    step = ledger.add_group_step(0.0)
    ledger.probe()
    message = interrupt_of(*ledger.interrupt_group_step(step, why))
    assert message == Interrupt(Verdict.DISCARD, why=why, ticket=2, step=step)
    assert (ledger.is_interrupt(2), ledger.unanswered) == (True, 3)
