"""How row-wise work is cut: freely, or so that bits do not depend on the other rows of the batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from dunlin.engine.attention.base import Attention
from dunlin.engine.attention.choice import choose_backend, choose_deterministic
from dunlin.engine.attention.kv_numbers import put_slots
from dunlin.engine.attention.paged import PagedAttention
from dunlin.engine.attention.registry import ATTENTION_BACKENDS
from dunlin.engine.decoder.experts import MixExperts, gated, mix_gathered, mix_whole
from dunlin.engine.decoder.lora.deltas import AddDeltas, add_gathered, add_whole
from dunlin.engine.decoder.native.prompt_kernels import ANY, TILES, PromptKernels, choose_prompt_kernels
from dunlin.engine.decoder.native.row_kernels import RowKernels, choose_row_kernels
from dunlin.engine.decoder.piece_sizes import LEAST_COLUMNS, LEAST_ROWS
from dunlin.engine.decoder.rope import apply_rotary
from dunlin.engine.decoder.sampling.sampling import Choices, SamplingInput, choose_tokens

# In work of one fixed shape a row's bits depend neither on its place nor on its neighbours. Small, because decode
# batches are.
TILE_ROWS = 16

# Fewer rows are limited by reading the weights, not by arithmetic.
BATCH_ROWS = 5

# oneDNN makes a kernel for each number of rows, which takes longer than a short prompt. So there are few beyond decode
# batches: these are padded to the next multiple of a tile.
EXACT_ROWS = 32
_HAS_ONEDNN = torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")

RowWise = Callable[..., Tensor]
Choose = Callable[[Tensor, Sequence[SamplingInput]], Choices]
"""(logits, draws) -> choices; see `sample_tokens`."""


Into = Callable[[Tensor, Tensor, Tensor, Tensor], None]
"""(into, …) -> None: written into `[rows, columns]`, which may be some columns of a larger result."""
Place = Callable[[Tensor, int, int, Tensor, Tensor, Tensor], None]
"""(queries, keys and values, heads, kv_heads, angles, layer_kv, slots) -> None: the queries are left, rotated."""


silu_gate = gated("silu")


def rms_norm(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """The norm over `weight`'s axes, computed in fp32."""
    return F.rms_norm(rows, weight.shape, weight, epsilon)


def turn_heads(vectors: Tensor, heads: int, turn: Tensor) -> None:
    """Rotate the first `heads` of `vectors` `[tokens, all heads, head_dim]` in place, in as many dimensions as
    `turn` `[tokens, 2, 1, pairs]` has.
    """
    part, turned = vectors[:, :heads], 2 * turn.shape[-1]
    part = part if turned == vectors.shape[-1] else part[..., :turned]
    part.copy_(apply_rotary(part, turn))


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`rows @ weight.T + bias`; fp32 batches by oneDNN, on some processors twice as fast as torch's choice for them
    (`python -m benchmarks.engine.matmul` compares the two).
    """
    if rows.dtype is torch.float32 and rows.shape[0] >= BATCH_ROWS and _HAS_ONEDNN:
        count = rows.shape[0]
        padding = -count % TILE_ROWS if count > EXACT_ROWS else 0
        padded = F.pad(rows, (0, 0, 0, padding)) if padding else rows
        product: Tensor = torch.ops.mkldnn._linear_pointwise(padded, weight, bias, "none", [], "")
        return product[:count]
    return F.linear(rows, weight, bias)


def plain_linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`rows @ weight.T + bias` by torch's choice for the device."""
    return F.linear(rows, weight, bias)


def linear_into(into: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """`linear` into some columns of a larger result: in bf16 without a copy."""
    if bias is None and rows.dtype is torch.bfloat16:
        torch.mm(rows, weight.t(), out=into)
    else:
        into.copy_(linear(rows, weight, bias))


@dataclass(frozen=True, slots=True)
class Numerics:
    """`rows(function, *inputs)` applies a row-wise function to inputs that agree in their first axis; `linear(input,
    weight, bias)` is the product; `attention` is the backend; `experts` mixes experts. Linear work that is cut has
    blocks of `piece_rows` at least, and pieces of `piece_columns` of a block's products; None: these may not be cut.
    `norm(input, weight, epsilon)`, `silu_gate(gates and what they let through)` and `turn(vectors, heads, angles)`,
    which rotates the first `heads` of each token in place, are the rest of a layer. `linear_into(into, input, weight,
    bias)` writes the product, `put(layer_kv, slots, keys and values)` what attention reads. `add_deltas` adds what
    adapters do. `choose` chooses tokens. `place` is `turn` and `put` at once, `linear_onto(residual, input, weight)`
    the product added to the residual, in its place, `gated_linear(input, weight)` `silu_gate` of the product;
    `linear_onto_into(into, residual, input, weight)` and `gated_into(into, input, gates, ups)` do so for some columns;
    None: they are computed by parts. `has_fixed_pieces`: blocks always have `piece_rows`, for no clock of the host's
    tells what they take.
    """

    rows: Callable[..., Tensor]
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    attention: Attention
    piece_rows: int
    piece_columns: int | None
    experts: MixExperts = mix_gathered
    norm: Callable[[Tensor, Tensor, float], Tensor] = rms_norm
    silu_gate: Callable[[Tensor], Tensor] = silu_gate
    turn: Callable[[Tensor, int, Tensor], None] = turn_heads
    linear_into: Callable[[Tensor, Tensor, Tensor, Tensor | None], None] = linear_into
    put: Callable[[Tensor, Tensor, Tensor], None] = put_slots
    add_deltas: AddDeltas = add_gathered
    choose: Choose = choose_tokens
    place: Place | None = None
    linear_onto: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    gated_linear: Callable[[Tensor, Tensor], Tensor] | None = None
    linear_onto_into: Into | None = None
    gated_into: Into | None = None
    has_fixed_pieces: bool = False


def apply_at_once(function: RowWise, *inputs: Tensor) -> Tensor:
    """All rows in one call."""
    return function(*inputs)


def apply_in_tiles(function: RowWise, *inputs: Tensor) -> Tensor:
    """One call per `TILE_ROWS` rows, the last tile padded with zeros: the function sees one shape only."""
    count = inputs[0].shape[0]
    outs = []
    for start in range(0, count, TILE_ROWS):
        outs.append(function(*(_tile(each, start) for each in inputs)))
    return torch.cat(outs)[:count]


def _tile(rows: Tensor, start: int) -> Tensor:
    """A copy, so that its alignment is the same for every tile."""
    tile = rows[start : start + TILE_ROWS]
    padding = (0, 0) * (rows.ndim - 1) + (0, TILE_ROWS - tile.shape[0])
    return F.pad(tile, padding) if tile.shape[0] < TILE_ROWS else tile.clone()


def fast_numerics(
    attention: str = "torch", kernels: RowKernels | None = None, prompts: PromptKernels | None = None
) -> Numerics:
    """The quickest numerics: bits may depend on the batch. `kernels` compute few rows, `prompts` the other ones, torch
    what both are not for.
    """
    whole = Numerics(apply_at_once, linear, ATTENTION_BACKENDS[attention](), LEAST_ROWS, LEAST_COLUMNS)
    for each in (prompts, kernels):
        whole = whole if each is None else _with_kernels(whole, each)
    return whole if prompts is None else _with_writes(whole, prompts)


def choose_fast_numerics() -> tuple[Numerics, str]:
    """The fast numerics with what can compute here and agrees with torch, and what to tell of it."""
    attention, description = choose_backend()
    kernels = choose_row_kernels()
    prompts = choose_prompt_kernels()
    few = "a kernel" if kernels is not None else "torch"
    most = 0 if prompts is None else prompts.most_rows
    many = "a kernel" if most == ANY else f"a kernel up to {most}" if most else "torch"
    told = f"attention by {description}, products of few rows by {few}, of many by {many}"
    return fast_numerics(attention, kernels, prompts), told


def for_narrow_kv(numerics: Numerics) -> Numerics:
    """The same with an attention that reads narrow KV (`kv_numbers.is_narrow`), which the CPU's kernel does not."""
    reads_narrow = not isinstance(numerics.attention, PagedAttention)
    return numerics if reads_narrow else replace(numerics, attention=ATTENTION_BACKENDS["torch"]())


def for_bf16(numerics: Numerics) -> Numerics:
    """The same with pieces of attention as large as the CPU's kernel is quick in bf16."""
    attention = numerics.attention
    if not isinstance(attention, PagedAttention):
        return numerics
    return replace(numerics, attention=PagedAttention(attention.kernel.for_bf16()))


def _with_kernels(plain: Numerics, kernels: RowKernels | PromptKernels) -> Numerics:
    def product(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        found = kernels.product(rows, weight, bias)
        return plain.linear(rows, weight, bias) if found is None else found

    def norm(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        found = kernels.norm(rows, weight, epsilon)
        return plain.norm(rows, weight, epsilon) if found is None else found

    def gate(rows: Tensor) -> Tensor:
        found = kernels.silu_gate(rows)
        return plain.silu_gate(rows) if found is None else found

    def turn(vectors: Tensor, heads: int, angles: Tensor) -> None:
        if not kernels.turn(vectors, heads, angles):
            plain.turn(vectors, heads, angles)

    return replace(plain, linear=product, norm=norm, silu_gate=gate, turn=turn)


def _with_writes(plain: Numerics, kernels: PromptKernels) -> Numerics:
    def product_into(into: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        if not kernels.product_into(into, rows, weight, bias):
            plain.linear_into(into, rows, weight, bias)

    def put(layer_kv: Tensor, slots: Tensor, rows: Tensor) -> None:
        if not kernels.put(layer_kv, slots, rows):
            plain.put(layer_kv, slots, rows)

    if kernels.level != TILES:
        return replace(plain, linear_into=product_into, put=put)

    def product_onto(hidden: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
        product_onto_into(hidden, hidden, rows, weight)
        return hidden

    def product_onto_into(into: Tensor, residual: Tensor, rows: Tensor, weight: Tensor) -> None:
        if not kernels.product_onto(into, residual, rows, weight):
            torch.add(residual, plain.linear(rows, weight, None), out=into)

    def gated_product(rows: Tensor, weight: Tensor) -> Tensor:
        found = kernels.gated_product(rows, weight)
        return plain.silu_gate(plain.linear(rows, weight, None)) if found is None else found

    def gated_into(into: Tensor, rows: Tensor, gates: Tensor, ups: Tensor) -> None:
        if not kernels.gated_into(into, rows, gates, ups):
            both = plain.linear(rows, gates, None), plain.linear(rows, ups, None)
            into.copy_(plain.silu_gate(torch.cat(both, 1)))

    onto = replace(plain, linear_into=product_into, put=put, linear_onto=product_onto, gated_linear=gated_product)
    return replace(onto, linear_onto_into=product_onto_into, gated_into=gated_into)


def deterministic_numerics(attention: Attention | None = None) -> Numerics:
    """Fixed shapes throughout, or one order of sums; offered in fp32."""
    attention = attention or ATTENTION_BACKENDS["deterministic"]()
    return Numerics(apply_in_tiles, F.linear, attention, TILE_ROWS, None, mix_whole, add_deltas=add_whole)


def choose_deterministic_numerics() -> tuple[Numerics, str]:
    """The deterministic numerics with what can compute here and agrees with torch, and what to tell of it."""
    attention, description = choose_deterministic()
    return deterministic_numerics(attention), f"the same bits in any batch: attention by {description}"
