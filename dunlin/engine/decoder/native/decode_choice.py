"""Whether decode steps go by their kernel: where there is one and it agrees with the decoder here."""

from array import array

import torch
from torch import Tensor

from dunlin.engine.attention.base import LocalRows
from dunlin.engine.attention.native.library import KernelUnavailable
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.iteration import BeginSegments, Iteration
from dunlin.engine.decoder.native.decode_steps import load_decode_kernel

CHECKED = (300, 5)
"""Keys of the rows by which the kernel is checked: more than a task of attention has, and few."""
TOLERANCE = 0.02
"""Of the difference to the length: bf16 rounds to 1/256."""


def choose_decode_steps(decoder: Decoder) -> BeginSegments:
    """The kernel, where it was built, can run here, and computes a layer as the decoder does; else: none."""
    try:
        kernel = load_decode_kernel(decoder)
    except KernelUnavailable:
        return _refuse
    return kernel.begin if agrees(decoder) else _refuse


@torch.inference_mode()
def agrees(decoder: Decoder) -> bool:
    """Compute one layer of two rows both ways, with KV of its own."""
    layers, random = decoder.held_runs[0], torch.Generator().manual_seed(1)
    keys = torch.randn(sum(CHECKED), *decoder.kv[0].shape[1:], generator=random).bfloat16()
    tokens = torch.randint(0, decoder.config.vocab, (len(CHECKED),), generator=random)
    runs = [(array("q", [0]), array("q", [slot])) for slot in (0, CHECKED[0])]
    rows = LocalRows([0, 1], [1, 2], list(CHECKED), runs)
    lengths = torch.tensor(CHECKED)
    batch = DecoderBatch(tokens, lengths - 1, lengths.cumsum(0) - 1, rows, lengths.new_empty(0))
    results = []
    for begin in (_refuse, None):
        scratch = decoder.with_kv([keys.clone()] * len(decoder.kv))
        chosen = begin or load_decode_kernel(scratch).begin
        first = range(layers.start, layers.start + 1)
        iteration = Iteration(scratch, batch, first, hidden=_random_hidden(decoder), begin_segments=chosen)
        while not iteration.done:
            iteration.advance()
        results.append(iteration.hidden.float())
    wanted, found = results
    return bool((found - wanted).norm() <= TOLERANCE * wanted.norm())


def _random_hidden(decoder: Decoder) -> Tensor:
    random = torch.Generator().manual_seed(2)
    return torch.randn(len(CHECKED), decoder.config.hidden, generator=random).bfloat16()


def _refuse(batch: DecoderBatch, hidden: Tensor, turn: Tensor) -> None:
    """No step goes by the kernel."""
