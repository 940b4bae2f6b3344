"""Computes small batches once before the first request.

The libraries underneath make a kernel when they meet a shape for the first time; on a CPU that takes longer than the
step itself, and batches of a few decode rows come in every size. Larger ones hold a prompt and are padded to few sizes
(`numerics.linear`). What is computed here has KV of its own.
"""

import torch

from dunlin.engine.attention.base import Safepoint, local_row
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.iteration import forward
from dunlin.engine.decoder.numerics import EXACT_ROWS, TILE_ROWS
from dunlin.engine.device.base import WARM_TOKENS


def warm_up(decoder: Decoder, safepoint: Safepoint, rows_max: int = EXACT_ROWS, tokens_max: int = WARM_TOKENS) -> None:
    """Run one step of each number of rows up to `rows_max`, every row the first token of a text; then one prompt of
    each size beyond, up to `tokens_max`, that linear layers are padded to.
    """
    tokens_max = min(tokens_max, decoder.config.max_positions)
    scratch = decoder.with_kv([layer.new_zeros(max(rows_max, tokens_max), *layer.shape[1:]) for layer in decoder.kv])
    for count in range(1, rows_max + 1):
        places = torch.arange(count)
        rows = [local_row(index, index + 1, index, 1) for index in range(count)]
        forward(scratch, DecoderBatch(places * 0, places * 0, places, rows, places), safepoint)
    for count in range(rows_max + TILE_ROWS, tokens_max + 1, TILE_ROWS):
        places = torch.arange(count)
        prompt = [local_row(0, count, 0, count)]
        forward(scratch, DecoderBatch(places * 0, places, places, prompt, places[-1:]), safepoint)
