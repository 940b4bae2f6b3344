"""The state of one text's grammar: which tokens may come next, and whether the text is complete.

The state is a function of the grammar and the tokens so far, whatever engine they were chosen in.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray


class TextMatcher(Protocol):
    """What an engine asks of a text's grammar."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing but an end token can follow."""
        ...

    def consume(self, tokens: Sequence[int]) -> None:
        """The text goes on with `tokens`, none of which is an end token."""
        ...

    def allowed(self, stop_ids: Collection[int]) -> NDArray[np.bool_]:
        """For each token of the vocabulary whether it may come next; of the end tokens those in `stop_ids`."""
        ...


class RejectingMatcher:
    """Stands for a grammar that cannot be compiled here: no token of the vocabulary may come next."""

    is_complete = False

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary

    def consume(self, tokens: Sequence[int]) -> None:
        """See `TextMatcher`."""

    def allowed(self, stop_ids: Collection[int]) -> NDArray[np.bool_]:
        """See `TextMatcher`."""
        return np.zeros(self._vocabulary, dtype=np.bool_)


class GrammarMatcher:
    """Owns one matcher of llguidance. `eos_ids`: the model's end tokens, of which the tokenizer knows the first alone.

    A text that left its grammar, or a grammar that turned out to be too costly (see `compiler.PARSER_LIMITS`), allows
    no token from then on; `error` says why.
    """

    def __init__(self, inner: LLMatcher, vocabulary: int, eos_ids: Sequence[int]) -> None:
        self._inner = inner
        self._vocabulary = vocabulary
        self._eos_ids = list(eos_ids)

    @property
    def error(self) -> str:
        """Why no token is allowed; empty: some may be."""
        return str(self._inner.get_error())

    @property
    def is_complete(self) -> bool:
        """See `TextMatcher`."""
        return bool(self._inner.is_stopped()) and not self.error

    def consume(self, tokens: Sequence[int]) -> None:
        """See `TextMatcher`."""
        self._inner.consume_tokens(list(tokens))

    def allowed(self, stop_ids: Collection[int]) -> NDArray[np.bool_]:
        """See `TextMatcher`."""
        bits = b"" if self.error else self._inner.compute_bitmask()
        if self.error:
            return np.zeros(self._vocabulary, dtype=np.bool_)
        mask = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=self._vocabulary, bitorder="little")
        allowed = mask.view(np.bool_)
        ends = bool(allowed[self._eos_ids[0]])
        for token in self._eos_ids:
            allowed[token] = ends and token in stop_ids
        return allowed
