"""Makes the iterations of steps: how their rows are packed, and how their work is cut."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.host_copies import to_device
from dunlin.engine.decoder.iteration import Iteration
from dunlin.engine.decoder.layer_segments import BeginSegments
from dunlin.engine.decoder.numerics import Numerics
from dunlin.engine.decoder.piece_sizes import PieceSizes
from dunlin.engine.decoder.row_progress import RowProgress, WorkCount
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.peers.exchange import StepExchange
from dunlin.engine.execution.step_batch import StepRow, pack_rows, row_adapters


class StepIterations:
    """Over one decoder; owns what was learnt of the pieces of work. `work_clock`: as `EngineRunner`'s.

    `begin_segments` is for steps of decode rows that no row leaves, and for others if `rows_may_leave_segments`.
    """

    def __init__(
        self,
        decoder: Decoder,
        limits: RunnerLimits,
        work_clock: Callable[[], float],
        begin_segments: BeginSegments | None = None,
        rows_may_leave_segments: bool = False,
    ) -> None:
        self.count = WorkCount()
        self._decoder = decoder
        self._begin_segments = begin_segments
        self._rows_may_leave_segments = rows_may_leave_segments
        self._sizes = _piece_sizes(decoder.numerics, limits, work_clock)

    def make(
        self,
        rows: Sequence[StepRow],
        layers: range,
        hidden: Tensor | None = None,
        resumed: Sequence[RowProgress] = (),
        exchange: StepExchange | None = None,
        may_leave: bool = True,
        tokens: Tensor | None = None,
    ) -> Iteration:
        """The rows' iteration; `hidden`, `resumed` and `exchange` as for `Iteration`. `tokens`: on the device, those
        that the host does not know yet, in the order of the rows.
        """
        is_decode = all(row.is_decode for row in rows)
        batch = pack_rows(rows, self._decoder.numerics.attention)
        if self._decoder.adapters:
            batch = replace(batch, adapters=row_adapters(rows))
        if tokens is not None and len(tokens):
            batch = _with_unread(batch.to(self._decoder.device), rows, tokens)
        is_fixed = (is_decode and not may_leave) or self._rows_may_leave_segments
        segments, sizes = self._begin_segments if is_fixed else None, None if is_decode else self._sizes
        return Iteration(self._decoder, batch, layers, sizes, hidden, resumed, self.count, exchange, segments)


def _with_unread(batch: DecoderBatch, rows: Sequence[StepRow], tokens: Tensor) -> DecoderBatch:
    """The batch with the tokens that were not read."""
    if len(tokens) == len(batch.tokens):
        return replace(batch, tokens=tokens)
    stops = accumulate(row.tokens for row in rows)
    places = torch.tensor([stop - 1 for row, stop in zip(rows, stops, strict=True) if row.is_unread])
    return replace(batch, tokens=batch.tokens.index_copy(0, to_device(places, tokens.device), tokens))


def _piece_sizes(numerics: Numerics, limits: RunnerLimits, clock: Callable[[], float]) -> PieceSizes:
    columns = numerics.piece_columns
    if columns is not None and limits.piece_columns is not None:
        columns = limits.piece_columns
    if numerics.has_fixed_pieces:
        return PieceSizes(0.0, clock, limits.piece_tokens or numerics.piece_rows, columns)
    return PieceSizes(limits.response_s, clock, limits.piece_tokens or numerics.piece_rows, columns)
