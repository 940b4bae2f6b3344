"""One engine's slots as its sequences see them: which slots hold which positions, whoever else uses them.

The only way from a sequence's positions to slots: rows, spills, checkpoints, restores and migrations all ask here. A
sequence's first positions may lie in blocks that it shares with others, the rest in its own holding. Knows no state of
a sequence but its number, its tokens and how many of them have KV; takes no decision.
"""

from dunlin.prefix import BLOCK_TOKENS, root
from services.instance.prefixes import Block, Link, Prefixes
from services.instance.sequences import NO_RUN, Sequence
from services.instance.slots import Extent, Owner, SlotTable, Use, joined

SPARE_PART = 8
"""Of the slab, one part of so many is freed whenever prefixes must go."""


class Slab:
    """Owns the slot table of one engine and the tree of the prefixes in it. What gives a sequence slots or takes them
    goes through here.

    `weights_digest` is part of every prefix's name; None: no prefix is kept.
    """

    def __init__(self, capacity: int = 0, weights_digest: str | None = None) -> None:
        self.table = SlotTable(capacity)
        self.prefixes = Prefixes()
        self._weights_digest = weights_digest
        self._shared: dict[int, list[Block]] = {}

    def __repr__(self) -> str:
        return f"{self.table!r} {self.prefixes!r}"

    @property
    def room(self) -> int:
        """Slots that `grow` can give: those that are free, and those of prefixes that nobody uses."""
        return self.table.free + self.cached

    @property
    def cached(self) -> int:
        """Slots of prefixes that nobody uses."""
        return self.prefixes.unpinned * BLOCK_TOKENS

    def held(self, sequence: Sequence) -> int:
        """Positions of the sequence that have slots: the first so many."""
        return self.shared(sequence) + self.table.held(sequence.number)

    def shared(self, sequence: Sequence) -> int:
        """Positions of the sequence that lie in blocks which others may share: the first so many."""
        return len(self._shared.get(sequence.number, ())) * BLOCK_TOKENS

    def extents(self, sequence: Sequence, start: int, stop: int) -> list[Extent]:
        """The slots of the sequence's positions `[start, stop)`, in order.

        Raises:
            KeyError: it has no slots of its own.
            ValueError: it has not that many.
        """
        first, last, slot = sequence.run
        if first <= start < stop <= last:  # a row that decodes: most rows there are
            return [(slot + start - first, stop - start)]
        shared = self.shared(sequence)
        found: list[Extent] = []
        at = start
        while at < min(stop, shared):
            block = self._shared[sequence.number][at // BLOCK_TOKENS]
            first = at % BLOCK_TOKENS
            last = min(BLOCK_TOKENS, first + stop - at)
            found += self.table.holding(block).span(first, last)
            at += last - first
        if stop > shared:
            holding = self.table.holding(sequence.number)
            found += holding.span(at - shared, stop - shared)
            if stop > start:
                first, last, slot = holding.around(stop - 1 - shared)
                sequence.run = (first + shared, last + shared, slot)
        return joined(found) if len(found) > 1 else found

    def reusable(self, sequence: Sequence) -> int:
        """How many of its first tokens are here already; never all of them, for the last one must be computed."""
        if self._weights_digest is None:
            return 0
        most = (len(sequence.tokens) - 1) // BLOCK_TOKENS
        return _unbroken(self.prefixes.held(self._link(sequence), most) * BLOCK_TOKENS, sequence)

    def needed(self, sequence: Sequence, positions: int) -> int:
        """How much of the `room` a start with slots for that many positions would take."""
        reusable = self.reusable(sequence) // BLOCK_TOKENS
        return positions - self.prefixes.in_use(self._link(sequence), reusable) * BLOCK_TOKENS

    def gain(self, sequence: Sequence) -> int:
        """How much more `room` there would be without it."""
        path, alone = self._shared.get(sequence.number, []), 0
        while alone < len(path) and path[-1 - alone].pins == 1:
            alone += 1
        return self.table.held(sequence.number) + alone * BLOCK_TOKENS

    def share(self, sequence: Sequence) -> int:
        """Let a sequence that has no slots use the blocks of its text that are here; how many tokens that are."""
        reused = self.reusable(sequence)
        if reused:
            block = self.prefixes.find(self._link(sequence)(reused // BLOCK_TOKENS))
            assert block is not None
            self._shared[sequence.number] = self.prefixes.pin(block)
        return reused

    def grow(self, sequence: Sequence, count: int) -> bool:
        """Give the sequence slots for `count` more positions. False: there is no room for them, none given."""
        return self.make_room(count) and self.table.grow(sequence.number, count)

    def make_room(self, count: int) -> bool:
        """Have `count` slots free, at the expense of prefixes that nobody uses. False: it cannot be done.

        More go at once than must: whole old texts, whose slots lie together, so that new extents are as long as in a
        slab without prefixes.
        """
        if count > self.room:
            return False
        if self.table.free < count:
            wanted = min(self.room, count + self.table.capacity // SPARE_PART)
            while self.table.free < wanted:
                block = self.prefixes.evict()
                assert block is not None, f"no prefix to give away: {self!r}"
                self.table.release(block)
        return True

    def reserve(self, owner: Owner, count: int) -> bool:
        """Set `count` slots aside, or so many more, for an owner that is no sequence. False: there is no room."""
        return self.make_room(count) and self.table.grow(owner, count, Use.RESERVED)

    def donate(self, sequence: Sequence, tokens: int) -> None:
        """Let others share the sequence's first `tokens` tokens, which have KV: its slots become blocks' slots.

        Not if somebody else donated the same meanwhile: the engine goes on to read this sequence's own slots.
        """
        if not self._may_donate(sequence):
            return
        path, link, blocks = self._shared.get(sequence.number, []), self._link(sequence), tokens // BLOCK_TOKENS
        if self.prefixes.held(link, blocks) == len(path) < blocks:
            self._extend(sequence, path, blocks, [])

    def release(self, sequence: Sequence) -> None:
        """Take everything back from the sequence; the engine uses none of it any more."""
        sequence.run = NO_RUN
        self.table.release(sequence.number)
        self.prefixes.unpin(self._shared.pop(sequence.number, []))

    def retire(self, sequence: Sequence) -> None:
        """Take everything back from a sequence that ended, and keep the blocks of its text that have KV for others."""
        if self._may_donate(sequence):
            self._bequeath(sequence)
        self.release(sequence)

    def take_over(self, sequence: Sequence, owner: Owner) -> None:
        """Give the sequence, which has none, the slots that were reserved for `owner`.

        Raises:
            KeyError: nothing was.
        """
        self.table.hand_over(owner, sequence.number, Use.OWNED)

    def mark(self, sequence: Sequence, use: Use) -> None:
        """The sequence's own slots do something else now."""
        self.table.mark(sequence.number, use)

    def check_integrity(self) -> None:
        """Every slot is in one place, and every block has its slots.

        Raises:
            AssertionError: table and tree contradict each other or themselves.
        """
        self.table.check_integrity()
        self.prefixes.check_integrity()
        pins: dict[Block, int] = {}
        for path in self._shared.values():
            for block in path:
                assert self.table.held(block) == BLOCK_TOKENS, f"block {block.number} has no block's slots"
                pins[block] = pins.get(block, 0) + 1
                assert block.is_held, "a block is used and gone"
                assert block.pins >= pins[block], "a block is used by more than have pinned it"

    def _may_donate(self, sequence: Sequence) -> bool:
        return self._weights_digest is not None and self.table.use(sequence.number) is Use.OWNED

    def _bequeath(self, sequence: Sequence) -> None:
        """Like `donate`, but past blocks that others donated: nobody reads the sequence's own slots any more."""
        path, link = self._shared.get(sequence.number, []), self._link(sequence)
        blocks = min(sequence.answered, self.held(sequence)) // BLOCK_TOKENS
        held = self.prefixes.held(link, blocks)
        if held > len(path):
            twins: list[Block | None] = [None] * (held - len(path))
            block = self.prefixes.find(link(held))
            assert block is not None
            theirs = self.prefixes.pin(block)
            self.prefixes.unpin(path)
            self._extend(sequence, theirs, blocks, twins)
        elif len(path) < blocks:
            self._extend(sequence, path, blocks, [])

    def _extend(self, sequence: Sequence, path: list[Block], blocks: int, heirs: list[Block | None]) -> None:
        """Make new blocks of the sequence's own slots, after those that go to `heirs`."""
        link = self._link(sequence)
        for count in range(len(path) + 1, blocks + 1):
            path.append(self.prefixes.add(link(count), path[-1] if path else None))
            heirs.append(path[-1])
        self._shared[sequence.number] = path
        self.table.portion_out(sequence.number, heirs, BLOCK_TOKENS)

    def _link(self, sequence: Sequence) -> Link:
        # No rope name: of the kinds that the engine takes, none has frequencies that depend on a sequence's length.
        start = root(sequence.place.tenant, self._weights_digest or "")
        return lambda count: sequence.chains.at(start, sequence.tokens, count * BLOCK_TOKENS)


def _unbroken(reusable: int, sequence: Sequence) -> int:
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
