"""Steps of up to so many tokens as recorded segments of layers: a few launches instead of hundreds.

A segment computes on buffers of its own, for a padded size of step. Of decode rows it has several layers; which slots
and how many keys a row has is read from memory, so it serves every step of that size. Of other steps, see
`recorded_linear.py`. KV and weights stay at their addresses while layers are dropped and come back, so a segment is
valid whenever its layers are held. Between two segments rows may leave.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dunlin.engine.attention.base import LocalRows
from dunlin.engine.attention.tile_sizes import SIZES
from dunlin.engine.attention.triton_tiles import DeviceTable, TileLauncher, launch
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.gpu.recorded_linear import MixedSegments, RecordedLinear
from dunlin.engine.decoder.gpu.recorded_sizes import MIXED_TOKENS
from dunlin.engine.decoder.gpu.recordings import Recordings
from dunlin.engine.decoder.gpu.step_buffers import (
    MOST_SLOTS,
    DecodeSize,
    StepBuffers,
    StepScratch,
    StepTabler,
    usual_decode_sizes,
)
from dunlin.engine.decoder.layer_segments import LayerSegments, Record

SEGMENT_LAYERS = 8
"""Layers of a segment of decode rows, from a multiple of it on."""


class RecordedSegments:
    """Owns the recorded segments of one decoder, and their buffers by number of tokens."""

    def __init__(self, decoder: Decoder, record: Record) -> None:
        self._decoder = decoder
        self._tabler = StepTabler(decoder)
        self._buffers: dict[int, StepBuffers] = {}
        self._recordings = Recordings(record)
        self._scratch: StepScratch | None = None
        self._linear = RecordedLinear(decoder, record)

    def __repr__(self) -> str:
        return f"[segments: {len(self._recordings)} | of mixed steps: {len(self._linear)} | {sorted(self._buffers)}]"

    def begin(self, batch: DecoderBatch, hidden: Tensor | None) -> LayerSegments | None:
        """See `BeginSegments`."""
        rows = batch.rows
        if batch.adapters is not None or not self._can_record or not isinstance(rows, LocalRows) or not rows:
            return None
        tables = self._tabler.tables(rows)
        size = tables.tokens if tables.decode is None else tables.decode.rows
        if size is None or sum(rows.lengths) > MOST_SLOTS:
            return None
        hidden = self._decoder.embed(batch.tokens) if hidden is None else hidden
        turn, count = self._decoder.angles(batch.positions), len(batch.slots)
        buffers = self._buffers_of(size, hidden, turn)
        runs = self._tabler.runs(hidden.device)
        buffers.fill(batch, hidden, turn, tables, runs)
        if tables.decode is None:
            return MixedSegments(self._linear, buffers, tables, count, runs)
        return DecodeSegments(self, tables.decode, buffers.hidden[:count])

    @torch.inference_mode()
    def warm_up(self, beat: Callable[[], object]) -> None:
        """Record the usual sizes before they are needed; `beat` is called after each segment."""
        if not self._can_record:
            return
        # The largest first: recordings share their memory, and what is there serves the smaller ones.
        for tokens in reversed(MIXED_TOKENS):
            self._linear.warm_up(self._empty_step(tokens), beat)
        for size in reversed(usual_decode_sizes()):
            hidden = self._empty_step(size.rows).hidden
            for layers in self._decoder.held_runs:
                layer, step = layers.start, DecodeSegments(self, size, hidden[:1])
                while layer < layers.stop:
                    layer = step.run(layer, layers.stop)
                    beat()

    @property
    def _can_record(self) -> bool:
        """Whether the decoder's layers compute the same for a padded step."""
        return self._decoder.config.experts is None and self._decoder.numerics.place is not None

    def _buffers_of(self, tokens: int, hidden: Tensor, turn: Tensor) -> StepBuffers:
        if tokens not in self._buffers:
            scratch = self._scratch = self._scratch or StepScratch(self._decoder)
            self._buffers[tokens] = StepBuffers(
                tokens, self._tabler.kinds, self._tabler.wide_queries, hidden, turn, scratch
            )
        return self._buffers[tokens]

    def _empty_step(self, tokens: int) -> StepBuffers:
        """Buffers with padding alone."""
        token = torch.zeros(1, dtype=torch.int64, device=self._decoder.device)
        hidden, turn = self._decoder.embed(token), self._decoder.angles(token)
        buffers = self._buffers_of(tokens, hidden, turn)
        buffers.clear()
        buffers.hidden.copy_(hidden.expand_as(buffers.hidden))
        buffers.turn.copy_(turn.expand_as(buffers.turn))
        return buffers

    def run(self, layers: range, size: DecodeSize) -> None:
        """Compute a segment of decode rows, recorded first if it is new."""
        buffers, kinds = self._buffers[size.rows], frozenset(map(self._decoder.attention_kind, layers))
        self._recordings.run(
            (layers, size), (size, kinds), buffers.hidden, lambda: self._compute(layers, size, buffers)
        )

    def _compute(self, layers: range, size: DecodeSize, buffers: StepBuffers) -> None:
        decoder, hidden = self._decoder, buffers.hidden
        narrow, wide, slots = buffers.narrow[: size.rows], buffers.wide[:0], buffers.scratch.slots
        for layer in layers:
            kind = decoder.attention_kind(layer)
            query = decoder.project(layer, hidden, buffers.turn, buffers.places)
            mixed = query.new_empty(query.shape)
            lse = query.new_empty(query.shape[:2], dtype=torch.float32)
            there = DeviceTable(buffers.tables[kind], buffers.slot_at, slots, narrow, wide, size.splits)
            launch(TileLauncher(kind, SIZES), there, query, decoder.kv[layer], mixed, lse)
            hidden = decoder.finish(layer, hidden, mixed)
        if hidden is not buffers.hidden:
            buffers.hidden.copy_(hidden)


class DecodeSegments:
    """One step of decode rows on its way through segments. See `LayerSegments`."""

    def __init__(self, segments: RecordedSegments, size: DecodeSize, hidden: Tensor) -> None:
        """`hidden`: the part of the buffer that is the step's."""
        self.hidden = hidden
        self._segments = segments
        self._size = size

    def run(self, layer: int, stop: int) -> int:
        """Compute from `layer` to the end of its segment, or to `stop`; returns the next layer."""
        end = min((layer // SEGMENT_LAYERS + 1) * SEGMENT_LAYERS, stop)
        self._segments.run(range(layer, end), self._size)
        return end

    def logits(self, places: Sequence[int]) -> Tensor | None:
        """Not computed."""

    def greatest(self, places: Sequence[int]) -> None:
        """Not chosen."""
