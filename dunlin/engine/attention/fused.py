"""The CPU backend: torch's fused attention, one call per sequence and piece.

The query heads of a KV group are folded into query rows, so keys are read once per group and never copied. A chunk with
a past is two parts that merge by their lse: the past needs no mask, the chunk itself is plainly causal. No mask is ever
materialised.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dunlin.engine.attention.base import AttendLayer, BatchRow, KvLocation, Safepoint, merge_partial_attention

# Work between safepoints: query rows times keys. A few milliseconds on one core.
PIECE_PAIRS = 1 << 20

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def plan(rows: Sequence[BatchRow]) -> AttendLayer:
    """See `Attention`."""

    def attend(query: Tensor, layer_kv: Tensor, safepoint: Safepoint) -> tuple[Tensor, Tensor]:
        results = [_row(query[row.start : row.stop], layer_kv, row, safepoint) for row in rows]
        if len(results) == 1:
            return results[0]
        return torch.cat([out for out, _ in results]), torch.cat([lse for _, lse in results])

    return attend


def partial(query: Tensor, keys_values: Tensor) -> tuple[Tensor, Tensor]:
    """Attention of every query over every given key, without a mask: the part for a stretch of a sequence's tokens."""
    tokens, heads, head_dim = query.shape
    kv_heads = keys_values.shape[2]
    keys, values = keys_values.permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
    if tokens == 1:
        out, lse = _flash(query.view(1, kv_heads, heads // kv_heads, head_dim), keys, values)
        return out.reshape(1, heads, head_dim), lse.reshape(1, heads)
    folded = (
        query.view(tokens, kv_heads, heads // kv_heads, head_dim).permute(1, 2, 0, 3).reshape(1, kv_heads, -1, head_dim)
    )
    out, lse = _flash(folded, keys, values)
    out = out.reshape(kv_heads, -1, tokens, head_dim).permute(2, 0, 1, 3).reshape(tokens, heads, head_dim)
    return out, lse.reshape(heads, tokens).t()


def _row(query: Tensor, layer_kv: Tensor, row: BatchRow, safepoint: Safepoint) -> tuple[Tensor, Tensor]:
    if row.tokens == 1:
        return _over_past(query, layer_kv, row.kv_location, row.kv_location.length, safepoint)
    own = _causal(query, row.kv_location.gather(layer_kv, row.context_tokens, row.kv_location.length))
    if row.context_tokens == 0:
        return own
    return merge_partial_attention(_over_past(query, layer_kv, row.kv_location, row.context_tokens, safepoint), own)


def _over_past(
    query: Tensor, layer_kv: Tensor, past: KvLocation, stop: int, safepoint: Safepoint
) -> tuple[Tensor, Tensor]:
    piece = max(PIECE_PAIRS // query.shape[0], 256)
    result = partial(query, past.gather(layer_kv, 0, min(piece, stop)))
    for start in range(piece, stop, piece):
        safepoint()
        result = merge_partial_attention(result, partial(query, past.gather(layer_kv, start, min(start + piece, stop))))
    return result


def _causal(query: Tensor, keys_values: Tensor) -> tuple[Tensor, Tensor]:
    heads, kv_heads = query.shape[1], keys_values.shape[2]
    spread = keys_values.repeat_interleave(heads // kv_heads, dim=2) if heads != kv_heads else keys_values
    keys, values = spread.permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
    out, lse = _flash(query.transpose(0, 1)[None], keys, values, is_causal=True)
    return out[0].transpose(0, 1), lse[0].t()
