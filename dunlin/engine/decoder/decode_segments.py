"""Decode steps as recorded segments of layers: a step of decode rows is a few launches instead of hundreds.

A segment computes on buffers of its own, for a padded number of rows; which slots and how many keys a row has is read
from memory, so a recorded segment serves every step of that size. KV and weights stay at their addresses while layers
are dropped and come back, so a segment is valid whenever its layers are held. Padding rows repeat the first row.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dunlin.engine.attention.base import AttentionKind, LocalRows
from dunlin.engine.attention.paged import DecodeRuns
from dunlin.engine.attention.triton_paged import SIZES, DeviceTable, TileLauncher, expand, launch, split_count
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.host_copies import to_device, write

Record = Callable[[Callable[[], None]], Callable[[], None]]
SEGMENT_LAYERS = 8
"""Layers of a segment, from a multiple of it on."""
ROW_COUNTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of rows that segments are recorded for; a step of more is launched piece by piece."""
SLOTS_PER_ROW = 8192
"""Keys per row, on average, that the table of slots has room for; a step of more is launched piece by piece."""


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """A recorded segment: its layers, padded rows, and the splits of their keys at most."""

    layers: range
    rows: int
    splits: int


COLUMNS = 11


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """What the segments of one number of rows read and write. `hidden` is both. `given` int64 is what
    the host writes of a step, in one copy: the slots of the rows' new tokens, where the slots of their keys begin, and
    tables of the keys: of all, and of those that a kind of attention sees (`kinds`: which table is whose).
    """

    hidden: Tensor
    turn: Tensor
    given: Tensor
    tiles: Tensor
    slots: Tensor
    kinds: dict[AttentionKind, int]

    @property
    def places(self) -> Tensor:
        """`[rows]`"""
        return self.given[: self._rows]

    @property
    def slot_at(self) -> Tensor:
        """`[rows]`: of a row's first key."""
        return self.given[self._rows : 2 * self._rows]

    def table(self, kind: AttentionKind | None) -> Tensor:
        """`[rows, 11]` for a kind of attention; None: all keys."""
        at = 2 * self._rows + (0 if kind is None else self.kinds[kind]) * COLUMNS * self._rows
        return self.given[at : at + COLUMNS * self._rows].view(self._rows, COLUMNS)

    @property
    def _rows(self) -> int:
        return len(self.tiles)


class DecodeSegments:
    """Owns the recorded segments of one decoder, and their buffers."""

    def __init__(self, decoder: Decoder, record: Record) -> None:
        self._decoder = decoder
        self._record = record
        self._buffers: dict[int, StepBuffers] = {}
        self._segments: dict[SegmentKey, Callable[[], None]] = {}
        self._runs: DecodeRuns | None = None
        self._runs_there: tuple[Tensor, Tensor] | None = None
        self._kinds = {decoder.attention_kind(layer) for layer in range(decoder.config.layers)}

    def __repr__(self) -> str:
        return f"[segments: {len(self._segments)} | sizes: {sorted(self._buffers)}]"

    def begin(self, batch: DecoderBatch, hidden: Tensor, turn: Tensor) -> "StepSegments | None":
        """The step of `batch`, whose tokens have these `hidden` states and turn so; None: it cannot be computed by
        segments.
        """
        rows = batch.rows
        if not isinstance(rows, LocalRows) or len(batch.slots) != len(rows) or batch.adapters is not None:
            return None
        padded = next((count for count in ROW_COUNTS if count >= len(rows)), None)
        if padded is None or sum(rows.lengths) > padded * SLOTS_PER_ROW or self._decoder.config.experts is not None:
            return None
        buffers = self._buffers.get(padded)
        if buffers is None:
            buffers = self._buffers[padded] = self._make_buffers(padded, hidden, turn)
        for into, given in ((buffers.hidden, hidden), (buffers.turn, turn)):
            into[: len(rows)] = given
            into[len(rows) :] = given[0]
        return StepSegments(self, buffers, len(rows), self._fill_tables(rows, batch.slots, buffers))

    def replay(self, key: SegmentKey, buffers: StepBuffers) -> None:
        """Compute a segment, recorded first if it is new."""
        segment = self._segments.get(key)
        if segment is None:
            before = buffers.hidden.clone()
            segment = self._segments[key] = self._record(lambda: self._compute(key, buffers))
            buffers.hidden.copy_(before)  # recording computes, too
        segment()

    def _make_buffers(self, count: int, hidden: Tensor, turn: Tensor) -> StepBuffers:
        device = hidden.device
        rows = torch.arange(count, device=device)
        return StepBuffers(
            hidden.new_empty(count, *hidden.shape[1:]),
            turn.new_empty(count, *turn.shape[1:]),
            rows.new_empty(count * (2 + COLUMNS * (1 + len(self._kinds)))),
            torch.stack((rows, torch.zeros_like(rows)), 1),
            torch.empty(count * SLOTS_PER_ROW, dtype=torch.int32, device=device),
            {kind: at for at, kind in enumerate(sorted(self._kinds, key=repr), 1)},
        )

    def _fill_tables(self, rows: LocalRows, slots: Tensor, buffers: StepBuffers) -> int:
        """Write the rows' tables and slots; returns into how many splits their keys are cut at most."""
        chosen, count = list(range(len(rows))), len(buffers.tiles)
        if self._runs is None or self._runs_there is None or not self._runs.fit(rows, chosen):
            self._runs = DecodeRuns(rows, chosen)
            device = buffers.hidden.device
            self._runs_there = to_device(self._runs.run_at, device), to_device(self._runs.run_slot, device)
        lengths = torch.tensor(rows.lengths)
        parts, splits = [lengths.cumsum(0) - lengths, self._runs.table(rows, chosen, 0)], 1
        for kind in buffers.kinds:
            parts.append(self._runs.table(rows, chosen, kind.window))
            splits = max(splits, split_count(int((parts[-1][:, 8] - parts[-1][:, 7]).max()), SIZES))
        padded = [_padded(part, count) for part in parts]
        for table in padded[1:]:
            table[:, 0] = table[:, 1] = torch.arange(count)
        write(buffers.given[count:], torch.cat([part.view(-1) for part in padded]))
        buffers.places[: len(rows)] = slots
        buffers.places[len(rows) :] = slots[0]
        # From each row's first key, so that layers of all kinds find slots at the same places.
        expand(buffers.table(None)[: len(rows)], *self._runs_there, buffers.slot_at, buffers.slots, max(rows.lengths))
        return 1 << (splits - 1).bit_length()

    def _compute(self, key: SegmentKey, buffers: StepBuffers) -> None:
        decoder, hidden = self._decoder, buffers.hidden
        for layer in key.layers:
            kind = decoder.attention_kind(layer)
            query = decoder.project(layer, hidden, buffers.turn, buffers.places)
            mixed = query.new_empty(query.shape)
            lse = query.new_empty(query.shape[:2], dtype=torch.float32)
            there = DeviceTable(
                buffers.table(kind), buffers.slot_at, buffers.slots, buffers.tiles, buffers.tiles[:0], key.splits
            )
            launch(TileLauncher(kind, SIZES), there, query, decoder.kv[layer], mixed, lse)
            hidden = decoder.finish(layer, hidden, mixed)
        if hidden is not buffers.hidden:
            buffers.hidden.copy_(hidden)


class StepSegments:
    """One step of `rows` rows on its way through segments."""

    def __init__(self, segments: DecodeSegments, buffers: StepBuffers, rows: int, splits: int) -> None:
        self._segments = segments
        self._buffers = buffers
        self._rows = rows
        self._splits = splits

    def run(self, layer: int, stop: int) -> tuple[int, Tensor]:
        """Compute from `layer` to the end of its segment, or to `stop`; returns the next layer, and the hidden states
        before it.
        """
        end = min((layer // SEGMENT_LAYERS + 1) * SEGMENT_LAYERS, stop)
        key = SegmentKey(range(layer, end), len(self._buffers.tiles), self._splits)
        self._segments.replay(key, self._buffers)
        return end, self._buffers.hidden[: self._rows]


def _padded(rows: Tensor, count: int) -> Tensor:
    """As many rows as `count`: the first one again behind the last."""
    return torch.cat((rows, rows[:1].expand(count - len(rows), *rows.shape[1:])))
