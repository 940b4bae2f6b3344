"""Which prefixes of texts lie in the KV cache, for all sequences: a tree of blocks, named by hash chains of tokens.

A block's name says everything that its KV depends on (`dunlin/kv/prefix_hash.py`), so that two texts that share
it can share its slots, which the block itself owns. Only complete blocks are here. Knows no sequence and no slot.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

ChainOf = Callable[[int], bytes]
"""The chain of a text's first n blocks, n from 1."""


@dataclass(slots=True, eq=False)
class PrefixBlock:
    """One block, by the order of making. `pins` sequences use it, or a block behind it; `last_used` orders uses."""

    number: int
    chain: bytes
    parent: "PrefixBlock | None"
    children: int = 0
    pins: int = 0
    last_used: int = 0
    is_cached: bool = True


class PrefixCache:
    """Owns the tree. A block stays as long as it is pinned or has others behind it; `evict` takes the rest.

    `unpinned` counts the blocks that no sequence uses: all of them can be evicted, the last ones of each text first.
    """

    def __init__(self) -> None:
        self.unpinned = 0
        self._blocks: dict[bytes, PrefixBlock] = {}
        self._leaves: list[tuple[int, int, PrefixBlock]] = []  # a heap by (last_used, number), with stale entries
        self._numbers = 0
        self._uses = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def __repr__(self) -> str:
        return f"[blocks: {len(self._blocks)} | unpinned: {self.unpinned}]"

    def find(self, chain: bytes) -> PrefixBlock | None:
        """The block of that name."""
        return self._blocks.get(chain)

    def cached_blocks(self, link: ChainOf, most: int) -> int:
        """How many of a text's first `most` blocks are here."""
        if not most or link(1) not in self._blocks:  # as of most texts, which share nothing
            return 0
        return _largest_count(most, lambda count: link(count) in self._blocks)

    def pinned_blocks(self, link: ChainOf, held: int) -> int:
        """How many of a text's first `held` blocks, all of them here, are in use."""
        return _largest_count(held, lambda count: self._blocks[link(count)].pins > 0)

    def pin(self, block: PrefixBlock) -> list[PrefixBlock]:
        """Keep a block and those before it until they are unpinned; all of them, in the order of the text."""
        path: list[PrefixBlock] = []
        above: PrefixBlock | None = block
        while above is not None:
            self._pin(above)
            path.append(above)
            above = above.parent
        path.reverse()
        return path

    def unpin(self, path: list[PrefixBlock]) -> None:
        """End one use of these blocks: all that one sequence got from `pin` and `add`."""
        self._uses += 1
        for block in path:
            block.pins -= 1
            block.last_used = self._uses
            self.unpinned += block.pins == 0
        if path:
            self._add_leaf(path[-1])

    def add(self, chain: bytes, parent: PrefixBlock | None) -> PrefixBlock:
        """A new block behind `parent`, which is pinned; so is the block."""
        assert chain not in self._blocks, "the block is here already"
        self._numbers += 1
        block = self._blocks[chain] = PrefixBlock(self._numbers, chain, parent, pins=1)
        if parent is not None:
            parent.children += 1
        return block

    def evict(self) -> PrefixBlock | None:
        """Drop the least recently used block without dependents; its slots are free then."""
        while self._leaves:
            used, _, block = heappop(self._leaves)
            if used == block.last_used and self._is_evictable(block):
                self._drop(block)
                return block
        return None

    def check_integrity(self) -> None:
        """The counts are those of the tree.

        Raises:
            AssertionError: they contradict each other.
        """
        children: dict[PrefixBlock, int] = {}
        unpinned = 0
        for block in self._blocks.values():
            assert block.is_cached
            unpinned += block.pins == 0
            if block.parent is not None:
                assert self._blocks.get(block.parent.chain) is block.parent, "a block without the one before it"
                assert block.parent.pins >= block.pins, "a block is pinned more than the one before it"
                children[block.parent] = children.get(block.parent, 0) + 1
        for block in self._blocks.values():
            assert block.children == children.get(block, 0), f"{block.children} counted behind {block.number}"
        assert unpinned == self.unpinned, f"{self.unpinned} counted unpinned, {unpinned} are"

    def _pin(self, block: PrefixBlock) -> None:
        self.unpinned -= block.pins == 0
        block.pins += 1

    def _is_evictable(self, block: PrefixBlock) -> bool:
        return block.is_cached and block.pins == 0 and block.children == 0

    def _add_leaf(self, block: PrefixBlock) -> None:
        if not self._is_evictable(block):
            return
        heappush(self._leaves, (block.last_used, block.number, block))
        if len(self._leaves) > 2 * len(self._blocks) + 64:
            live = {number: (used, number, block) for used, number, block in self._leaves if used == block.last_used}
            self._leaves = [entry for entry in live.values() if self._is_evictable(entry[2])]
            heapify(self._leaves)

    def _drop(self, block: PrefixBlock) -> None:
        del self._blocks[block.chain]
        block.is_cached = False
        self.unpinned -= 1
        if block.parent is not None:
            block.parent.children -= 1
            self._add_leaf(block.parent)


def _largest_count(most: int, holds: Callable[[int], bool]) -> int:
    """The largest count up to `most` for which `holds` is true; it is for every smaller one then. 0: for none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
