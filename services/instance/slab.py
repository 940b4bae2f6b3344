"""One engine's slots as its sequences see them: which slots hold which positions, whoever else uses them.

The only way from a sequence's positions to slots: rows, spills, checkpoints, restores and migrations all ask here.
Knows no state of a sequence but its number, and takes no decision.
"""

from services.instance.sequences import Sequence
from services.instance.slots import Extent, SlotTable, Use


class Slab:
    """Owns the slot table of one engine. Everything that gives a sequence slots or takes them goes through here."""

    def __init__(self, capacity: int = 0) -> None:
        self.table = SlotTable(capacity)

    def __repr__(self) -> str:
        return repr(self.table)

    @property
    def room(self) -> int:
        """Slots that `grow` can give."""
        return self.table.free

    def held(self, sequence: Sequence) -> int:
        """Positions of the sequence that have slots: the first so many."""
        return self.table.held(sequence.number)

    def extents(self, sequence: Sequence, start: int, stop: int) -> list[Extent]:
        """The slots of the sequence's positions `[start, stop)`, in order.

        Raises:
            KeyError: it has no slots.
            ValueError: it has not that many.
        """
        return self.table.holding(sequence.number).span(start, stop)

    def grow(self, sequence: Sequence, count: int) -> bool:
        """Give the sequence slots for `count` more positions. False: there is no room for them, none given."""
        return self.table.grow(sequence.number, count)

    def take_over(self, sequence: Sequence, owner: int) -> None:
        """Give the sequence, which has none, the slots that were reserved for `owner`.

        Raises:
            KeyError: nothing was.
        """
        self.table.hand_over(owner, sequence.number, Use.OWNED)

    def mark(self, sequence: Sequence, use: Use) -> None:
        """The sequence's own slots do something else now."""
        self.table.mark(sequence.number, use)

    def release(self, sequence: Sequence) -> None:
        """Take everything back from the sequence."""
        self.table.release(sequence.number)
