"""A tiny core that keeps the contract: it turns drawn numbers into commands, and learns from the answers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dunlin.messages.engine import (
    CancelTransfer,
    Close,
    Discard,
    Interrupt,
    Interrupted,
    Open,
    Remap,
    RemapDone,
    Resume,
    Step,
    StepDone,
    Transfer,
    TransferDone,
    Unsupported,
)
from dunlin.messages.types import (
    FinishReason,
    HostRegion,
    Priority,
    Region,
    RemapPhase,
    SamplingParams,
    TransferKind,
    TransferStatus,
    Verdict,
    i8,
    i32,
    i64,
)

AWAY = (RemapPhase.PREPARE, RemapPhase.DROP_WEIGHTS, RemapPhase.RELEASE_KV)
BACK = (RemapPhase.PREPARE, RemapPhase.LOAD, RemapPhase.COMMIT)
SLOTS_EACH = 128
"""Slots of each sequence: number n has those from n · SLOTS_EACH on."""
ROOM_BYTES = 1 << 16
"""Bytes of each region in the host tier."""


@dataclass(slots=True)
class ConductedRow:
    """What a row of an outstanding step computes."""

    step: int
    start: int
    stop: int
    sample: bool


@dataclass(slots=True)
class Place:
    """Where a parked row stands, and what it is."""

    row: ConductedRow
    layer: int
    block: int


@dataclass(slots=True)
class Known:
    """What the core knows of a sequence: `issued` is where its next row starts, `length` its tokens, those that
    outstanding rows sample included.
    """

    number: int
    tokens: list[int]
    issued: int = 0
    length: int = 0
    ended: bool = False
    rows: list[ConductedRow] = field(default_factory=list)
    parked: Place | None = None
    valid: int = 0
    is_half: bool = False
    """Only the layers held while others were missing have KV of it."""
    best: int = -1
    """Alternatives to each prompt token; -1: its log-probabilities are not asked for."""
    waits: int = 0
    """The transfer that its first row waits for."""


class Conductor:
    """The commands of a well-behaved core. `saved`: the transfer that wrote each region of the tier, by its stop."""

    def __init__(self, token_bytes: int, layers: int) -> None:
        self.sequences: dict[int, Known] = {}
        self.closed: set[int] = set()
        self.saved: dict[int, tuple[int, Known, int]] = {}
        self.landing: dict[int, Known | None] = {}
        self._token_bytes = token_bytes
        self._layers = layers
        self._opened = self._steps = self._tickets = self._layouts = 0
        self._layout = 0
        self._held = layers
        self._change: Remap | None = None
        self._next: list[RemapPhase] = []

    # --- commands ---

    def open(self, length: int, most: int, seed: int) -> Open:
        """A sequence of its own text."""
        text = [(seed * 31 + place * 7 + self._opened) % 400 + 1 for place in range(length)]
        return self._open(text, most, seed % 4 - 1)

    def compose(self, picks: Sequence[int], chunk: int) -> Step | None:
        """A step over some of the sequences that may have a row."""
        free = [each for each in self.sequences.values() if self._may_run(each)]
        chosen = [free[pick % len(free)] for pick in picks] if free else []
        chosen = list({each.number: each for each in chosen}.values())
        if not chosen:
            return None
        self._steps += 1
        waits = [each.waits for each in chosen if each.waits]
        rows = [self._issue(each, chunk) for each in chosen]
        step = _step(self._steps, [each.number for each in chosen], rows, waits, self._layout)
        if self.is_whole:
            return step
        return replace(step, layer_stop=self._held, hidden_out=self._steps)

    def interrupt(self, verdict: Verdict, picks: Sequence[int]) -> Interrupt:
        """Named sequences, or all if none is picked, up to the newest step. Rows of a step over some of the layers are
        discarded: the modelled engine parks none.
        """
        verdict = verdict if self.is_whole else Verdict.DISCARD
        running = [each.number for each in self.sequences.values() if each.rows]
        named = sorted({running[pick % len(running)] for pick in picks}) if running else []
        self._tickets += 1
        return Interrupt(verdict, i64(named), ticket=self._tickets, up_to_step=self._steps)

    def resume(self, pick: int) -> Resume | None:
        """Those parked rows that stand at one place."""
        places: dict[tuple[int, int, int], list[Known]] = {}
        for each in self.sequences.values():
            if each.parked is not None:
                places.setdefault((each.parked.row.step, each.parked.layer, each.parked.block), []).append(each)
        if not places:
            return None
        chosen = list(places.values())[pick % len(places)]
        self._steps += 1
        for each in chosen:
            assert each.parked is not None
            row = each.parked.row
            each.rows.append(ConductedRow(self._steps, row.start, row.stop, row.sample))
            self._count(each, row)
            each.parked = None
        return Resume(self._steps, i64(each.number for each in chosen))

    def discard(self, picks: Sequence[int]) -> Discard | None:
        """Parked rows, and sequences that have none."""
        some = list(self.sequences.values())
        chosen = [some[pick % len(some)] for pick in picks] if some else []
        for each in chosen:
            each.parked = None
        return Discard(i64(each.number for each in chosen)) if chosen else None

    def close(self, pick: int) -> Close | None:
        """Any sequence: a row of it in the running step is computed to its end, one in a queued step is dropped."""
        if not self.sequences:
            return None
        each = list(self.sequences.values())[pick % len(self.sequences)]
        self.closed.add(each.number)
        del self.sequences[each.number]
        return Close(each.number)

    @property
    def is_whole(self) -> bool:
        """Whether all layers are held."""
        return self._held == self._layers

    def remap(self, pick: int) -> list[Any]:
        """The next phase of a change, or its ABORT, and before it what a core does: no step is outstanding."""
        if self._change is None:
            self._layouts += 1
            layers = i32(range(1 + pick % (self._layers - 1) if self.is_whole else self._layers))
            self._next = list(AWAY if self.is_whole else BACK)
            self._change = Remap(self._layouts, self._next[0], layers)
        if pick % 5 == 0:
            return self._abort(pick)
        phase = self._next[0]
        closed: list[Any] = []
        if phase is RemapPhase.DROP_WEIGHTS:
            closed = [Discard(i64(self._forget_parked()))]
        elif phase is RemapPhase.RELEASE_KV:
            closed = self._close_all(lambda each: each.issued > 0)
        elif phase is RemapPhase.COMMIT:
            closed = self._close_all(lambda each: each.is_half)
        return [*closed, replace(self._change, phase=phase)]

    def _abort(self, pick: int) -> list[Any]:
        """Of a phase that has not been answered, if that is the first one; else between two phases."""
        assert self._change is not None
        begun = [replace(self._change, phase=RemapPhase.PREPARE)] if self._next[0] is RemapPhase.PREPARE else []
        return [*begun, replace(self._change, phase=RemapPhase.ABORT)]

    def _forget_parked(self) -> list[int]:
        parked = [each for each in self.sequences.values() if each.parked is not None]
        for each in parked:
            each.parked = None
        return [each.number for each in parked]

    def _close_all(self, which: Callable[[Known], bool]) -> list[Close]:
        gone = [each.number for each in self.sequences.values() if which(each)]
        for number in gone:
            self.closed.add(number)
            del self.sequences[number]
        return [Close(number) for number in gone]

    def save(self, pick: int) -> Transfer | None:
        """The valid KV of a prompt into a room of the host tier."""
        whole = [each for each in self.sequences.values() if not each.is_half and min(each.valid, len(each.tokens)) > 1]
        if not whole:
            return None
        each = whole[pick % len(whole)]
        self._tickets += 1
        stop = min(each.valid, len(each.tokens))
        self.saved[self._tickets] = (self._tickets, each, stop)
        self.landing[self._tickets] = None
        return self._transfer(TransferKind.SLAB_TO_HOST, each, stop, self._tickets)

    def restore(self, pick: int) -> tuple[Open, Transfer, int] | None:
        """A new sequence of a saved text whose first KV comes back; its rows wait for it. And what saved it."""
        landed = [entry for ticket, entry in self.saved.items() if ticket not in self.landing]
        if not landed:
            return None
        ticket, source, stop = landed[pick % len(landed)]
        opened = self._open(source.tokens, 5, source.best, stop)
        each = self.sequences[opened.sequence]
        self._tickets += 1
        each.waits, each.issued = self._tickets, min(stop, len(source.tokens) - 1)
        self.landing[self._tickets] = each
        return opened, self._transfer(TransferKind.HOST_TO_SLAB, each, stop, ticket), ticket

    def cancel(self, pick: int) -> CancelTransfer:
        """A transfer, under way or not."""
        return CancelTransfer(1 + pick % (self._tickets + 1))

    # --- answers ---

    def learn(self, event: Any) -> None:
        """Take an answer in."""
        if isinstance(event, Interrupted):
            self._interrupted(event)
        elif isinstance(event, StepDone):
            self._done(event)
        elif isinstance(event, TransferDone):
            self._landed(event)
        elif isinstance(event, RemapDone):
            self._remapped(event)
        elif isinstance(event, Unsupported) and event.what != "Remap":
            raise AssertionError(f"a core that keeps the contract is refused: {event}")

    def _interrupted(self, event: Interrupted) -> None:
        for number, step, layer, block, parked in zip(
            event.sequence, event.step, event.layer, event.block, event.parked, strict=True
        ):
            each = self.sequences.get(number)
            if each is None:
                continue  # it is closed
            (row,) = [row for row in each.rows if row.step == step]
            each.rows.remove(row)
            each.issued = min(each.issued, row.start)
            each.valid = min(each.valid, row.start)
            each.length -= row.sample
            if parked:
                each.parked = Place(row, layer, block)

    def _done(self, event: StepDone) -> None:
        finishes = dict(zip(event.sequence, event.finish, strict=True))
        for each in self.sequences.values():
            for row in [row for row in each.rows if row.step == event.step]:
                each.rows.remove(row)
                if each.number in event.dropped:
                    each.ended = True
                    continue
                each.valid = row.stop
                each.ended |= finishes.get(each.number, FinishReason.RUNNING) is not FinishReason.RUNNING

    def _remapped(self, event: RemapDone) -> None:
        self._held = len(event.layers)
        if event.phase in (RemapPhase.DROP_WEIGHTS, RemapPhase.COMMIT):
            self._layout = event.layout
        if event.phase is RemapPhase.ABORT:
            self._next = []
        else:
            del self._next[0]
        if not self._next:
            self._change = None

    def _landed(self, event: TransferDone) -> None:
        each = self.landing.pop(event.ticket)
        if event.status is not TransferStatus.OK:
            self.saved.pop(event.ticket, None)
        if each is not None and event.status is TransferStatus.OK and not each.rows:
            each.valid = max(each.valid, each.issued)

    # --- helpers ---

    def _open(self, text: list[int], most: int, best: int, scored: int = 0) -> Open:
        """`best` -1: without log-probabilities of the prompt, of which those up to `scored` are known."""
        self._opened += 1
        self.sequences[self._opened] = Known(self._opened, text, length=len(text), best=best)
        sampling = SamplingParams(temperature=0.0, prompt_logprobs=None if best < 0 else best)
        return Open(self._opened, i32(text), len(text), most, sampling, scored=scored)

    def _may_run(self, each: Known) -> bool:
        is_whole = not each.rows or all(row.step <= self._steps for row in each.rows)
        is_able = not each.ended and each.parked is None and each.issued < each.length
        if self.is_whole:
            return is_whole and is_able
        return is_whole and is_able and not each.waits and (each.is_half or not each.issued)

    def _issue(self, each: Known, chunk: int) -> ConductedRow:
        stop = min(each.length, each.issued + chunk)
        each.is_half |= not self.is_whole
        row = ConductedRow(self._steps, each.issued, stop, stop == each.length and self.is_whole)
        each.rows.append(row)
        self._count(each, row)
        return row

    def _count(self, each: Known, row: ConductedRow) -> None:
        each.issued = row.stop
        each.length += row.sample

    def _transfer(self, kind: TransferKind, each: Known, stop: int, room: int) -> Transfer:
        host = HostRegion(room, 1, room * ROOM_BYTES, stop * self._token_bytes)
        region = Region(0, self._layers, 0, stop)
        extents = (i64([each.number * SLOTS_EACH]), i64([stop]))
        moved = Transfer(self._tickets, kind, each.number, region, *extents, host=host, priority=Priority.KV)
        return replace(moved, layout=self._layout)


def _step(number: int, sequences: list[int], rows: list[ConductedRow], after: list[int], layout: int) -> Step:
    return Step(
        number,
        i64(sequences),
        i64(row.start for row in rows),
        i64(row.stop for row in rows),
        i8(row.sample for row in rows),
        i32(range(len(rows))),
        i64(sequence * SLOTS_EACH + row.start for sequence, row in zip(sequences, rows, strict=True)),
        i64(row.stop - row.start for row in rows),
        after=i64(after),
        layout=layout,
        preemptible=number % 2 == 0,
    )
