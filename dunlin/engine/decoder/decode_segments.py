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


@dataclass(frozen=True, slots=True)
class StepBuffers:
    """What the segments of one number of rows read and write. `hidden` is both. `tables` by kind of attention."""

    hidden: Tensor
    turn: Tensor
    places: Tensor
    tiles: Tensor
    slots: Tensor
    tables: dict[AttentionKind, tuple[Tensor, Tensor]]


class DecodeSegments:
    """Owns the recorded segments of one decoder, and their buffers."""

    def __init__(self, decoder: Decoder, record: Record) -> None:
        self._decoder = decoder
        self._record = record
        self._buffers: dict[int, StepBuffers] = {}
        self._segments: dict[SegmentKey, Callable[[], None]] = {}
        self._runs: DecodeRuns | None = None
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
        for into, given in ((buffers.hidden, hidden), (buffers.turn, turn), (buffers.places, batch.slots)):
            into[: len(rows)] = given
            into[len(rows) :] = given[0]
        return StepSegments(self, buffers, len(rows), self._fill_tables(rows, buffers))

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
        tables = {kind: (rows.new_empty(count, 11), rows.new_empty(count)) for kind in self._kinds}
        return StepBuffers(
            hidden.new_empty(count, *hidden.shape[1:]),
            turn.new_empty(count, *turn.shape[1:]),
            rows.clone(),
            torch.stack((rows, torch.zeros_like(rows)), 1),
            torch.empty(count * SLOTS_PER_ROW, dtype=torch.int32, device=device),
            tables,
        )

    def _fill_tables(self, rows: LocalRows, buffers: StepBuffers) -> int:
        """Write the rows' tables and slots; returns into how many splits their keys are cut at most."""
        chosen = list(range(len(rows)))
        if self._runs is None or not self._runs.fit(rows, chosen):
            self._runs = DecodeRuns(rows, chosen)
        device = buffers.hidden.device
        run_at, run_slot = (each.to(device) for each in (self._runs.run_at, self._runs.run_slot))
        at = torch.tensor(rows.lengths).cumsum(0) - torch.tensor(rows.lengths)
        splits = 1
        for kind, (table, slot_at) in buffers.tables.items():
            filled = self._runs.table(rows, chosen, kind.window)
            table[: len(rows)].copy_(filled)
            table[len(rows) :] = table[0]
            table[:, 0] = table[:, 1] = buffers.tiles[:, 0]
            slot_at[: len(rows)].copy_(at)
            slot_at[len(rows) :] = slot_at[0]
            keys = max((filled[:, 8] - filled[:, 7]).tolist())
            splits = max(splits, split_count(keys, SIZES))
        # From each row's first key, so that layers of all kinds find slots at the same places.
        whole = self._runs.table(rows, chosen, 0).to(device)
        expand(whole, run_at, run_slot, at.to(device), buffers.slots, max(rows.lengths))
        return 1 << (splits - 1).bit_length()

    def _compute(self, key: SegmentKey, buffers: StepBuffers) -> None:
        decoder, hidden = self._decoder, buffers.hidden
        for layer in key.layers:
            kind = decoder.attention_kind(layer)
            table, slot_at = buffers.tables[kind]
            query = decoder.project(layer, hidden, buffers.turn, buffers.places)
            mixed = query.new_empty(query.shape)
            lse = query.new_empty(query.shape[:2], dtype=torch.float32)
            there = DeviceTable(table, slot_at, buffers.slots, buffers.tiles, buffers.tiles[:0], key.splits)
            launch(TileLauncher(kind, SIZES), there, query, decoder.kv[layer], mixed, lse)
            hidden = decoder.finish(layer, hidden, mixed)
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
        key = SegmentKey(range(layer, end), len(self._buffers.places), self._splits)
        self._segments.replay(key, self._buffers)
        return end, self._buffers.hidden[: self._rows]
