"""Whether decode steps go by their kernel, and of how many rows: where there is one, it agrees with the decoder here,
and it is the faster way.
"""

from array import array
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dunlin.engine.attention.base import LocalRows
from dunlin.engine.attention.native.library import KernelUnavailable
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.iteration import Iteration
from dunlin.engine.decoder.layer_segments import BeginSegments
from dunlin.engine.decoder.native.decode_steps import DecodeKernel, load_decode_kernel
from dunlin.engine.decoder.native.trial import least_s

CHECKED = (300, 5)
"""Keys of the rows by which the kernel is checked: more than a task of attention has, and few."""
TOLERANCE = 0.02
"""Of the difference to the length: bf16 rounds to 1/256."""
TRIED_ROWS = (64, 32, 16, 8)
"""Of the steps that both ways are timed with; the kernel computes as many at most as it is not the slower way for."""
TRIED_KEYS = 48
TURNS = 3


def choose_decode_steps(decoder: Decoder, beat: Callable[[], object] | None = None) -> BeginSegments:
    """The kernel, where it was built, can run here, and computes a layer as the decoder does, for as many rows as it is
    no slower for; else: none.
    """
    try:
        kernel = load_decode_kernel(decoder)
    except KernelUnavailable:
        return _refuse
    if not agrees(decoder):
        return _refuse
    kernel.most_rows = rows_worth_it(kernel, decoder)
    return kernel.begin


@torch.inference_mode()
def agrees(decoder: Decoder) -> bool:
    """Compute one layer of two rows both ways, with KV of its own, and logits where it is the last one."""
    layer = _LayerTrial(decoder, CHECKED)
    ways = zip(layer.by_parts(), layer.by_kernel(), strict=True)
    return all(bool((found - wanted).norm() <= TOLERANCE * wanted.norm()) for wanted, found in ways)


@torch.inference_mode()
def rows_worth_it(kernel: DecodeKernel, decoder: Decoder) -> int:
    """The most rows of a step, of those that its kernel takes, for which it needs no longer than the decoder layer by
    layer; 0 where there are none.
    """
    for rows in TRIED_ROWS:
        if rows > kernel.most_rows:
            continue
        layer = _LayerTrial(decoder, [TRIED_KEYS] * rows)
        by_kernel_s, by_parts_s = least_s((layer.by_kernel, layer.by_parts), TURNS)
        if by_kernel_s <= by_parts_s:
            return rows
    return 0


class _LayerTrial:
    """The last layer held, of decode rows with so many keys, on random hidden states and KV of its own; with logits
    where it is the model's last.
    """

    def __init__(self, decoder: Decoder, keys: Sequence[int]) -> None:
        random = torch.Generator().manual_seed(1)
        self._layer = decoder.held_runs[-1].stop - 1
        tokens = torch.randint(0, decoder.config.vocab, (len(keys),), generator=random)
        lengths = torch.tensor(keys)
        first = (lengths.cumsum(0) - lengths).tolist()
        runs = [(array("q", [0]), array("q", [slot])) for slot in first]
        rows = LocalRows(list(range(len(keys))), list(range(1, len(keys) + 1)), list(keys), runs)
        self._batch = DecoderBatch(tokens, lengths - 1, lengths.cumsum(0) - 1, rows, lengths.new_empty(0))
        self._hidden = torch.randn(len(keys), decoder.config.hidden, generator=random).bfloat16()
        kv = torch.randn(sum(keys), *decoder.kv[0].shape[1:], generator=random).bfloat16()
        self._decoder = decoder.with_kv([kv] * len(decoder.kv))
        self._begin = load_decode_kernel(self._decoder).begin

    def by_kernel(self) -> list[Tensor]:
        """The hidden states after the layer, and logits."""
        return self._compute(self._begin)

    def by_parts(self) -> list[Tensor]:
        """The same without the kernel of decode steps."""
        return self._compute(_refuse)

    def _compute(self, begin: BeginSegments) -> list[Tensor]:
        layer, hidden = range(self._layer, self._layer + 1), self._hidden.clone()
        iteration = Iteration(self._decoder, self._batch, layer, hidden=hidden, begin_segments=begin)
        while not iteration.done:
            iteration.advance()
        if layer.stop < self._decoder.config.layers:
            return [iteration.hidden.float()]
        return [iteration.hidden.float(), iteration.logits(range(len(hidden)))]


def _refuse(batch: DecoderBatch, hidden: Tensor | None) -> None:
    """No step goes by the kernel."""
