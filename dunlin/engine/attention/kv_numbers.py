"""Numbers that KV may have: those of the weights, or ones of half the size, to which keys and values are rounded.

E4M3 has 3 bits of mantissa (each number is off by 1/16 at most) and ends at 448. Keys and values are kept as they are,
without a scale: beyond the end they are cut, which models do not come near.
"""

import torch
from torch import Tensor


def is_narrow(dtype: torch.dtype) -> bool:
    """Whether KV of `dtype` is rounded: no kernel computes with its numbers themselves."""
    return dtype.itemsize == 1


def rounded(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """`rows` as numbers of KV of `dtype`. What is no number stays none."""
    if not is_narrow(dtype):
        return rows
    most = torch.finfo(dtype).max
    return rows.clamp(-most, most).to(dtype)  # not every torch cuts by itself


def put_slots(layer_kv: Tensor, slots: Tensor, rows: Tensor) -> None:
    """Copy `rows` `[tokens, 2 kv_heads, head_dim]` into their `slots` of `layer_kv` `[slot, 2, kv_heads, head_dim]`."""
    given = rounded(rows.reshape(-1, *layer_kv.shape[1:]), layer_kv.dtype)
    if is_narrow(layer_kv.dtype):  # torch copies no such numbers by index
        layer_kv, given = layer_kv.view(torch.uint8), given.view(torch.uint8)
    layer_kv.index_copy_(0, slots, given)
