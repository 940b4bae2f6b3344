"""What the modelled engines say: the next token as a pure function, so that any stream can be checked after any fault.

Two voices. `Digested` says what follows from every token before, and notices any that is wrong, missing or repeated;
`Counted` says what follows from the seed and the position alone, at a small constant cost whatever the length.
"""

from collections.abc import Iterable
from typing import Protocol

VOCABULARY = 1000
_MASK = (1 << 63) - 1


def extend_digest(digest: int, token: int) -> int:
    """The digest of a text that is one token longer."""
    return (digest * 6364136223846793005 + token * 2 + 1442695040888963407) & _MASK


def digest_of(tokens: Iterable[int]) -> int:
    """The digest of a whole text."""
    digest = 0
    for token in tokens:
        digest = extend_digest(digest, token)
    return digest


def token_after(digest: int, seed: int = 0, vocabulary: int = VOCABULARY) -> int:
    """What `Digested` says after the text of this digest."""
    mixed = extend_digest(digest, seed + 7)
    return (mixed ^ (mixed >> 31)) % vocabulary


def continuation(tokens: Iterable[int], count: int, seed: int = 0, vocabulary: int = VOCABULARY) -> list[int]:
    """The `count` tokens that any exact stream has after `tokens`, as long as nothing stops it."""
    digest, said = digest_of(tokens), list[int]()
    for _ in range(count):
        said.append(token_after(digest, seed, vocabulary))
        digest = extend_digest(digest, said[-1])
    return said


class TokenModel(Protocol):
    """How the next token follows. A sequence's state is one number."""

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
    """Says what follows from every token before."""

    def begin(self, tokens: Iterable[int]) -> int:
        """See `Voice`. Takes time in proportion to the tokens."""
        return digest_of(tokens)

    def next_token(self, state: int, seed: int, length: int, vocabulary: int) -> int:
        """See `Voice`."""
        return token_after(state, seed, vocabulary)

    def advance(self, state: int, token: int) -> int:
        """See `Voice`."""
        return extend_digest(state, token)


class PositionTokenModel:
    """Says what follows from the seed and the position."""

    def begin(self, tokens: Iterable[int]) -> int:
        """See `Voice`. Looks at no token."""
        return 0

    def next_token(self, state: int, seed: int, length: int, vocabulary: int) -> int:
        """See `Voice`."""
        mixed = (seed * 2654435761 + length * 40503 + 12345) & 0xFFFFFFFF
        return (mixed ^ (mixed >> 15)) % vocabulary

    def advance(self, state: int, token: int) -> int:
        """See `Voice`."""
        return 0


def expected_tokens(
    voice: TokenModel, tokens: Iterable[int], length: int, count: int, seed: int, vocabulary: int
) -> list[int]:
    """The `count` tokens that an exact stream has after `length` `tokens`, as long as nothing stops it."""
    state, said = voice.begin(tokens), list[int]()
    for position in range(length, length + count):
        said.append(voice.next_token(state, seed, position, vocabulary))
        state = voice.advance(state, said[-1])
    return said
