"""The test at the start: the model computes finite numbers, and the deterministic mode is deterministic here.

Libraries choose kernels by shape, alignment, threads and processor, so determinism is checked where it runs. The
tests have KV of their own: the slab may hold what an earlier process left.
"""

import torch

from dunlin.engine.attention.base import local_row
from dunlin.engine.attention.spans import slot_span
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.iteration import forward
from dunlin.engine.process.scratch import scratch_decoder

LENGTH = 90
CUT = 37


def has_finite_logits(decoder: Decoder) -> bool:
    """Whether the logits after a short text are neither NaN nor infinite: of all layers, for any may be damaged."""
    length = min(LENGTH, decoder.config.max_positions)
    one = decoder.kv[0].new_zeros(length, *decoder.kv[0].shape[1:])  # each layer writes all of it before it reads
    scratch = decoder.with_kv([one] * len(decoder.kv))
    logits = _compute(scratch, [(_text(decoder, length), 0, length, torch.arange(length))])
    return bool(torch.isfinite(logits).all())


def determinism_self_test(decoder: Decoder) -> torch.Tensor | None:
    """The last logits of one text after a layer of each kind, if they have the same bits token by token, in two chunks
    beside other rows, and in scattered slots; else None.
    """
    length = min(LENGTH, decoder.config.max_positions)
    cut = max(min(CUT, length - 1), 1)
    scratch = scratch_decoder(decoder, 3 * length)
    tokens = _text(decoder, length)
    straight, scattered = torch.arange(length), torch.arange(2 * length - 1, length - 1, -1)
    for at in range(length):
        alone = _compute(scratch, [(tokens, at, at + 1, straight)])
    if cut >= length:  # a text of one token has no chunks
        return alone[0]
    _compute(scratch, [(tokens, 0, cut, scattered), (tokens, 0, length, straight + 2 * length)])
    parts = [(tokens, length - 1, length, straight + 2 * length), (tokens, cut, length, scattered)]
    together = _compute(scratch, parts)
    return alone[0] if torch.equal(alone[0], together[0]) and torch.equal(alone[0], together[1]) else None


def _text(decoder: Decoder, length: int) -> torch.Tensor:
    return torch.randint(0, decoder.config.vocab, (length,), generator=torch.Generator().manual_seed(0))


def _compute(decoder: Decoder, parts: list[tuple[torch.Tensor, int, int, torch.Tensor]]) -> torch.Tensor:
    """One step over (tokens, start, stop, slots by position)."""
    rows, end = [], 0
    for _, start, stop, slots in parts:
        rows.append(local_row(end, end + stop - start, slot_span(range(stop), slots[:stop].tolist())))
        end += stop - start
    tokens = torch.cat([tokens[start:stop] for tokens, start, stop, _ in parts])
    positions = torch.cat([torch.arange(start, stop) for _, start, stop, _ in parts])
    places = torch.cat([slots[start:stop] for _, start, stop, slots in parts])
    sampled = torch.tensor([row.stop - 1 for row in rows])
    return forward(decoder, DecoderBatch(tokens, positions, places, rows, sampled), lambda: None)
