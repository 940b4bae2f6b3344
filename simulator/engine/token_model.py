"""The next token of a modelled engine as a pure function, so that any stream can be checked after any fault.

`PrefixTokenModel` depends on every token before: a token that is wrong, missing or repeated changes all that follow.
`PositionTokenModel` depends on the seed and the position alone, at a small constant cost for any length;
`AnswerTokenModel` too, and ends an answer where a trace does.
"""

from collections.abc import Iterable, Mapping
from typing import Protocol

VOCABULARY = 1000
_MASK = (1 << 63) - 1


def extend_digest(digest: int, token: int) -> int:
    """The digest of the text with `token` appended."""
    return (digest * 6364136223846793005 + token * 2 + 1442695040888963407) & _MASK


def digest_of(tokens: Iterable[int]) -> int:
    """The digest of a whole text."""
    digest = 0
    for token in tokens:
        digest = extend_digest(digest, token)
    return digest


def token_after(digest: int, seed: int = 0, vocabulary: int = VOCABULARY) -> int:
    """The token that `PrefixTokenModel` samples after a text with this digest."""
    mixed = extend_digest(digest, seed + 7)
    return (mixed ^ (mixed >> 31)) % vocabulary


def continuation(tokens: Iterable[int], count: int, seed: int = 0, vocabulary: int = VOCABULARY) -> list[int]:
    """The `count` tokens that an exact stream has after `tokens`, unless a stop condition ends it."""
    digest, said = digest_of(tokens), list[int]()
    for _ in range(count):
        said.append(token_after(digest, seed, vocabulary))
        digest = extend_digest(digest, said[-1])
    return said


class TokenModel(Protocol):
    """The rule for the next token. A sequence's state is one integer."""

    def begin(self, tokens: Iterable[int]) -> int:
        """The state after `tokens`."""
        ...

    def next_token(self, state: int, seed: int, length: int, vocabulary: int) -> int:
        """The token that follows `length` tokens."""
        ...

    def advance(self, state: int, token: int) -> int:
        """The state one token later."""
        ...


class PrefixTokenModel:
    """The next token depends on every token before."""

    def begin(self, tokens: Iterable[int]) -> int:
        """See `TokenModel`. Takes time in proportion to the tokens."""
        return digest_of(tokens)

    def next_token(self, state: int, seed: int, length: int, vocabulary: int) -> int:
        """See `TokenModel`."""
        return token_after(state, seed, vocabulary)

    def advance(self, state: int, token: int) -> int:
        """See `TokenModel`."""
        return extend_digest(state, token)


class PositionTokenModel:
    """The next token depends on the seed and the position."""

    def begin(self, tokens: Iterable[int]) -> int:
        """See `TokenModel`. Reads no token."""
        return 0

    def next_token(self, state: int, seed: int, length: int, vocabulary: int) -> int:
        """See `TokenModel`."""
        mixed = (seed * 2654435761 + length * 40503 + 12345) & 0xFFFFFFFF
        return (mixed ^ (mixed >> 15)) % vocabulary

    def advance(self, state: int, token: int) -> int:
        """See `TokenModel`."""
        return 0


class AnswerTokenModel:
    """As `PositionTokenModel`, and answers end by themselves: `ends` gives, by seed, the tokens of prompt and answer.

    The last token of an answer is the greatest of the vocabulary, and no other is. A seed that `ends` lacks never ends.
    """

    def __init__(self, ends: Mapping[int, int]) -> None:
        self._ends = ends

    def begin(self, tokens: Iterable[int]) -> int:
        """See `TokenModel`. Reads no token."""
        return 0

    def next_token(self, state: int, seed: int, length: int, vocabulary: int) -> int:
        """See `TokenModel`."""
        if length + 1 == self._ends.get(seed):
            return vocabulary - 1
        mixed = (seed * 2654435761 + length * 40503 + 12345) & 0xFFFFFFFF
        return (mixed ^ (mixed >> 15)) % (vocabulary - 1)

    def advance(self, state: int, token: int) -> int:
        """See `TokenModel`."""
        return 0


def expected_tokens(
    voice: TokenModel, tokens: Iterable[int], length: int, count: int, seed: int, vocabulary: int
) -> list[int]:
    """The `count` tokens that an exact stream has after `length` `tokens`, unless a stop condition ends it."""
    state, said = voice.begin(tokens), list[int]()
    for position in range(length, length + count):
        said.append(voice.next_token(state, seed, position, vocabulary))
        state = voice.advance(state, said[-1])
    return said
