"""Which instance probably has which prefixes in its cache, from the requests that this dispatcher had computed there.

A sequence is remembered at a few depths only, each by the chained hash of its tokens up to there. An instance's oldest
prefixes are forgotten once they are more tokens than it has slots. That estimates what the instance still has; where
`Accepted` shows that it has less, more is forgotten. Knows no load and takes no decision.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from dunlin.effects import Address
from dunlin.kv.prefix_hash import BLOCK_TOKENS, chain_root
from services.dispatcher.placement.ranking import NO_PREFIX_HITS, PrefixHits
from services.dispatcher.requests.request import Request

_DEPTHS_MOST = 40

MAX_LISTED_HOLDERS = 32
"""Holders of one prefix that are listed one by one; of a prefix with more holders the load alone decides among them."""


def prefix_depths(tokens: int) -> list[int]:
    """The prefix lengths, in tokens, at which a sequence of so many tokens is remembered: closer together at its start.

    A common prefix of n tokens is found as one of at least n × 2/3, from 16 tokens on.
    """
    found: list[int] = []
    blocks = 1
    while blocks * BLOCK_TOKENS <= tokens and len(found) < _DEPTHS_MOST:
        found.append(blocks * BLOCK_TOKENS)
        blocks += max(1, blocks // 2)
    return found


@dataclass(slots=True)
class _InstancePrefixes:
    """What one instance probably holds: for each prefix's hash its tokens beyond the depth before, oldest first.

    `tokens` is their sum.
    """

    tokens: int = 0
    chains: "OrderedDict[bytes, int]" = field(default_factory=OrderedDict)


class PrefixAffinity:
    """Owns the remembered prefixes of each instance with a stream. `missed_total` counts expected hits that missed.

    A request's prefix counts once its first token has come: before that the instance may still be computing it.
    """

    def __init__(self) -> None:
        self.missed_total = 0
        self._prefixes: dict[Address, _InstancePrefixes] = {}
        self._holders: dict[bytes, dict[Address, None]] = {}

    def prefix_hits(self, request: Request) -> PrefixHits:
        """How many of the request's first tokens each instance probably holds.

        The last token never counts: it must be computed for the next one's logits.
        """
        if not self._prefixes or request.lacks_scores:  # whose prompt is computed anew, wherever it is
            return NO_PREFIX_HITS
        marks = self._marks(request, len(request.tokens) - 1)
        listed: dict[Address, int] = {}
        most = 0
        for depth, chain in reversed(marks):
            holders = self._holders.get(chain, {})
            if len(holders) > MAX_LISTED_HOLDERS:
                most = depth
                break
            for address in holders:
                listed.setdefault(address, depth)
        return PrefixHits(listed, most, lambda instance: self._depth(instance, marks))

    def on_accepted(self, request: Request, instance: Address, reused_tokens: int) -> None:
        """The instance had `reused_tokens` of the request. If more were expected, half of what it has is forgotten."""
        prefixes = self._prefixes.get(instance)
        if reused_tokens < request.expected_cached_tokens and prefixes is not None:
            self.missed_total += 1
            self._evict_oldest(instance, prefixes, prefixes.tokens // 2)

    def on_computed(self, request: Request, instance: Address, capacity_slots: int) -> None:
        """The instance, which has `capacity_slots`, has computed the KV of all the request's tokens."""
        prefixes = self._prefixes.setdefault(instance, _InstancePrefixes())
        marks = [(0, b""), *self._marks(request, len(request.tokens))]
        for index in range(len(marks) - 1, 0, -1):  # the shortest prefix last: it is forgotten last
            self._remember(instance, prefixes, marks[index][1], marks[index][0] - marks[index - 1][0])
        self._evict_oldest(instance, prefixes, capacity_slots)

    def forget_instance(self, instance: Address) -> None:
        """The instance's cache is gone: forget all its prefixes."""
        prefixes = self._prefixes.pop(instance, None)
        for chain in prefixes.chains if prefixes is not None else ():
            self._remove_holder(instance, chain)

    def _remember(self, instance: Address, prefixes: _InstancePrefixes, chain: bytes, tokens: int) -> None:
        prefixes.tokens += tokens - prefixes.chains.pop(chain, 0)
        prefixes.chains[chain] = tokens
        self._holders.setdefault(chain, {})[instance] = None

    def _evict_oldest(self, instance: Address, prefixes: _InstancePrefixes, tokens: int) -> None:
        """Forget the instance's oldest prefixes until they are at most so many tokens."""
        while prefixes.tokens > tokens:
            chain, between = prefixes.chains.popitem(last=False)
            prefixes.tokens -= between
            self._remove_holder(instance, chain)

    def _remove_holder(self, instance: Address, chain: bytes) -> None:
        holders = self._holders[chain]
        del holders[instance]
        if not holders:
            del self._holders[chain]

    def _depth(self, instance: Address, marks: list[tuple[int, bytes]]) -> int:
        prefixes = self._prefixes.get(instance)
        if prefixes is not None:
            for depth, chain in reversed(marks):
                if chain in prefixes.chains:
                    return depth
        return 0

    def _marks(self, request: Request, tokens: int) -> list[tuple[int, bytes]]:
        # All instances of a dispatcher serve the same weights: their digest need not be part of the hash.
        start = chain_root(request.submit.tenant, "", adapter=request.submit.adapter)
        return [
            (depth, request.prefix_chains.chain_at(start, request.tokens, depth)) for depth in prefix_depths(tokens)
        ]
