"""Bugs to plant in the ledger of steps, hunted while rows leave their steps and come back: one for each of its laws."""

from collections.abc import Callable, Iterable
from dataclasses import replace

from dunlin.effects import Effect, Send
from dunlin.messages.engine import Interrupt, Interrupted
from dunlin.messages.types import Verdict, Why, i8, i32, i64
from services.instance.checkpoint.checkpointer import _continues_kept
from services.instance.migration.migrate_out import MigrateOut
from services.instance.scheduling.interrupts import RowInterrupts
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.scheduling.step_rows import LedgerRow
from services.instance.sequence.sequence import Sequence
from tests.zoo.plant import Bug, skip, swap

ANY = ("I6", "I7", "I8", "I12", "I1", "core")
"""What a wrong counter may break, whichever is looked at first."""


def _roll_back_the_kv_alone(original: object, self: LedgerRow) -> None:
    self.sequence.issued = min(self.sequence.issued, self.start)


def _roll_back_the_tokens_alone(original: object, self: LedgerRow) -> None:
    self.sequence.pending -= self.samples


def _resume_from_anywhere(
    original: Callable[[StepLedger, Iterable[Sequence], Why | None], list[Effect]],
    self: StepLedger,
    sequences: Iterable[Sequence],
    why: Why | None = None,
) -> list[Effect]:
    sequences = list(sequences)
    for sequence in sequences:
        if sequence in self._parked:
            self._parked[sequence].layer = self._parked[sequence].block = 0
    return original(self, sequences, why)


def _first_row_of_each(
    original: Callable[[StepLedger, Interrupted], list[Sequence]], self: StepLedger, message: Interrupted
) -> list[Sequence]:
    first = [index for index, number in enumerate(message.sequence) if number not in message.sequence[:index]]
    rows = Interrupted(
        i64(message.sequence[index] for index in first),
        message.ticket,
        i64(message.step[index] for index in first),
        i32(message.layer[index] for index in first),
        i32(message.block[index] for index in first),
        i8(message.parked[index] for index in first),
    )
    return original(self, rows)


def _without_answers_of_none(
    original: Callable[[StepLedger, Interrupted], list[Sequence]], self: StepLedger, message: Interrupted
) -> list[Sequence]:
    return original(self, message) if message.sequence else []


def _keep_parked(original: Callable[[StepLedger], None], self: StepLedger) -> None:
    parked = dict(self._parked)
    original(self)
    self._parked.update(parked)


def _forget_here_alone(
    original: Callable[[StepLedger, Iterable[Sequence]], list[Effect]], self: StepLedger, sequences: Iterable[Sequence]
) -> list[Effect]:
    return [effect for effect in original(self, sequences) if not isinstance(effect, Send)]


def _queued_rows_stay(
    original: Callable[[StepLedger, Iterable[Sequence], Verdict, Why | None], list[Effect]],
    self: StepLedger,
    sequences: Iterable[Sequence],
    verdict: Verdict,
    why: Why | None = None,
) -> list[Effect]:
    effects: list[Effect] = []
    for effect in original(self, sequences, verdict, why):
        assert isinstance(effect, Send)
        assert isinstance(effect.message, Interrupt)
        effects.append(Send(effect.to, replace(effect.message, up_to_step=0)))
    return effects


def _park_whatever_left(
    original: Callable[[StepLedger, Interrupted], list[Sequence]], self: StepLedger, message: Interrupted
) -> list[Sequence]:
    parked = type(message.parked)("b", [1] * len(message.parked))
    return original(self, replace(message, parked=parked))


BUGS = (
    Bug(
        "row-left-and-its-kv-counts",
        "what a row that left was to compute counts as issued",
        ANY,
        (swap(LedgerRow.roll_back, _roll_back_the_tokens_alone),),
        restless=True,
        seed=300415,
    ),
    Bug(
        "row-left-and-its-token-is-awaited",
        "the token of a row that left its step stays pending",
        ANY,
        (swap(LedgerRow.roll_back, _roll_back_the_kv_alone),),
        restless=True,
        seed=428,
    ),
    Bug(
        "held-sequence-gets-a-row",
        "a sequence gets a new row though an interrupt of its last one has no answer",
        ANY,
        (swap(StepLedger.without_held, lambda original, self, running: running),),
        restless=True,
        seed=300437,
    ),
    Bug(
        "held-for-ever",
        "an interrupt that found no row to take is never over",
        ("I12", "I9"),
        (swap(StepLedger.on_interrupted, _without_answers_of_none),),
        restless=True,
        seed=442,
    ),
    Bug(
        "queued-rows-not-interrupted",
        "an interrupt spares the rows of the steps behind the running one",
        ANY,
        (swap(StepLedger.interrupt, _queued_rows_stay),),
        restless=True,
        seed=449,
    ),
    Bug(
        "one-row-a-sequence",
        "of a sequence whose rows left two steps one is taken back",
        ANY,
        (swap(StepLedger.on_interrupted, _first_row_of_each),),
        restless=True,
        seed=461,
    ),
    Bug(
        "parked-without-room",
        "a row for which the engine had no room is taken for parked",
        ANY,
        (swap(StepLedger.on_interrupted, _park_whatever_left),),
        restless=True,
        seed=463,
    ),
    Bug(
        "parked-row-taken-for-gone",
        "a row that the engine has parked is rolled back",
        ANY,
        (swap(StepLedger._park, lambda original, self, row: self._roll_back(row)),),
        restless=True,
        seed=300467,
    ),
    Bug(
        "resumed-from-different-places",
        "rows that stand at different places are resumed as one step",
        ANY,
        (swap(StepLedger.resume, _resume_from_anywhere),),
        restless=True,
        seed=300517,
    ),
    Bug(
        "discarded-here-alone",
        "the engine is not told that a parked row is given up",
        ANY,
        (swap(StepLedger.discard, _forget_here_alone),),
        restless=True,
        seed=2483,
    ),
    Bug(
        "parked-rows-outlive-the-engine",
        "the rows that a dead engine had parked are resumed at its successor",
        ANY,
        (swap(StepLedger.clear, _keep_parked),),
        restless=True,
        seed=60514,
    ),
    Bug(
        "parked-row-without-slots",
        "a preempted sequence gives its slots back and keeps its parked row",
        ANY,
        (skip(StepLedger.discard, list, called_by=SequenceLifecycle.preempt),),
        restless=True,
        seed=100491,
    ),
    Bug(
        "parked-row-of-the-dead",
        "a sequence that ends leaves its parked row in the ledger",
        ANY,
        (skip(StepLedger.forget, lambda: None, called_by=SequenceLifecycle.end),),
        restless=True,
        seed=60662,
    ),
    Bug(
        "parked-row-moves-out",
        "a sequence with a parked row is handed over as if it had none",
        ANY,
        (skip(SequenceLifecycle.unpark, list, called_by=MigrateOut._copy),),
        restless=True,
        seed=516,
    ),
    Bug(
        "parked-for-ever",
        "an idle engine's parked rows are not resumed",
        ("I12", "I9"),
        (skip(RowInterrupts.resume_if_idle, list),),
        restless=True,
        seed=300517,
    ),
    Bug(
        "checkpoint-of-the-issued",
        "a checkpoint covers what is issued, not what is valid",
        ANY,
        (
            swap(
                _continues_kept,
                lambda original, sequence, start, stop: sequence.kept_tokens == start and stop <= sequence.issued,
            ),
        ),
        restless=True,
        seed=534,
    ),
)
