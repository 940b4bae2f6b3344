"""The layout of a decoder's weights and KV in the arena, computed from its configuration alone.

A block is one tensor as the kernels want it; its parts are the checkpoint tensors stacked in its rows.
Knows no tensor, so that memory can be planned where no torch is loaded.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dunlin.model.config import ModelConfig
from dunlin.model.families import FAMILIES

ALIGN_BYTES = 64
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


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
        WeightBlock("embed", (config.vocab, config.hidden), (WeightPart(EMBEDDING, config.vocab),)),
        WeightBlock("norm", (config.hidden,), (WeightPart("model.norm.weight", config.hidden),)),
    ]
    if not config.tied:
        blocks.append(WeightBlock("head", (config.vocab, config.hidden), (WeightPart(HEAD, config.vocab),)))
    return blocks


def layer_blocks(config: ModelConfig, layer: int) -> list[WeightBlock]:
    """The blocks of one layer; q, k, v and gate, up are fused so that each needs one product."""
    prefix, norms = f"model.layers.{layer}.", _NORMS[config.post_norms]
    blocks = [
        _norm(prefix, norms[0], "input_norm", config.hidden),
        *_attention_blocks(config, prefix),
        _norm(prefix, norms[1], "mlp_norm", config.hidden),
        *(_expert_blocks if config.layer(layer).has_experts else _mlp_blocks)(config, prefix),
    ]
    if config.qkv_bias:
        blocks.append(_stacked("qkv_bias", prefix, FAMILIES[config.family].names.qkv, _qkv_rows(config), ".bias"))
    if config.out_bias:
        blocks.append(_bias("out_bias", prefix, "self_attn.o_proj", config.hidden))
    if config.qk_norm:
        blocks.append(_norm(prefix, "self_attn.q_norm", "query_norm", config.head_dim))
        blocks.append(_norm(prefix, "self_attn.k_norm", "key_norm", config.head_dim))
    if config.post_norms:
        blocks.append(_norm(prefix, norms[2], "attention_post_norm", config.hidden))
        blocks.append(_norm(prefix, norms[3], "mlp_post_norm", config.hidden))
    return blocks


# Before attention and before the MLP; after each, by whether a model has norms there.
_NORMS = {
    False: ("input_layernorm", "post_attention_layernorm"),
    True: (
        "input_layernorm",
        "pre_feedforward_layernorm",
        "post_attention_layernorm",
        "post_feedforward_layernorm",
    ),
}


def _qkv_rows(config: ModelConfig) -> tuple[int, ...]:
    return config.heads * config.head_dim, config.kv_heads * config.head_dim, config.kv_heads * config.head_dim


def _attention_blocks(config: ModelConfig, prefix: str) -> Iterator[WeightBlock]:
    names = FAMILIES[config.family].names
    yield _stacked("qkv", prefix, names.qkv, _qkv_rows(config), ".weight", config.hidden)
    yield _matrix("out", f"{prefix}self_attn.o_proj", config.hidden, config.heads * config.head_dim)


def _mlp_blocks(config: ModelConfig, prefix: str) -> Iterator[WeightBlock]:
    names, inner = FAMILIES[config.family].names, config.intermediate
    yield _stacked("gate_up", prefix, names.gate_up, (inner, inner), ".weight", config.hidden)
    yield _matrix("down", prefix + names.down, config.hidden, inner)
    if config.mlp_bias:
        yield _stacked("gate_up_bias", prefix, names.gate_up, (inner, inner), ".bias")
        yield _bias("down_bias", prefix, names.down, config.hidden)


def _expert_blocks(config: ModelConfig, prefix: str) -> Iterator[WeightBlock]:
    """One expert after another in the rows of a block."""
    names, experts = FAMILIES[config.family].names, config.experts
    assert experts is not None
    yield _matrix("router", prefix + names.router, experts.count, config.hidden)
    each = [prefix + names.expert.format(number) for number in range(experts.count)]
    up = tuple(WeightPart(f"{one}{half}.weight", experts.width) for one in each for half in names.expert_gate_up)
    down = tuple(WeightPart(f"{one}{names.expert_down}.weight", config.hidden) for one in each)
    yield WeightBlock("expert_gate_up", (experts.count * 2 * experts.width, config.hidden), up)
    yield WeightBlock("expert_down", (experts.count * config.hidden, experts.width), down)


def _stacked(
    name: str, prefix: str, tensors: Sequence[str], rows: Sequence[int], suffix: str, *inputs: int
) -> WeightBlock:
    """Products on the same inputs; `tensors` has one name for each, or one for all."""
    counts = rows if len(tensors) > 1 else (sum(rows),)
    parts = (WeightPart(f"{prefix}{tensor}{suffix}", count) for tensor, count in zip(tensors, counts, strict=True))
    return WeightBlock(name, (sum(rows), *inputs), tuple(parts))


def _matrix(name: str, tensor: str, rows: int, inputs: int) -> WeightBlock:
    return WeightBlock(name, (rows, inputs), (WeightPart(f"{tensor}.weight", rows),))


def _bias(name: str, prefix: str, tensor: str, rows: int) -> WeightBlock:
    return WeightBlock(name, (rows,), (WeightPart(f"{prefix}{tensor}.bias", rows),))


def _norm(prefix: str, tensor: str, name: str, size: int) -> WeightBlock:
    return WeightBlock(name, (size,), (WeightPart(f"{prefix}{tensor}.weight", size),))


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
