"""Asks the policy which rows leave their step and which parked ones come back, and has the ledger carry it out.

Knows no slot and no engine.
"""

from dunlin.cost.models import BatchCounts
from dunlin.effects import Effect
from dunlin.messages.types import Figure, Verdict, Why
from dunlin.policies.interrupt import (
    ARRIVAL_POLICIES,
    InterruptCandidate,
    InterruptChoice,
    InterruptPolicy,
    StepSituation,
    never,
)
from services.instance.objectives.effective import EffectiveObjectives
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.scheduling.step_rows import LedgerRow
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable


class RowInterrupts:
    """Asks after every event, unless the policy is `never`; of policies for arrivals only when there is something new.

    Remembers the newest arrival that it asked about, the last step that was sent before it, and the oldest one then.
    """

    def __init__(
        self, policy: InterruptPolicy, sequences: SequenceTable, ledger: StepLedger, objectives: EffectiveObjectives
    ) -> None:
        self._policy = policy
        self._sequences = sequences
        self._ledger = ledger
        self._objectives = objectives
        self._newest_seen = self._sent_before = self._oldest_seen = 0

    def decide(self, now_s: float) -> list[Effect]:
        """Interrupt, resume and discard what the policy chooses."""
        if self._policy is never:
            return []
        is_for_arrivals = self._policy in ARRIVAL_POLICIES
        waiting = self._arrivals() if is_for_arrivals else self._without_first_token()
        if is_for_arrivals and not waiting:
            return []
        outstanding = [row for row in self._ledger.outstanding_rows() if self._may_be_interrupted(row)]
        rows = outstanding + self._ledger.parked_rows()
        if not rows:
            return []
        candidates = [_candidate(row, row.sequence.state is SequenceState.PARKED) for row in rows]
        choice = self._policy(candidates, self._situation(now_s, waiting))
        return [] if choice is None else self._carry_out(choice, rows)

    def _carry_out(self, choice: InterruptChoice, rows: list[LedgerRow]) -> list[Effect]:
        suspended = [rows[index].sequence for index in choice.suspend]
        discarded = [rows[index].sequence for index in choice.discard]
        return [
            *self._ledger.recall(choice.recall, discarded, choice.why),
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

    def _arrivals(self) -> list[Sequence]:
        """The sequences without a first token, if one has come since the policy was asked, or another step runs that
        was sent before it came: a policy that spares the step which runs may not spare the next one. Steps composed
        since then are no reason. Else none; that is at nearly every step, and costs no look at the sequences.
        """
        oldest = self._ledger.oldest_step
        is_next = oldest != self._oldest_seen and 0 < oldest <= self._sent_before
        self._oldest_seen = oldest
        if not is_next and self._sequences.newest_order <= self._newest_seen:
            return []
        waiting = self._without_first_token()
        newest = max((sequence.order for sequence in waiting), default=0)
        if newest > self._newest_seen:
            self._newest_seen, self._sent_before = newest, self._ledger.last_step
            return waiting
        return waiting if is_next else []

    def _without_first_token(self) -> list[Sequence]:
        return [sequence for sequence in self._sequences.waiting_or_running() if _awaits_first_token(sequence)]

    def _situation(self, now_s: float, waiting: list[Sequence]) -> StepSituation:
        forecast, last_step = self._ledger.forecast, self._ledger.last_step
        if not forecast.is_on or not waiting:
            return StepSituation(last_step)
        first, objective_s = self._most_urgent(waiting)
        queued = self._ledger.queued_batch_step()
        prompts = BatchCounts()
        for sequence in waiting:
            prompts.add_prefill(len(sequence.tokens) - sequence.valid, sequence.valid)
        return StepSituation(
            last_step,
            prompts.prefill_tokens,
            now_s - first.arrived_s,
            forecast.remaining_s(now_s),
            forecast.step_s(prompts),
            objective_s,
            forecast.elapsed_s(now_s),
            queued,
            forecast.sent_s(queued),
        )

    def _most_urgent(self, waiting: list[Sequence]) -> tuple[Sequence, float]:
        """The sequence whose first token is due first, and its objective; of several the one that came first."""
        due = [(one.arrived_s + self._objectives.ttft_s(one), one.arrived_s, one.order) for one in waiting]
        first = waiting[due.index(min(due))]
        return first, self._objectives.ttft_s(first)

    def _may_be_interrupted(self, row: LedgerRow) -> bool:
        return row.sequence.state is SequenceState.RUNNING and not self._ledger.is_held(row.sequence)


def _awaits_first_token(sequence: Sequence) -> bool:
    """Whether it is an interactive one without a token so far, and no outstanding step computes of it."""
    is_new = len(sequence.tokens) == sequence.place.prompt_tokens
    return is_new and not sequence.is_batch and not sequence.in_steps


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
        sequence.is_risen,
    )
