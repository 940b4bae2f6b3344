"""A prompt that both engines compute in stripes, each keeping a part, and that one of them decodes as its master."""

import random
from collections.abc import Sequence
from typing import Any

from benchmarks.engine.soak.engine_orders import EngineOrders
from benchmarks.engine.soak.sequences import ReferenceText, SoakRow, SoakSequence
from dunlin.messages.engine import Step
from dunlin.messages.types import GroupKind, Keep, Serve, i8, i32, i64

FIRST_NUMBER = 1_000_000
"""Of the sequences of rings: members number them alike."""
DECODED = 3
ROOM = 3
"""The transit room of each engine that the other writes."""


class RingOrders:
    """Owns the one ring that is under way. `finished` and `left` count how they ended."""

    def __init__(self, engines: tuple[EngineOrders, EngineOrders], draw: random.Random) -> None:
        self.finished = self.left = 0
        self._engines = engines
        self._draw = draw
        self._number = FIRST_NUMBER
        self._exchange = 0
        self._parts: list[SoakSequence] = []
        self._cut = 0

    @property
    def is_quiet(self) -> bool:
        """Whether no ring is under way."""
        return not self._parts

    def begin(self, text: ReferenceText) -> None:
        """Both engines compute the prompt and keep a part, which is cut at random."""
        if self._parts or not all(one.layers.may_compute for one in self._engines):
            return
        self._number += 1
        size = len(text.prompt)
        self._cut = self._draw.randrange(1, size)
        for one in self._engines:
            # Its stripe lies in the slots from 0 on, what it keeps behind it, and what it decodes behind that.
            if one.book.slots.allocate(self._number, 2 * text.slots) and one.open(text, number=self._number):
                self._parts.append(one.book.open[self._number])
        for part in self._parts:
            part.pinned = part.is_shared = True
        if len(self._parts) < len(self._engines):
            self._end()
            return
        self._exchange += 1
        for index, one in enumerate(self._engines):
            one.tell(self._stripe(index, one, size))

    def advance(self) -> None:
        """The next token by its master, once the rows before are answered; the end, if it is there or a row left."""
        if not self._parts or any(part.rows or part.holds for part in self._parts):
            return
        size = len(self._parts[0].text.prompt)
        master = (size - 1) % len(self._engines)
        made = len(self._parts[master].made)
        is_open = all(self._number in one.book.open for one in self._engines)  # a change of layers closes all
        is_over = any(part.doomed for part in self._parts) or not made or not is_open
        if is_over or made > DECODED or not all(one.layers.may_compute for one in self._engines):
            self.finished, self.left = self.finished + (made > DECODED), self.left + (made <= DECODED)
            self._end()
            return
        self._decode(master, size + made - 1)

    def _end(self) -> None:
        for one in self._engines:
            if self._number in one.book.open:
                one.close(one.book.open[self._number])
            elif one.book.slots.held(self._number) and not self._parts:
                one.book.slots.release(self._number)
        self._parts = []

    def _stripe(self, index: int, one: EngineOrders, size: int) -> Step:
        part, count = self._parts[index], len(self._engines)
        tokens = range(index, size, count)
        row = SoakRow(one.step_number(), index, size, (size - 1) % count == index)
        self._note(part, row)
        kept = range(self._cut) if index == 0 else range(self._cut, size)
        extents = self._slots(one, 0, len(tokens))
        return Step(
            step=row.step,
            **_row(self._number, row, extents),
            stride=i64([count]),
            span_row=i32([0]),
            span_start=i64([1 - index]),
            span_stop=i64([size]),
            span_stride=i64([count]),
            span_holder=i32([0]),
            keep=self._keep(one, kept, size),
            **self._group(index, GroupKind.RING),
        )

    def _keep(self, one: EngineOrders, kept: range, size: int) -> Keep:
        columns: list[tuple[int, int, int]] = []
        at = kept.start
        for first, length in self._slots(one, size, size + len(kept)):
            columns.append((at, at + length, first))
            at += length
        starts, stops, slots = (i64(column) for column in zip(*columns, strict=True))
        zeros, layers = [0] * len(columns), [one.layers.total] * len(columns)
        return Keep(i32(zeros), i32(zeros), i32(layers), starts, stops, slots)

    def _decode(self, master: int, at: int) -> None:
        self._exchange += 1
        size, holder = len(self._parts[0].text.prompt), 1 - master
        theirs = range(self._cut) if holder == 0 else range(self._cut, size)
        first, second = self._engines[master], self._engines[holder]
        row = SoakRow(first.step_number(), at, at + 1, True)
        self._note(self._parts[master], row)
        position = 2 * size + at - size
        step = Step(
            step=row.step,
            **_row(self._number, row, self._slots(first, position, position + 1)),
            span_row=i32([0]),
            span_start=i64([theirs.start]),
            span_stop=i64([theirs.stop]),
            span_holder=i32([0]),
            **self._group(master, GroupKind.MASTERS),
        )
        first.tell(step)
        empty: Any = i64([])
        none = (empty, empty, empty, i8([]), i32([]), empty, empty)
        serve = self._serve(second, at, theirs, size)
        second.tell(Step(second.step_number(), *none, serve=serve, **self._group(holder, GroupKind.MASTERS)))

    def _serve(self, one: EngineOrders, at: int, theirs: range, size: int) -> Serve:
        starts, stops, slots = list[int](), list[int](), list[int]()
        token = theirs.start
        for first, length in self._slots(one, size, size + len(theirs)):
            starts.append(token)
            stops.append(token + length)
            slots.append(first)
            token += length
        queries = (i64([self._number]), i64([at]), i64([at + 1]), i64([1]), i32([0]))
        return Serve(*queries, i32([0] * len(slots)), i64(starts), i64(stops), i64(slots))

    def _note(self, part: SoakSequence, row: SoakRow) -> None:
        part.rows.append(row)
        part.issued, part.length = row.stop, part.length + row.sample

    def _slots(self, one: EngineOrders, start: int, stop: int) -> Sequence[tuple[int, int]]:
        return one.book.slots.residency(self._number).slots_of(start, stop)

    def _group(self, index: int, kind: GroupKind) -> dict[str, Any]:
        me, other = self._engines[index], self._engines[1 - index]
        rooms = {"own_room": i64([ROOM]), "peer_room": i64([ROOM])}
        layout = me.layers.layout
        return {"group": kind, "peers": (other.child.address,), "exchange": self._exchange, "layout": layout, **rooms}


def _row(number: int, row: SoakRow, extents: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """The columns of a step of one row."""
    return {
        "sequence": i64([number]),
        "start": i64([row.start]),
        "stop": i64([row.stop]),
        "sample": i8([row.sample]),
        "extent_row": i32([0] * len(extents)),
        "extent_start": i64(first for first, _ in extents),
        "extent_length": i64(length for _, length in extents),
    }
