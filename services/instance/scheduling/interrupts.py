"""Asks the policy which rows leave their step and which parked ones come back, and has the ledger carry it out.

Knows no slot and no engine.
"""

from dunlin.effects import Effect
from dunlin.messages.types import Figure, Verdict, Why
from dunlin.policies.interrupt import InterruptCandidate, InterruptPolicy, never
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.scheduling.step_rows import LedgerRow
from services.instance.sequence.table import SequenceState, SequenceTable


class RowInterrupts:
    """Asks after every event, unless the policy is `never`; holds no state of its own."""

    def __init__(self, policy: InterruptPolicy, sequences: SequenceTable, ledger: StepLedger) -> None:
        self._policy = policy
        self._sequences = sequences
        self._ledger = ledger

    def decide(self) -> list[Effect]:
        """Interrupt, resume and discard what the policy chooses."""
        if self._policy is never:
            return []
        outstanding = [row for row in self._ledger.outstanding_rows() if self._may_be_interrupted(row)]
        rows = outstanding + self._ledger.parked_rows()
        if not rows:
            return []
        candidates = [_candidate(row, row.sequence.state is SequenceState.PARKED) for row in rows]
        choice = self._policy(candidates, self._ledger.last_step)
        if choice is None:
            return []
        suspended = [rows[index].sequence for index in choice.suspend if not candidates[index].is_parked]
        discarded = [rows[index].sequence for index in choice.discard]
        return [
            *self._ledger.interrupt(suspended, Verdict.SUSPEND, choice.why),
            *self._ledger.interrupt(discarded, Verdict.DISCARD, choice.why),
            *self._ledger.discard(discarded),
            *self._ledger.resume([rows[index].sequence for index in choice.resume], choice.why),
        ]

    def resume_if_idle(self) -> list[Effect]:
        """Resume parked rows, the oldest sequence first, where the engine has nothing else to do."""
        if not self._sequences.parked_count or self._ledger.outstanding:
            return []
        why = Why("idle engine", "resume", (Figure("parked", self._sequences.parked_count),))
        return self._ledger.resume(self._sequences.parked(), why)

    def _may_be_interrupted(self, row: LedgerRow) -> bool:
        return row.sequence.state is SequenceState.RUNNING and not self._ledger.is_held(row.sequence)


def _candidate(row: LedgerRow, is_parked: bool) -> InterruptCandidate:
    sequence = row.sequence
    is_prefill = row.stop - row.start > 1 or row.stop <= sequence.place.prompt_tokens
    return InterruptCandidate(
        row.number,
        row.step,
        row.stop - row.start,
        len(sequence.tokens) - row.start,
        is_prefill,
        is_parked,
        sequence.place.request_class,
        sequence.place.may_preempt,
    )
