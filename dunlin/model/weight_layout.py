"""The layout of a decoder's weights and KV in the arena, computed from its configuration alone.

A block is one tensor as the kernels want it; its parts are the checkpoint tensors stacked in its rows.
Knows no tensor, so that memory can be planned where no torch is loaded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dunlin.model.config import ModelConfig

ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True)
class WeightPart:
    """One tensor of the checkpoint: its name and how many rows of the block it fills."""

    name: str
    rows: int


@dataclass(frozen=True, slots=True)
class WeightBlock:
    """One tensor in the arena, parts stacked along the first axis."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[WeightPart, ...]

    def items(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


def outer_blocks(config: ModelConfig) -> list[WeightBlock]:
    """The blocks that belong to no layer."""
    blocks = [
        WeightBlock("embed", (config.vocab, config.hidden), (WeightPart("model.embed_tokens.weight", config.vocab),)),
        WeightBlock("norm", (config.hidden,), (WeightPart("model.norm.weight", config.hidden),)),
    ]
    if not config.tied:
        blocks.append(WeightBlock("head", (config.vocab, config.hidden), (WeightPart("lm_head.weight", config.vocab),)))
    return blocks


def layer_blocks(config: ModelConfig, layer: int) -> list[WeightBlock]:
    """The blocks of one layer; q, k, v and gate, up are fused so that each needs one product."""
    hidden, inner, head_dim = config.hidden, config.intermediate, config.head_dim
    attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
    rows = (("q", config.heads * head_dim), ("k", config.kv_heads * head_dim), ("v", config.kv_heads * head_dim))
    fused = sum(count for _, count in rows)
    qkv = tuple(WeightPart(f"{attention}.{which}_proj.weight", count) for which, count in rows)
    blocks = [
        _norm(f"model.layers.{layer}.input_layernorm.weight", "input_norm", hidden),
        WeightBlock("qkv", (fused, hidden), qkv),
        WeightBlock("out", (hidden, config.heads * head_dim), (WeightPart(f"{attention}.o_proj.weight", hidden),)),
        _norm(f"model.layers.{layer}.post_attention_layernorm.weight", "mlp_norm", hidden),
        WeightBlock(
            "gate_up",
            (2 * inner, hidden),
            (WeightPart(f"{mlp}.gate_proj.weight", inner), WeightPart(f"{mlp}.up_proj.weight", inner)),
        ),
        WeightBlock("down", (hidden, inner), (WeightPart(f"{mlp}.down_proj.weight", hidden),)),
    ]
    if config.qkv_bias:
        bias = tuple(WeightPart(f"{attention}.{which}_proj.bias", count) for which, count in rows)
        blocks.append(WeightBlock("qkv_bias", (fused,), bias))
    return blocks


def _norm(tensor: str, name: str, hidden: int) -> WeightBlock:
    return WeightBlock(name, (hidden,), (WeightPart(tensor, hidden),))


def part_shapes(block: WeightBlock) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The checkpoint tensors of a block with the shape that each must have."""
    for part in block.parts:
        yield part.name, (part.rows, *block.shape[1:])


def block_offsets(blocks: Sequence[WeightBlock], item_bytes: int) -> Iterator[tuple[WeightBlock, int]]:
    """Each block with its byte offset in the range that holds them all."""
    offset = 0
    for block in blocks:
        yield block, offset
        offset += _aligned(block.items() * item_bytes)


def total_bytes(blocks: Sequence[WeightBlock], item_bytes: int) -> int:
    """Bytes of a range that holds `blocks`."""
    return sum(_aligned(block.items() * item_bytes) for block in blocks)


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES
