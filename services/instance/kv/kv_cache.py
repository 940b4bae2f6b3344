"""The KV cache of one engine: which slots hold which positions of a sequence, its own and shared ones.

The only way from a sequence's positions to slots: rows, spills, checkpoints, restores and migrations all ask here. A
sequence's first positions may lie in blocks that it shares with others, the rest in its own residency. Knows no state
of a sequence but its number, its tokens and how many of them have KV; takes no decision.
"""

from dunlin.kv.prefix_hash import BLOCK_TOKENS, chain_root
from services.instance.kv.prefix_cache import ChainOf, PrefixBlock, PrefixCache
from services.instance.kv.residency import Extent, SlotUse
from services.instance.kv.slot_table import Owner, SlotTable, merge_adjacent
from services.instance.sequence.sequence import NO_SLOT_RUN, Sequence

SPARE_DIVISOR = 8
"""Whenever prefixes must be evicted, one slot in so many of the KV cache is freed."""


class KvCache:
    """Owns the slot table of one engine and the tree of the prefixes in it. What gives a sequence slots or takes them
    goes through here.

    `weights_digest` is part of every prefix's name; None: no prefix is kept.
    """

    def __init__(self, capacity: int = 0, weights_digest: str | None = None) -> None:
        self.slot_table = SlotTable(capacity)
        self.prefix_cache = PrefixCache()
        self._weights_digest = weights_digest
        self._shared: dict[int, list[PrefixBlock]] = {}
        self._until_needed: dict[Owner, int] = {}
        self._until_needed_slots = 0

    def __repr__(self) -> str:
        return f"{self.slot_table!r} {self.prefix_cache!r}"

    @property
    def available_slots(self) -> int:
        """Slots that `allocate` can give: free ones, and those of what no sequence uses."""
        return self.slot_table.free + self.cached_slots

    @property
    def cached_slots(self) -> int:
        """Slots of prefixes that no sequence uses, and of owners that keep them until they are needed."""
        return self.prefix_cache.unpinned * BLOCK_TOKENS + self._until_needed_slots

    def held_positions(self, sequence: Sequence) -> int:
        """The position after the last one of the sequence that has a slot."""
        if not self.slot_table.held(sequence.number):
            return self.shared_positions(sequence)
        return self.slot_table.residency(sequence.number).stop

    def shared_positions(self, sequence: Sequence) -> int:
        """Positions of the sequence that lie in blocks which others may share: the first so many."""
        return len(self._shared.get(sequence.number, ())) * BLOCK_TOKENS

    def extents(self, sequence: Sequence, start: int, stop: int) -> list[Extent]:
        """The slots of the sequence's positions `[start, stop)`, in order.

        Raises:
            KeyError: it has no slots of its own, and not all of them lie in shared blocks.
            ValueError: one of the positions has no slot.
        """
        first, last, slot = sequence.slot_run
        if first <= start < stop <= last:  # a row that decodes: most rows there are
            return [(slot + start - first, stop - start)]
        shared = self.shared_positions(sequence)
        found: list[Extent] = []
        at = start
        while at < min(stop, shared):
            block = self._shared[sequence.number][at // BLOCK_TOKENS]
            last = min(at - at % BLOCK_TOKENS + BLOCK_TOKENS, stop)
            found += self.slot_table.residency(block).slots_of(at, last)
            at = last
        if stop > shared:
            residency = self.slot_table.residency(sequence.number)
            found += residency.slots_of(at, stop)
            if stop > start:
                sequence.slot_run = residency.run_around(stop - 1)
        return merge_adjacent(found)

    def reusable_tokens(self, sequence: Sequence) -> int:
        """How many of its first tokens are here already; never all of them, for some must be computed."""
        if self._weights_digest is None:
            return 0
        most = sequence.reusable_most // BLOCK_TOKENS
        return _up_to_kept_region(
            self.prefix_cache.cached_blocks(self._chain_of(sequence), most) * BLOCK_TOKENS, sequence
        )

    def slots_needed(self, sequence: Sequence, positions: int) -> int:
        """How many `available_slots` a start with that many positions would take."""
        reusable = self.reusable_tokens(sequence) // BLOCK_TOKENS
        return positions - self.prefix_cache.pinned_blocks(self._chain_of(sequence), reusable) * BLOCK_TOKENS

    def slots_gained_without(self, sequence: Sequence) -> int:
        """How many more `available_slots` there would be without the sequence."""
        path, alone = self._shared.get(sequence.number, []), 0
        while alone < len(path) and path[-1 - alone].pins == 1:
            alone += 1
        return self.slot_table.held(sequence.number) + alone * BLOCK_TOKENS

    def attach_prefix(self, sequence: Sequence) -> int:
        """Let a sequence that has no slots use the blocks of its text that are here; how many tokens that are."""
        reused = self.reusable_tokens(sequence)
        if reused:
            block = self.prefix_cache.find(self._chain_of(sequence)(reused // BLOCK_TOKENS))
            assert block is not None
            self._shared[sequence.number] = self.prefix_cache.pin(block)
        return reused

    def allocate(self, sequence: Sequence, count: int) -> bool:
        """Give the sequence slots for `count` more positions. False: there is no room for them, none given."""
        at = None if self.slot_table.held(sequence.number) else self.shared_positions(sequence)
        return self.evict_prefixes(count) and self.slot_table.allocate(sequence.number, count, at=at)

    def evict_prefixes(self, count: int) -> bool:
        """Have `count` slots free, at the expense of what owners keep until it is needed, and then of prefixes that no
        sequence uses. False: it cannot be done.

        More go at once than must: whole old texts, whose slots lie together, so that new extents are as long as in a
        KV cache without prefixes.
        """
        if count > self.available_slots:
            return False
        if self.slot_table.free < count:
            wanted = min(self.available_slots, count + self.slot_table.capacity // SPARE_DIVISOR)
            while self.slot_table.free < wanted:
                assert self._evict_one(), f"nothing to give away: {self!r}"
        return True

    def _evict_one(self) -> bool:
        """Free the slots of what was kept first of what is not needed; False: there is nothing."""
        owner = next(iter(self._until_needed), None)
        if owner is not None:
            self.take_back(owner)
        else:
            owner = self.prefix_cache.evict()
        if owner is None:
            return False
        self.slot_table.release(owner)
        return True

    def keep_until_needed(self, owner: Owner) -> None:
        """The owner's slots count as available from now on, until `take_back`: they go first where others need some.

        Raises:
            KeyError: it has no slots.
        """
        slots = self.slot_table.residency(owner).slots
        self._until_needed[owner] = slots
        self._until_needed_slots += slots

    def take_back(self, owner: Owner) -> bool:
        """The owner's slots are its own again; False: others needed them."""
        slots = self._until_needed.pop(owner, None)
        self._until_needed_slots -= slots or 0
        return slots is not None

    def withhold_beyond(self, limit: int) -> None:
        """Give out no slot from `limit` on, and evict what no sequence uses until none of it lies there: it is about to
        go.
        """
        self.slot_table.withhold_beyond(limit)
        while any(self._may_evict(owner) for owner in self.slot_table.owners_beyond(limit)):
            if not self._evict_one():
                return

    def _may_evict(self, owner: Owner) -> bool:
        return isinstance(owner, PrefixBlock) or owner in self._until_needed

    def sequences_beyond(self, limit: int) -> list[int]:
        """The numbers of the sequences that have slots from `limit` on, own or shared ones, in order."""
        owners = self.slot_table.owners_beyond(limit)
        own = [owner for owner in owners if isinstance(owner, int)]
        sharing = [number for number, path in self._shared.items() if any(block in owners for block in path)]
        return sorted({*own, *sharing})

    def reserve(self, owner: Owner, count: int) -> bool:
        """Set `count` slots aside, or so many more, for an owner that is no sequence. False: there is no room."""
        return self.evict_prefixes(count) and self.slot_table.allocate(owner, count, SlotUse.RESERVED)

    def share_prefix(self, sequence: Sequence, tokens: int) -> None:
        """Let others share the sequence's first `tokens` tokens, which have KV: its slots become blocks' slots.

        Not if another sequence shared the same text meanwhile: the engine goes on to read this sequence's own slots.
        """
        if not self._may_share(sequence):
            return
        path, link, blocks = self._shared.get(sequence.number, []), self._chain_of(sequence), tokens // BLOCK_TOKENS
        if self.prefix_cache.cached_blocks(link, blocks) == len(path) < blocks:
            self._add_blocks(sequence, path, blocks, [])

    def release(self, sequence: Sequence) -> None:
        """Free all slots of the sequence, which the engine does not use any more."""
        sequence.slot_run = NO_SLOT_RUN
        self.slot_table.release(sequence.number)
        self.prefix_cache.unpin(self._shared.pop(sequence.number, []))

    def release_to_prefix_cache(self, sequence: Sequence) -> None:
        """Free the slots of a sequence that ended, and keep the blocks of its text that have KV for others."""
        if self._may_share(sequence):
            self._share_all(sequence)
        self.release(sequence)

    def adopt_reserved(self, sequence: Sequence, owner: Owner) -> None:
        """Give the sequence, which has none, the slots that were reserved for `owner`.

        Raises:
            KeyError: nothing was.
        """
        self.slot_table.transfer(owner, sequence.number, SlotUse.OWNED)

    def set_use(self, sequence: Sequence, use: SlotUse) -> None:
        """Change the use of the sequence's own slots."""
        self.slot_table.set_use(sequence.number, use)

    def check_integrity(self) -> None:
        """Every slot is in one place, and every block has its slots.

        Raises:
            AssertionError: table and tree contradict each other or themselves.
        """
        self.slot_table.check_integrity()
        self.prefix_cache.check_integrity()
        kept = {owner: self.slot_table.held(owner) for owner in self._until_needed}
        assert kept == self._until_needed, f"{self._until_needed} kept until needed, {kept} are"
        pins: dict[PrefixBlock, int] = {}
        for path in self._shared.values():
            for block in path:
                assert self.slot_table.held(block) == BLOCK_TOKENS, f"block {block.number} has no block's slots"
                pins[block] = pins.get(block, 0) + 1
                assert block.is_cached, "a block is used and gone"
                assert block.pins >= pins[block], "a block is used by more than have pinned it"

    def _may_share(self, sequence: Sequence) -> bool:
        return self._weights_digest is not None and self.slot_table.use(sequence.number) is SlotUse.OWNED

    def _share_all(self, sequence: Sequence) -> None:
        """Like `share_prefix`, but past blocks that others shared: the sequence's own slots are not read any more."""
        path, link = self._shared.get(sequence.number, []), self._chain_of(sequence)
        blocks = min(sequence.valid, self.held_positions(sequence)) // BLOCK_TOKENS
        held = self.prefix_cache.cached_blocks(link, blocks)
        twins: list[PrefixBlock | None] = [None] * (held - len(path))
        if twins:
            block = self.prefix_cache.find(link(held))
            assert block is not None
            theirs = self.prefix_cache.pin(block)
            self.prefix_cache.unpin(path)
            path = theirs
        self._add_blocks(sequence, path, blocks, twins)

    def _add_blocks(
        self, sequence: Sequence, path: list[PrefixBlock], blocks: int, heirs: list[PrefixBlock | None]
    ) -> None:
        """Make new blocks of the sequence's own slots, after those that go to `heirs`."""
        known, block = len(path), path[-1] if path else None
        for chain in sequence.chains.blocks(self._chain_start(sequence), sequence.tokens, known + 1, blocks):
            block = self.prefix_cache.add(chain, block)
            path.append(block)
            heirs.append(block)
        self._shared[sequence.number] = path
        self.slot_table.split_off(sequence.number, heirs, BLOCK_TOKENS)

    def _chain_start(self, sequence: Sequence) -> bytes:
        # No RoPE name: no text is taken that is so long that the frequencies would change (`RopeConfig`).
        place = sequence.place
        return chain_root(place.tenant, self._weights_digest or "", adapter=place.adapter)

    def _chain_of(self, sequence: Sequence) -> ChainOf:
        start = self._chain_start(sequence)
        return lambda count: sequence.chains.chain_at(start, sequence.tokens, count * BLOCK_TOKENS)


def _up_to_kept_region(reusable: int, sequence: Sequence) -> int:
    """So many tokens that what is kept in the host tier beyond them can be restored: whole regions, whole blocks.

    All of them if less than a block is kept beyond: that is computed sooner than copied.
    """
    if sequence.kept_tokens < reusable + BLOCK_TOKENS:
        return reusable
    best = 0
    for kept in sequence.kept:
        if kept.region.start <= reusable and kept.region.start % BLOCK_TOKENS == 0:
            best = kept.region.start
    return best
