"""Which instance holds which beginnings of texts, as far as this dispatcher knows: what it had computed there itself.

A text is remembered at a few depths only, by the chain of its tokens up to there, and an instance's oldest beginnings
are forgotten once they are more tokens than it has slots. That is a guess at what the instance itself still has; where
`Accepted` shows that it was too hopeful, more is forgotten. Knows no load and takes no decision.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from dunlin.effects import Address
from dunlin.kv.prefix_hash import BLOCK_TOKENS, chain_root
from services.dispatcher.placement.ranking import NO_PREFIX_HITS, PrefixHits
from services.dispatcher.requests.journal import Request

_DEPTHS_MOST = 40

MAX_LISTED_HOLDERS = 32
"""Instances that hold the same beginning: so many are looked at one by one, more only in the order of their load."""


def prefix_depths(tokens: int) -> list[int]:
    """The depths at which a text of so many tokens is remembered, in tokens: closer together at its beginning.

    A beginning of n tokens is found as one of at least n × 2/3, from 16 tokens on.
    """
    found: list[int] = []
    blocks = 1
    while blocks * BLOCK_TOKENS <= tokens and len(found) < _DEPTHS_MOST:
        found.append(blocks * BLOCK_TOKENS)
        blocks += max(1, blocks // 2)
    return found


@dataclass(slots=True)
class _InstancePrefixes:
    """What one instance probably holds: chains and the tokens between each and the one before it, oldest first."""

    tokens: int = 0
    chains: "OrderedDict[bytes, int]" = field(default_factory=OrderedDict)


class PrefixAffinity:
    """Owns what is remembered of each instance that has a stream here. `missed_total` counts guesses too hopeful.

    A request's beginning counts once its first token has come, not while others may still be computing the same.
    """

    def __init__(self) -> None:
        self.missed_total = 0
        self._prefixes: dict[Address, _InstancePrefixes] = {}
        self._holders: dict[bytes, dict[Address, None]] = {}

    def prefix_hits(self, request: Request) -> PrefixHits:
        """How many of the request's first tokens each instance probably holds; the last one never counts."""
        if not self._prefixes:
            return NO_PREFIX_HITS
        marks = self._marks(request, len(request.tokens) - 1)
        few: dict[Address, int] = {}
        most = 0
        for depth, chain in reversed(marks):
            holders = self._holders.get(chain, {})
            if len(holders) > MAX_LISTED_HOLDERS:
                most = depth
                break
            for address in holders:
                few.setdefault(address, depth)
        return PrefixHits(few, most, lambda instance: self._depth(instance, marks))

    def on_accepted(self, request: Request, instance: Address, reused_tokens: int) -> None:
        """So much of it was there. Where that is less than expected, what is older there is probably gone as well."""
        memory = self._prefixes.get(instance)
        if reused_tokens < request.expected_cached_tokens and memory is not None:
            self.missed_total += 1
            self._evict_oldest(instance, memory, memory.tokens // 2)

    def on_computed(self, request: Request, instance: Address, capacity_slots: int) -> None:
        """The instance, which has so many slots, has computed all of the request's tokens."""
        memory = self._prefixes.setdefault(instance, _InstancePrefixes())
        marks = [(0, b""), *self._marks(request, len(request.tokens))]
        for index in range(len(marks) - 1, 0, -1):  # the beginning last: it is the last to be forgotten
            self._remember(instance, memory, marks[index][1], marks[index][0] - marks[index - 1][0])
        self._evict_oldest(instance, memory, capacity_slots)

    def forget_instance(self, instance: Address) -> None:
        """Nothing of what was there is."""
        memory = self._prefixes.pop(instance, None)
        for chain in memory.chains if memory is not None else ():
            self._remove_holder(instance, chain)

    def _remember(self, instance: Address, memory: _InstancePrefixes, chain: bytes, tokens: int) -> None:
        memory.tokens += tokens - memory.chains.pop(chain, 0)
        memory.chains[chain] = tokens
        self._holders.setdefault(chain, {})[instance] = None

    def _evict_oldest(self, instance: Address, memory: _InstancePrefixes, tokens: int) -> None:
        """Forget the oldest beyond that many tokens."""
        while memory.tokens > tokens:
            chain, between = memory.chains.popitem(last=False)
            memory.tokens -= between
            self._remove_holder(instance, chain)

    def _remove_holder(self, instance: Address, chain: bytes) -> None:
        holders = self._holders[chain]
        del holders[instance]
        if not holders:
            del self._holders[chain]

    def _depth(self, instance: Address, marks: list[tuple[int, bytes]]) -> int:
        memory = self._prefixes.get(instance)
        if memory is not None:
            for depth, chain in reversed(marks):
                if chain in memory.chains:
                    return depth
        return 0

    def _marks(self, request: Request, tokens: int) -> list[tuple[int, bytes]]:
        # All instances here serve the same weights, so that their digest need not be part of a name.
        start = chain_root(request.submit.tenant, "")
        return [
            (depth, request.prefix_chains.chain_at(start, request.tokens, depth)) for depth in prefix_depths(tokens)
        ]
