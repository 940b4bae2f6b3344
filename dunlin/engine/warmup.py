"""Computes small batches once before the first request.

The libraries underneath make a kernel when they meet a shape for the first time; on a CPU that takes longer than the
step itself, and batches of a few decode rows come in every size. What is computed here has KV of its own.
"""

import torch

from dunlin.engine.attention.base import Past, Row, Safepoint
from dunlin.engine.model import Batch, Decoder

ROWS_MAX = 32


def warm_up(decoder: Decoder, safepoint: Safepoint, rows_max: int = ROWS_MAX) -> None:
    """Run one step of each number of rows up to `rows_max`, every row the first token of a text."""
    scratch = decoder.with_kv([layer.new_zeros(rows_max, *layer.shape[1:]) for layer in decoder.kv])
    for count in range(1, rows_max + 1):
        places = torch.arange(count)
        rows = [Row(index, index + 1, Past(1, index, None)) for index in range(count)]
        scratch.forward(Batch(places * 0, places * 0, places, rows, places), safepoint)
