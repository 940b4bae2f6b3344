"""The numerics of a GPU: Triton's kernels for what goes token by token, the library's products, sampling there.

Imported only where a GPU is chosen: Triton may not be there.
"""

from dataclasses import replace

from dunlin.engine.attention.base import Attention
from dunlin.engine.attention.flashinfer_prompts import Fence, open_flashinfer
from dunlin.engine.attention.prompt_choice import AttentionShape, Measure, choose_prompt_kernel
from dunlin.engine.attention.triton_paged import TritonAttention
from dunlin.engine.decoder.decoder import Decoder
from dunlin.engine.decoder.experts import gated
from dunlin.engine.decoder.gpu import triton_products, triton_rows
from dunlin.engine.decoder.numerics import Numerics, apply_at_once, plain_linear
from dunlin.engine.decoder.sampling.device_sampling import choose_on_device

PIECE_ROWS = 4096
"""Tokens of a block of linear work: of a layer of 8B in bf16 about 2.5 ms at 700 TFLOP/s."""


def gpu_numerics(attention: Attention | None = None, piece_rows: int = PIECE_ROWS) -> Numerics:
    """Blocks of linear work have `piece_rows` tokens whatever they take: the host's clock sees launches only."""
    return Numerics(
        apply_at_once,
        plain_linear,
        attention or TritonAttention(),
        piece_rows,
        None,
        norm=triton_rows.norm,
        silu_gate=triton_rows.silu_gate,
        turn=triton_rows.turn,
        place=triton_rows.place,
        linear_onto=triton_rows.linear_onto,
        gated_linear=triton_products.gated_linear,
        choose=choose_on_device,
        has_fixed_pieces=True,
    )


def choose_prompts(library: str, decoder: Decoder, measure: Measure, fence: Fence) -> tuple[Numerics, str]:
    """The decoder's numerics, with flashinfer's attention of prompts where that is faster for its shape, and what to
    tell of it. `library`: its name and version.
    """
    config = decoder.config
    shape = AttentionShape(
        config.heads,
        config.kv_heads,
        config.head_dim,
        decoder.dtype,
        decoder.kv[0].dtype,
        frozenset(map(decoder.attention_kind, range(config.layers))),
        decoder.device,
    )
    kernel, told = choose_prompt_kernel(
        library, lambda: open_flashinfer(decoder.device, config.head_dim, decoder.dtype, fence), shape, measure
    )
    if kernel is None:
        return decoder.numerics, told
    return replace(decoder.numerics, attention=TritonAttention(prompts=kernel)), told


def torch_gpu_numerics(attention: Attention) -> Numerics:
    """The same by torch's own operations: what the kernels are compared with."""
    return Numerics(
        apply_at_once, plain_linear, attention, PIECE_ROWS, None, silu_gate=gated("silu"), has_fixed_pieces=True
    )
