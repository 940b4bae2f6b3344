"""Small steps as recorded segments of layers: a few launches instead of hundreds.

A segment computes on buffers of its own, for a padded size of step; which slots and how many keys a row has is read
from memory, so a recorded segment serves every step of that size. KV and weights stay at their addresses while layers
are dropped and come back, so a segment is valid whenever its layers are held. Between two segments rows may leave.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dunlin.engine.attention.base import AttentionKind, LocalRows
from dunlin.engine.attention.triton_paged import SIZES, DeviceTable, TileLauncher, launch
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.layer_segments import Record
from dunlin.engine.decoder.step_buffers import MOST_SLOTS, StepBuffers, StepSize, StepTabler


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """A recorded segment."""

    layers: range
    size: StepSize


class RecordedSegments:
    """Owns the recorded segments of one decoder, and their buffers by number of tokens."""

    def __init__(self, decoder: Decoder, record: Record) -> None:
        self._decoder = decoder
        self._record = record
        self._tabler = StepTabler(decoder)
        self._buffers: dict[int, StepBuffers] = {}
        self._slots = torch.empty(MOST_SLOTS if self._can_record else 0, dtype=torch.int32, device=decoder.device)
        self._segments: dict[SegmentKey, Callable[[], None]] = {}
        self._known: set[tuple[StepSize, frozenset[AttentionKind]]] = set()

    def __repr__(self) -> str:
        return f"[segments: {len(self._segments)} | sizes: {sorted(self._buffers)}]"

    def begin(self, batch: DecoderBatch, hidden: Tensor | None) -> "StepSegments | None":
        """See `BeginSegments`."""
        rows = batch.rows
        if batch.adapters is not None or not self._can_record or not isinstance(rows, LocalRows) or not rows:
            return None
        tables = self._tabler.tables(rows)
        if tables.size is None:
            return None
        hidden = self._decoder.embed(batch.tokens) if hidden is None else hidden
        turn = self._decoder.angles(batch.positions)
        buffers = self._buffers_of(tables.size.tokens, hidden, turn)
        if sum(rows.lengths) > len(buffers.slots):
            return None
        buffers.fill(batch, hidden, turn, tables, self._tabler.runs(hidden.device))
        return StepSegments(self, tables.size, buffers.hidden[: len(batch.slots)])

    @torch.inference_mode()
    def warm_up(self, beat: Callable[[], object]) -> None:
        """Record the usual sizes before they are needed; `beat` is called after each segment."""
        token = torch.zeros(1, dtype=torch.int64, device=self._decoder.device)
        hidden, turn = self._decoder.embed(token), self._decoder.angles(token)
        for size in self._tabler.usual_sizes() if self._can_record else ():
            buffers = self._buffers_of(size.tokens, hidden, turn)
            buffers.clear()
            buffers.hidden.copy_(hidden.expand_as(buffers.hidden))
            buffers.turn.copy_(turn.expand_as(buffers.turn))
            for layers in self._decoder.held_runs:
                layer, step = layers.start, StepSegments(self, size, buffers.hidden[:1])
                while layer < layers.stop:
                    layer = step.run(layer, layers.stop)
                    beat()

    @property
    def _can_record(self) -> bool:
        """Whether the decoder's layers compute the same for a padded step."""
        return self._decoder.config.experts is None and self._decoder.numerics.place is not None

    def _buffers_of(self, tokens: int, hidden: Tensor, turn: Tensor) -> StepBuffers:
        if tokens not in self._buffers:
            self._buffers[tokens] = StepBuffers(tokens, self._tabler.kinds, hidden, turn, self._slots)
        return self._buffers[tokens]

    def run(self, layers: range, size: StepSize) -> None:
        """Compute a segment, recorded first if it is new."""
        key, buffers = SegmentKey(layers, size), self._buffers[size.tokens]
        segment = self._segments.get(key)
        if segment is None:
            alike = size, frozenset(map(self._decoder.attention_kind, layers))
            before = buffers.hidden.clone()
            segment = self._segments[key] = self._record(lambda: self._compute(key, buffers), alike in self._known)
            buffers.hidden.copy_(before)  # recording may compute, too
            self._known.add(alike)
        segment()

    def _compute(self, key: SegmentKey, buffers: StepBuffers) -> None:
        decoder, hidden, size = self._decoder, buffers.hidden, key.size
        narrow, wide = buffers.narrow[: size.narrow], buffers.wide[: size.wide]
        for layer in key.layers:
            kind = decoder.attention_kind(layer)
            query = decoder.project(layer, hidden, buffers.turn, buffers.places)
            mixed = query.new_empty(query.shape)
            lse = query.new_empty(query.shape[:2], dtype=torch.float32)
            there = DeviceTable(buffers.tables[kind], buffers.slot_at, buffers.slots, narrow, wide, size.splits)
            launch(TileLauncher(kind, SIZES), there, query, decoder.kv[layer], mixed, lse)
            hidden = decoder.finish(layer, hidden, mixed)
        if hidden is not buffers.hidden:
            buffers.hidden.copy_(hidden)


class StepSegments:
    """One step on its way through segments. See `LayerSegments`."""

    def __init__(self, segments: RecordedSegments, size: StepSize, hidden: Tensor) -> None:
        """`hidden`: the part of the buffer that is the step's."""
        self.hidden = hidden
        self._segments = segments
        self._size = size

    def run(self, layer: int, stop: int) -> int:
        """Compute from `layer` to the end of its segment, or to `stop`; returns the next layer."""
        layers = self._size.layers
        end = min((layer // layers + 1) * layers, stop)
        self._segments.run(range(layer, end), self._size)
        return end

    def logits(self, places: Sequence[int]) -> None:
        """Not computed."""

    def greatest(self, places: Sequence[int]) -> None:
        """Not chosen."""
