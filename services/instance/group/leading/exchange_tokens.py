"""The tokens of an exchange: appended to their sequences, said to the dispatchers, and looked at for misses."""

from dunlin.effects import Effect
from dunlin.messages.engine import StepDone
from dunlin.messages.types import FinishReason, f32, i8, i32, i64
from services.instance.group.leading.exchanges import Exchange, ExchangeRow
from services.instance.objectives.misses import ObjectiveMisses
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.scheduling.step_outcome import StepOutcome
from services.instance.scheduling.token_messages import token_messages
from services.instance.sequence.finished_answers import FinishedAnswers
from services.instance.sequence.sequence import Sequence


class ExchangeTokens:
    """Delivers tokens. `dop_changes_total`: how often another number of members computed a sequence than before."""

    def __init__(
        self, lifecycle: SequenceLifecycle, finished_answers: FinishedAnswers, misses: ObjectiveMisses
    ) -> None:
        self.dop_changes_total = 0
        self._lifecycle = lifecycle
        self._finished_answers = finished_answers
        self._misses = misses

    def deliver(self, now_s: float, exchange: Exchange, rows: list[ExchangeRow]) -> list[Effect]:
        """These rows count: their tokens go to the dispatchers, and those that ended with them end."""
        if not rows:
            return []
        for row in rows:
            before, row.spread.dop = row.spread.dop, len(row.computed_by)
            self.dop_changes_total += before not in (0, row.spread.dop)
        outcome = _outcome(exchange, rows)
        effects = self._misses.on_step(exchange.timing, outcome.rows, outcome.sampled, [])
        effects += token_messages(outcome) if outcome.sampled else []
        for sequence, finish in outcome.finishes.items():
            self._finished_answers.store(now_s, sequence, finish)
            effects += self._lifecycle.stop(sequence)
        return effects


def _outcome(exchange: Exchange, rows: list[ExchangeRow]) -> StepOutcome:
    """The rows' tokens, appended to their sequences, as if one engine had answered them."""
    sampled: list[Sequence] = []
    finishes: dict[Sequence, FinishReason] = {}
    merged = StepDone(exchange.number, i64(), i32(), f32(), i8(), top_count=i32(), top_token=i32(), top_logprob=f32())
    for row in rows:
        found = exchange.sample_of(row)
        if found is None:
            continue
        done, index = found
        sequence = row.spread.sequence
        sequence.tokens.append(done.token[index])
        sampled.append(sequence)
        _append(merged, done, index)
        if done.finish[index]:
            finishes[sequence] = FinishReason(done.finish[index])
    whole = [row.spread.sequence for row in rows]
    return StepOutcome(merged, whole, sampled, range(len(sampled)), finishes, {})


def _append(merged: StepDone, done: StepDone, index: int) -> None:
    """Entry `index` of an answer, with its best tokens."""
    merged.sequence.append(done.sequence[index])
    merged.token.append(done.token[index])
    merged.logprob.append(done.logprob[index])
    merged.finish.append(done.finish[index])
    count = done.top_count[index] if done.top_count else 0
    first = sum(done.top_count[:index]) if done.top_count else 0
    merged.top_count.append(count)
    merged.top_token.extend(done.top_token[first : first + count])
    merged.top_logprob.extend(done.top_logprob[first : first + count])
