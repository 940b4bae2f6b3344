"""One text through a checkpoint's decoder, in two steps."""

import os
from pathlib import Path

import torch
from torch import Tensor

from dunlin.engine.attention.base import local_row
from dunlin.engine.decoder.decoder import DecoderBatch
from dunlin.engine.decoder.iteration import forward
from dunlin.engine.decoder.loading.loader import load_model
from dunlin.engine.decoder.numerics import Numerics


def logits_of(directory: Path, tokens: list[int], numerics: Numerics) -> Tensor:
    """Logits `[tokens, vocab]` of as many tokens as the model takes; the last third of them come in a second step.

    :raises ModelError: the checkpoint is refused.
    """
    loaded = load_model(directory, "float32", 1 << 22, numerics, os.memfd_create("one-text"))
    count = min(len(tokens), loaded.config.max_positions)
    found = []
    for first, stop in ((0, count * 2 // 3), (count * 2 // 3, count)):
        places = torch.arange(first, stop)
        rows = [local_row(0, stop - first, 0, stop)]
        batch = DecoderBatch(torch.tensor(tokens[first:stop]), places, places, rows, places - first)
        found.append(forward(loaded.decoder, batch))
    loaded.arena.close()
    return torch.cat(found)
