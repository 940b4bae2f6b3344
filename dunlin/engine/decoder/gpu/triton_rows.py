"""What a layer does token by token besides products, as Triton kernels: norms, the gate of the MLP, rotary positions.

Each reads and writes a token's numbers once, where torch's own operations pass over them several times. In fp32 inside.
"""

import torch
import triton
from torch import Tensor

from dunlin.engine.attention.hopper import launch_options
from dunlin.engine.attention.kv_numbers import is_narrow
from dunlin.engine.decoder.gpu import triton_row_kernels as kernels

MOST_WIDTH = 1 << 15
"""Of a norm that one program holds."""
MOST_PARTS, LEAST_PART = 64, 256
"""Of a row of scores: parts that are searched beside each other, and columns of one."""
HEADS_AT_ONCE = 16
"""Of a token, that a program rotates and writes."""


def norm(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMS norm over the last axis of `rows` `[rows, width]` or `[tokens, heads, width]`."""
    width = rows.shape[-1]
    if rows.ndim not in (2, 3) or rows.stride(-1) != 1 or width > MOST_WIDTH:
        return torch.nn.functional.rms_norm(rows, weight.shape, weight, epsilon)
    out = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
    inner, inner_stride = (1, 0) if rows.ndim == 2 else (rows.shape[1], rows.stride(1))
    count = rows.shape[0] * inner
    if count:
        block = triton.next_power_of_2(width)
        warps = 4 if block <= 2048 else 8
        kernels.norm_rows[(count,)](
            rows, weight, out, rows.stride(0), inner_stride, epsilon, INNER=inner, WIDTH=width, BLOCK=block,
            num_warps=warps, **launch_options(),
        )  # fmt: skip
    return out


def silu_gate(rows: Tensor) -> Tensor:
    """silu(gate) * up of `rows` `[rows, 2 width]`: the gates, then what they let through."""
    count, width = rows.shape[0], rows.shape[1] // 2
    source, out = rows.contiguous(), rows.new_empty(count, width)
    if count:
        block = min(triton.next_power_of_2(width), 1024)
        kernels.gate_rows[(count, triton.cdiv(width, block))](source, out, WIDTH=width, BLOCK=block, **launch_options())
    return out


def turn(vectors: Tensor, heads: int, angles: Tensor) -> None:
    """Rotate the first `heads` of `vectors` `[tokens, all heads, head_dim]` in place, in as many dimensions as `angles`
    `[tokens, 2, 1, pairs]` fp32 has.
    """
    count, pairs = len(vectors), angles.shape[-1]
    given = angles.contiguous()
    if count:
        kernels.turn_rows[(count, heads)](
            vectors, given, vectors.stride(0), 2 * pairs, HEAD_DIM=vectors.shape[2], PAIRS=pairs,
            BLOCK=triton.next_power_of_2(pairs), num_warps=1,
        )  # fmt: skip


def place(vectors: Tensor, heads: int, kv_heads: int, angles: Tensor, layer_kv: Tensor, slots: Tensor) -> None:
    """`turn` of queries and keys of `vectors` `[tokens, heads + 2 kv_heads, head_dim]`, the queries in place; keys and
    values go to their `slots` of `layer_kv` `[slot, 2, kv_heads, head_dim]` alone, those without one (-1) nowhere.
    """
    count, pairs, head_dim = len(vectors), angles.shape[-1], vectors.shape[2]
    given, rest, narrow = angles.contiguous(), head_dim - 2 * pairs, is_narrow(layer_kv.dtype)
    kept = layer_kv.view(torch.uint8) if narrow else layer_kv
    if count:
        everything = heads + 2 * kv_heads
        kernels.place_rows[(count, triton.cdiv(everything, HEADS_AT_ONCE))](
            vectors, given, kept, slots, vectors.stride(0), 2 * pairs, layer_kv.stride(0), HEADS=heads,
            TURNED=heads + kv_heads, ALL=everything, HEAD_DIM=head_dim, PAIRS=pairs, REST=rest,
            BLOCK_HEADS=HEADS_AT_ONCE, BLOCK_PAIRS=triton.next_power_of_2(pairs),
            BLOCK_REST=triton.next_power_of_2(max(rest, 1)), IS_NARROW=narrow, num_warps=4, **launch_options(),
        )  # fmt: skip


def linear_onto(residual: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """`residual + rows @ weight.T`, in the residual's place: the product's kernel adds it."""
    return residual.addmm_(rows, weight.t())


def greatest(scores: Tensor) -> Tensor:
    """`[2, rows]` int64 of fp32 `scores` `[rows, columns]`: the column of the greatest, the first of equals, and
    whether it is a finite number among numbers.
    """
    rows, width = scores.shape
    part = max(int(triton.next_power_of_2(triton.cdiv(width, MOST_PARTS))), LEAST_PART)
    parts = triton.cdiv(width, part)
    part_score = scores.new_empty(rows, parts)
    part_at = torch.empty(rows, parts, dtype=torch.int32, device=scores.device)
    found = torch.empty(2, rows, dtype=torch.int64, device=scores.device)
    kernels.greatest_of_parts[(rows, parts)](
        scores, part_score, part_at, width, scores.stride(0), PART=part, BLOCK=min(part, 1024), **launch_options()
    )
    block = int(triton.next_power_of_2(parts))
    kernels.greatest_of_rows[(rows,)](part_score, part_at, found, parts, BLOCK=block, num_warps=1, **launch_options())
    return found
