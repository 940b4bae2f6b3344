"""A decode batch of a modelled engine: the rows of a step, of which the next step nearly always has the same.

What is known of the rows from the last step is not looked up again; each token is the token model's, as in any step.
"""

from dunlin.cost.models import BatchCounts
from dunlin.messages.types import FinishReason, Ints
from simulator.engine.errors import ContractBroken
from simulator.engine.sequences import SimulatedSequence
from simulator.engine.stepping.step_queue import QueuedSimStep
from simulator.engine.stepping.step_results import IterationResult
from simulator.engine.token_model import TokenModel

RUNNING = FinishReason.RUNNING


def finish_of(sequence: SimulatedSequence, token: int) -> FinishReason:
    """Whether a sequence that has grown by `token` ends with it."""
    if sequence.stop_ids and token in sequence.stop_ids and sequence.length > sequence.least_length:
        return FinishReason.STOP
    return FinishReason.LENGTH if sequence.length >= sequence.tokens_max else RUNNING


class SimulatedDecodeBatch:
    """The sequences of a step's columns `numbers` and `samples`, each of which got a token in the last step computed.

    `changes`: the count of sequences opened and closed at that time. `has_ended`: one of them got its last token since.
    """

    def __init__(self, numbers: Ints, samples: Ints, sequences: list[SimulatedSequence], changes: int) -> None:
        self.numbers = numbers
        self.samples = samples
        self.sequences = sequences
        self.changes = changes
        self.has_ended = False
        self._sampled_rows = 0
        for sequence in sequences:
            self._sampled_rows += sequence.is_sampled

    def counts(self, queued: QueuedSimStep) -> BatchCounts:
        """The counts of the next step of these rows."""
        rows, context = len(self.sequences), sum(queued.step.stop)
        return BatchCounts(decode_rows=rows, decode_context=context, sampled_rows=self._sampled_rows)

    def decode(self, queued: QueuedSimStep, voice: TokenModel, vocabulary: int) -> IterationResult:
        """Compute the next step of these rows.

        Raises:
            ContractBroken: a row is not of the last token that is known of its sequence.
        """
        step, rows, tokens = queued.step, len(self.sequences), list[int]()
        finishes, next_token = [RUNNING] * rows, voice.next_token
        for row, (sequence, stop) in enumerate(zip(self.sequences, step.stop, strict=True)):
            if stop != sequence.length or sequence.kv_tokens < stop - 1:
                raise ContractBroken(f"sequence {sequence.number}: {stop} of {sequence.length} tokens are computed")
            sequence.kv_tokens = stop
            sequence.length = stop + 1
            token = next_token(sequence.state, sequence.seed, stop, vocabulary)
            tokens.append(token)
            if stop + 1 >= sequence.tokens_max or sequence.stop_ids:
                finishes[row] = finish_of(sequence, token)
                if finishes[row] is not RUNNING:
                    sequence.ended = self.has_ended = True
        return IterationResult(
            step.step,
            queued.left,
            queued.dropped,
            list(self.numbers),
            tokens,
            finishes,
            decode_rows=rows,
            computed=rows,
        )
