"""What a soak knows of one engine's sequences: their texts, rows and slots. Pure; obeys no random number."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.engine.soak.engine_child import SoakError
from dunlin.messages.engine import Interrupted, Open, Step, StepDone
from dunlin.messages.types import FinishReason, SamplingParams, i8, i32, i64
from services.instance.kv.slot_table import SlotTable

MADE_TOKENS = 24
"""Tokens that a sequence generates at most."""


@dataclass(frozen=True, slots=True)
class ReferenceText:
    """A prompt, and what an undisturbed engine makes of it; nothing while that is not known."""

    prompt: Sequence[int]
    made: Sequence[int] = ()

    @property
    def slots(self) -> int:
        """Of the whole text."""
        return len(self.prompt) + MADE_TOKENS


@dataclass(slots=True)
class SoakRow:
    """A row of a step that is not answered, or a parked one."""

    step: int
    start: int
    stop: int
    sample: bool


@dataclass(slots=True)
class SoakSequence:
    """One open sequence. `issued`: where its next row starts; `length`: tokens known when all rows are answered;
    `valid`: tokens whose KV is computed; `made`: tokens sampled so far.

    `is_shared`: other engines compute a part of its rows, which may leave whenever those do.

    `holds`: unanswered interrupts that name it; `transfers`: unanswered ones that read or write its slots; `after`: the
    transfer that its next row waits for. `doomed`: a transfer of its KV failed. `pinned`: nothing but time happens to
    it.
    """

    number: int
    text: ReferenceText
    length: int
    issued: int = 0
    valid: int = 0
    made: list[int] = field(default_factory=list)
    rows: list[SoakRow] = field(default_factory=list)
    parked: tuple[SoakRow, int, int] | None = None
    holds: set[int] = field(default_factory=set)
    transfers: set[int] = field(default_factory=set)
    after: int = 0
    ended: bool = False
    doomed: bool = False
    leaving: bool = False
    pinned: bool = False
    is_shared: bool = False

    @property
    def tokens(self) -> list[int]:
        """The text as far as it is known."""
        return [*self.text.prompt, *self.made]

    @property
    def may_run(self) -> bool:
        """Whether a row of it may be composed."""
        is_still = self.ended or self.doomed or self.leaving or self.parked or self.holds or self.is_shared
        return not is_still and self.issued < self.length and len(self.rows) < 2

    @property
    def is_quiet(self) -> bool:
        """Whether no answer about it is to come."""
        return not (self.rows or self.holds or self.transfers)


class SequenceBook:
    """Owns the sequences and slots of one engine. What is closed keeps its slots until no row or transfer uses them."""

    def __init__(self, engine: str, slots: int) -> None:
        self.slots = SlotTable(slots)
        self.open: dict[int, SoakSequence] = {}
        self.tokens_checked = 0
        self._engine = engine
        self._closing: dict[int, SoakSequence] = {}

    def __iter__(self) -> Iterator[SoakSequence]:
        return iter(list(self.open.values()))

    def add(self, number: int, text: ReferenceText, made: Sequence[int] = (), valid: int = 0) -> Open | None:
        """A sequence whose first `valid` tokens lie in its slots; None: there are not enough free slots."""
        if not self.slots.held(number) and not self.slots.allocate(number, text.slots):
            return None
        each = SoakSequence(number, text, len(text.prompt) + len(made), issued=valid, valid=valid, made=list(made))
        self.open[number] = each
        extents = self.slots.residency(number).slots_of(0, valid) if valid else []
        starts, lengths = i64(first for first, _ in extents), i64(length for _, length in extents)
        sampling = SamplingParams(temperature=0.0)
        return Open(
            number,
            i32(each.tokens),
            len(text.prompt),
            MADE_TOKENS,
            sampling,
            extent_start=starts,
            extent_length=lengths,
        )

    def compose(self, number: int, chosen: Sequence[SoakSequence], chunks: Sequence[int], layout: int) -> Step:
        """A step of one row of each; `chunks` are the most tokens of each row."""
        rows = []
        for each, chunk in zip(chosen, chunks, strict=True):
            stop = min(each.length, each.issued + chunk)
            row = SoakRow(number, each.issued, stop, stop == each.length)
            each.rows.append(row)
            each.issued, each.length = stop, each.length + row.sample
            rows.append(row)
        extents = [
            (index, *extent)
            for index, (each, row) in enumerate(zip(chosen, rows, strict=True))
            for extent in self.slots.residency(each.number).slots_of(row.start, row.stop)
        ]
        return Step(
            number,
            i64(each.number for each in chosen),
            i64(row.start for row in rows),
            i64(row.stop for row in rows),
            i8(row.sample for row in rows),
            i32(index for index, _, _ in extents),
            i64(first for _, first, _ in extents),
            i64(length for _, _, length in extents),
            after=i64(sorted({each.after for each in chosen if each.after})),
            layout=layout,
        )

    def resume(self, number: int, chosen: Sequence[SoakSequence]) -> None:
        """Their parked rows are rows of step `number` now."""
        for each in chosen:
            assert each.parked is not None
            row = each.parked[0]
            each.rows.append(SoakRow(number, row.start, row.stop, row.sample))
            each.issued, each.length, each.parked = row.stop, each.length + row.sample, None

    def close(self, number: int) -> None:
        """It is forgotten; its slots are free once nothing uses them."""
        each = self.open.pop(number)
        each.parked = None
        self._closing[number] = each
        self.sweep()

    def sweep(self) -> None:
        """Free the slots of what is closed and quiet."""
        for number in [number for number, each in self._closing.items() if each.is_quiet]:
            del self._closing[number]
            self.slots.release(number)

    def known(self) -> list[SoakSequence]:
        """The open ones and those whose slots are still in use."""
        return [*self.open.values(), *self._closing.values()]

    # --- answers ---

    def on_interrupted(self, event: Interrupted) -> int:
        """Rows left; returns how many were parked. :raises SoakError: one that was not there."""
        for each in self.known():
            each.holds.discard(event.ticket)
        columns = (event.sequence, event.step, event.layer, event.block, event.parked)
        for number, step, layer, block, parked in zip(*columns, strict=True):
            each = self._sequence(number, event)
            found = [row for row in each.rows if row.step == step]
            if len(found) != 1:
                raise SoakError(f"{self._engine}: {event} names a row of {number} that is not outstanding")
            row = found[0]
            each.rows.remove(row)
            each.issued, each.length = min(each.issued, row.start), each.length - row.sample
            if parked and number in self.open:
                each.parked = (row, layer, block)
        self.sweep()
        return sum(event.parked)

    def on_done(self, event: StepDone) -> None:
        """A step ended. :raises SoakError: a token differs, or comes for a row that is not there."""
        if event.failed:
            raise SoakError(f"{self._engine}: rows without finite logits: {event}")
        made = dict(zip(event.sequence, zip(event.token, event.finish, strict=True), strict=True))
        for each in self.known():
            for row in [row for row in each.rows if row.step == event.step]:
                each.rows.remove(row)
                self._row_done(each, row, event, made.pop(each.number, None))
        if made:
            raise SoakError(f"{self._engine}: tokens for rows that are not outstanding: {made} in {event}")
        self.sweep()

    def _row_done(self, each: SoakSequence, row: SoakRow, event: StepDone, made: tuple[int, int] | None) -> None:
        if each.number in event.dropped or each.number in event.left:
            each.ended, each.doomed = True, each.doomed or each.is_shared
            if not (each.doomed or len(each.made) >= MADE_TOKENS or each.number not in self.open):
                raise SoakError(f"{self._engine}: a row of {each.number} was dropped without reason: {event}")
            return
        each.valid, each.after = max(each.valid, row.stop), 0
        if (made is not None) != row.sample:
            raise SoakError(f"{self._engine}: {event} of {row}: a token was {'' if row.sample else 'not '}expected")
        if made is None:
            return
        token, finish = made
        at = len(each.made)
        if each.text.made and token != each.text.made[at]:
            raise SoakError(f"{self._engine}: token {at} of {each.number} is {token}, not {each.text.made[at]}")
        each.made.append(token)
        self.tokens_checked += bool(each.text.made)
        is_last = len(each.made) == MADE_TOKENS
        if (finish != FinishReason.RUNNING) != is_last:
            raise SoakError(f"{self._engine}: token {at} of {each.number} has the finish reason {finish}")
        each.ended = is_last

    def _sequence(self, number: int, event: object) -> SoakSequence:
        found = self.open.get(number) or self._closing.get(number)
        if found is None:
            raise SoakError(f"{self._engine}: {event} names the unknown sequence {number}")
        return found
