"""Computes small batches once before the first request.

The libraries underneath make a kernel when they meet a shape for the first time; on a CPU that takes longer than the
step itself, and batches of a few decode rows come in every size. Larger ones hold a prompt and are padded to few sizes
(`numerics.linear`). On a GPU a kernel is compiled for each of few kinds of work, whatever its size.
"""

from collections.abc import Sequence

import torch

from dunlin.engine.attention.base import BatchRow, Safepoint, local_row
from dunlin.engine.attention.spans import slot_run
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.iteration import forward
from dunlin.engine.decoder.sampling.sampling import SamplingInput
from dunlin.engine.device.warm_steps import WarmRow, WarmStep
from dunlin.engine.process.scratch import scratch_decoder
from dunlin.messages.types import SamplingParams

_GREEDY = SamplingInput(SamplingParams(temperature=0.0), [], 0)


def warm_up(decoder: Decoder, safepoint: Safepoint, steps: Sequence[WarmStep]) -> None:
    """Compute these steps in the first layer of each kind, and choose the tokens that follow. Rows too long for the
    model are left out.
    """
    most = decoder.config.max_positions
    fitting = [[row for row in step if row.keys <= most] for step in steps]
    slots = max((sum(row.keys for row in step) for step in fitting), default=0)
    scratch = scratch_decoder(decoder, slots)
    for step in fitting:
        if step:
            _compute(scratch, step, safepoint)


def _compute(decoder: Decoder, step: Sequence[WarmRow], safepoint: Safepoint) -> None:
    rows, positions, slots, start, first = [], [], [], 0, 0
    for row in step:
        rows.append(_batch_row(row, start, first))
        positions.append(torch.arange(row.keys - row.tokens, row.keys))
        slots.append(positions[-1] + first)
        start, first = start + row.tokens, first + row.keys
    places = torch.cat(positions)
    sampled = torch.tensor([row.stop - 1 for row in rows])
    logits = forward(decoder, DecoderBatch(places * 0, places, torch.cat(slots), rows, sampled), safepoint)
    decoder.numerics.choose(logits, [_GREEDY] * len(rows)).read()


def _batch_row(row: WarmRow, start: int, slot: int) -> BatchRow:
    """From packed token `start` on, over keys in slots from `slot` on."""
    if not row.is_cut:
        return local_row(start, start + row.tokens, slot, row.keys)
    before = row.keys - row.tokens
    spans = slot_run(range(before), slot), slot_run(range(before, row.keys), slot + before)
    return BatchRow(start, start + row.tokens, range(before, row.keys), spans)
