"""A decoder to try steps on before the first request: one layer of each kind, over KV of its own.

The slab may hold what an earlier process left. Layers that are alike meet the same shapes, by which libraries choose
and make their kernels.
"""

import itertools
from typing import Any

from dunlin.engine.decoder.decoder import Decoder


def scratch_decoder(decoder: Decoder, slots: int) -> Decoder:
    """The decoder with the first of its layers of each kind alone, over `slots` slots of zeros."""
    layers, kv = first_of_each_kind(decoder), list(decoder.kv)
    for layer in layers:
        kv[layer] = kv[layer].new_zeros(slots, *kv[layer].shape[1:])
    return decoder.with_layers(layers).with_kv(kv)


def first_of_each_kind(decoder: Decoder) -> list[int]:
    """Layers such that each other one has the attention, the rotation and the shapes of one of these."""
    found: dict[Any, int] = {}
    for layer in itertools.chain(*decoder.held_runs):
        shapes = tuple((name, block.shape, block.dtype) for name, block in decoder.blocks(layer).items())
        found.setdefault((decoder.attention_kind(layer), decoder.rotation(layer), shapes), layer)
    return list(found.values())
