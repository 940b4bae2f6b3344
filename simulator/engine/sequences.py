"""The sequences that are open in a modelled engine."""

from dataclasses import dataclass

from dunlin.messages.engine import Open
from dunlin.messages.types import Ints
from simulator.engine.errors import ContractBroken
from simulator.engine.kv_audit import KvAudit
from simulator.engine.prompt_scores import WantedScores, wanted_scores
from simulator.engine.token_model import TokenModel


@dataclass(slots=True)
class SimulatedSequence:
    """One open sequence.

    `length` tokens are known, and the KV cache holds the KV of the first `kv_tokens`. `state` belongs to the token
    model. `logprobs`: alternatives to report per token. `scores`: those of its prompt, where they are wanted.
    `fails`: its logits are not finite. `is_sampled`: its tokens are drawn with a temperature. A stop token ends it from
    `least_length` tokens on.
    """

    number: int
    prompt_tokens: int
    tokens_max: int
    stop_ids: Ints
    seed: int
    logprobs: int
    length: int
    kv_tokens: int
    state: int
    ended: bool = False
    fails: bool = False
    is_sampled: bool = False
    least_length: int = 0
    scores: WantedScores | None = None


class SimulatedSequences:
    """Sequences opened and not closed, by number; a text with `failing_token` fails.

    `changes` counts those opened and closed. `closing`: those closed while the running step computes a row of them,
    which it does to its end.
    """

    def __init__(
        self, slots: int, max_positions: int, voice: TokenModel, audit: KvAudit | None, failing_token: int | None = None
    ) -> None:
        self.failing_token = failing_token
        self.by_number: dict[int, SimulatedSequence] = {}
        self.closing: dict[int, SimulatedSequence] = {}
        self.changes = 0
        self._slots = slots
        self._max_positions = max_positions
        self._voice = voice
        self._audit = audit

    def open(self, message: Open) -> None:
        """Add a sequence.

        Raises:
            ContractBroken: it is open already, or computed yet, or has too many or too few tokens, or more KV than
                tokens.
        """
        number, length = message.sequence, len(message.tokens)
        if number in self.by_number or number in self.closing:
            raise ContractBroken(f"sequence {number} is open already")
        tokens_max = min(message.prompt_tokens + message.max_tokens, self._max_positions)
        if not 0 < length < tokens_max:
            raise ContractBroken(f"sequence {number} is opened with {length} tokens of at most {tokens_max}")
        held = 0
        for extent in message.extent_length:
            held += extent
        if held > length:
            raise ContractBroken(f"sequence {number}: KV of {held} tokens, and it has {length}")
        self.changes += 1
        sampling = message.sampling
        tops = sampling.logprobs or 0
        state = self._voice.begin(message.tokens)
        self.by_number[number] = SimulatedSequence(
            number, message.prompt_tokens, tokens_max, message.stop_ids, sampling.seed, tops, length, held, state
        )
        self.by_number[number].least_length = message.prompt_tokens + sampling.min_tokens
        self.by_number[number].fails = self.failing_token in message.tokens
        self.by_number[number].is_sampled = sampling.temperature > 0
        self.by_number[number].scores = wanted_scores(message)
        if self._audit is not None:
            slots = slots_of_extents(message.extent_start, message.extent_length)
            self._audit.opened(number, message.tokens, slots, message.adapter)

    def close(self, number: int, is_computed: bool = False) -> None:
        """Remove a sequence; nothing if it is not open. `is_computed`: the running step has a row of it."""
        self.changes += 1
        sequence = self.by_number.pop(number, None)
        if sequence is not None and is_computed:
            self.closing[number] = sequence
        elif sequence is not None and self._audit is not None:
            self._audit.closed(number)

    def computing(self, number: int) -> SimulatedSequence:
        """A sequence of the running step. Raises KeyError if it is none."""
        return self.by_number[number] if number in self.by_number else self.closing[number]

    def step_ended(self) -> None:
        """No row of a closed sequence is computed any more."""
        for number in self.closing:
            if self._audit is not None:
                self._audit.closed(number)
        self.closing.clear()


def slots_of_extents(starts: Ints, lengths: Ints) -> list[int]:
    """The slots of the extents, in order; -1 for each token that lies elsewhere."""
    extents = zip(starts, lengths, strict=True)
    return [
        slot for start, length in extents for slot in (range(start, start + length) if start >= 0 else [-1] * length)
    ]
