"""Names for the beginnings of token strings: two with the same name hold the same keys and values.

A chain is a hash of everything that a prefix's KV depends on: its tenant, which weights, which rope frequencies, which
adapter, and each of its tokens in order. It grows block by block, so that a longer prefix's name is made from a shorter
one's. Knows no slot, no region and no cache.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

from dunlin.messages.types import i32

BLOCK_TOKENS = 16
"""Tokens per link of a chain: shared prefixes are found in multiples of it."""

CHAIN_BYTES = 16

_BLOCK_BYTES = BLOCK_TOKENS * i32().itemsize


@lru_cache(maxsize=256)
def chain_root(tenant: str, weights_digest: str, rope: str = "", adapter: str = "") -> bytes:
    """The chain of no token. `rope` names the set of frequencies where it depends on the sequence's length; `adapter`
    is a LoRA adapter's digest, "" of none: then the chain is what it was before there were any.
    """
    parts = [part.encode() for part in (tenant, weights_digest, rope, *([adapter] if adapter else []))]
    lengths = b"".join(len(part).to_bytes(4, "little") for part in parts)
    return blake2b(lengths + b"".join(parts), digest_size=CHAIN_BYTES, person=b"dunlin-root").digest()


def extend_chain(chain: bytes, tokens: Sequence[int]) -> bytes:
    """The chain one block further: `tokens` are at most `BLOCK_TOKENS` token ids; a shorter block ends its chain.

    Raises:
        ValueError: no token, or more than a block.
    """
    if not 0 < len(tokens) <= BLOCK_TOKENS:
        raise ValueError(f"a block of {len(tokens)} tokens: 1 to {BLOCK_TOKENS} are possible")
    return blake2b(chain + i32(tokens).tobytes(), digest_size=CHAIN_BYTES).digest()


class PrefixChain:
    """The chains of one text that only grows: each block is hashed once, however often it is asked for."""

    def __init__(self) -> None:
        self._links: list[bytes] = []

    def chain_at(self, start: bytes, tokens: Sequence[int], stop: int) -> bytes:
        """What `chain_of` says, for the same text and more of it.

        Raises:
            ValueError: there are fewer than `stop` tokens.
        """
        if not 0 <= stop <= len(tokens):
            raise ValueError(f"the chain of {stop} tokens of {len(tokens)}")
        if not self._links or self._links[0] != start:
            self._links = [start]
        links, blocks = self._links, stop // BLOCK_TOKENS
        if len(links) <= blocks:
            self._grow(tokens, blocks)
        if stop == blocks * BLOCK_TOKENS:
            return links[blocks]
        return extend_chain(links[blocks], tokens[blocks * BLOCK_TOKENS : stop])

    def blocks(self, start: bytes, tokens: Sequence[int], first: int, last: int) -> list[bytes]:
        """The chains of the text's first `first` to `last` blocks, in order: `chain_at` of each number of whole blocks.

        Raises:
            ValueError: there are fewer than `last` blocks.
        """
        self.chain_at(start, tokens, last * BLOCK_TOKENS)
        return self._links[first : last + 1]

    def _grow(self, tokens: Sequence[int], blocks: int) -> None:
        """All missing links at once: their tokens become bytes in one go."""
        links, at = self._links, 0
        chain, text = links[-1], i32(tokens[(len(links) - 1) * BLOCK_TOKENS : blocks * BLOCK_TOKENS]).tobytes()
        for _ in range(len(links), blocks + 1):
            chain = blake2b(chain + text[at : at + _BLOCK_BYTES], digest_size=CHAIN_BYTES).digest()
            links.append(chain)
            at += _BLOCK_BYTES


def chain_of(start: bytes, tokens: Sequence[int], stop: int) -> bytes:
    """The chain of `tokens[:stop]`, from a `chain_root`.

    Raises:
        ValueError: there are fewer than `stop` tokens.
    """
    if not 0 <= stop <= len(tokens):
        raise ValueError(f"the chain of {stop} tokens of {len(tokens)}")
    chain = start
    for first in range(0, stop, BLOCK_TOKENS):
        chain = extend_chain(chain, tokens[first : min(first + BLOCK_TOKENS, stop)])
    return chain


def has_prefix(start: bytes, tokens: Sequence[int], stop: int, chain: bytes) -> bool:
    """Whether there are `stop` tokens and their chain is this one."""
    return 0 <= stop <= len(tokens) and chain_of(start, tokens, stop) == chain
