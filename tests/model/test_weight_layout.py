"""The layout of weights: blocks with the checkpoint tensors stacked in them, at aligned offsets."""

from dataclasses import replace
from pathlib import Path

import pytest

from dunlin.model.config import ModelConfig, parse_config
from dunlin.model.weight_layout import (
    ALIGN_BYTES,
    WeightBlock,
    WeightPart,
    block_offsets,
    layer_blocks,
    outer_blocks,
    part_shapes,
    total_bytes,
)

CONFIG: ModelConfig = parse_config(
    {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 100,
    },
    Path("config.json"),
)


def test_the_blocks_outside_of_layers_share_a_tied_embedding() -> None:
    assert [(block.name, block.shape) for block in outer_blocks(CONFIG)] == [
        ("embed", (100, 64)),
        ("norm", (64,)),
        ("head", (100, 64)),
    ]
    assert [block.name for block in outer_blocks(replace(CONFIG, tied=True))] == ["embed", "norm"]


def test_a_layer_stacks_queries_keys_and_values_and_both_halves_of_the_mlp() -> None:
    shapes = {block.name: block.shape for block in layer_blocks(CONFIG, 1)}
    assert shapes == {
        "input_norm": (64,),
        "qkv": (64 + 32 + 32, 64),
        "out": (64, 64),
        "mlp_norm": (64,),
        "gate_up": (256, 64),
        "down": (64, 128),
    }


def test_the_parts_of_a_block_are_named_after_the_layer_and_fill_its_rows() -> None:
    parts = {block.name: list(part_shapes(block)) for block in layer_blocks(replace(CONFIG, qkv_bias=True), 1)}
    assert parts["qkv"] == [
        ("model.layers.1.self_attn.q_proj.weight", (64, 64)),
        ("model.layers.1.self_attn.k_proj.weight", (32, 64)),
        ("model.layers.1.self_attn.v_proj.weight", (32, 64)),
    ]
    assert parts["qkv_bias"] == [
        ("model.layers.1.self_attn.q_proj.bias", (64,)),
        ("model.layers.1.self_attn.k_proj.bias", (32,)),
        ("model.layers.1.self_attn.v_proj.bias", (32,)),
    ]
    assert parts["mlp_norm"] == [("model.layers.1.post_attention_layernorm.weight", (64,))]
    assert parts["down"] == [("model.layers.1.mlp.down_proj.weight", (64, 128))]


@pytest.mark.parametrize("bias", [False, True])
def test_the_rows_of_a_block_are_those_of_its_parts(bias: bool) -> None:
    config = replace(CONFIG, qkv_bias=bias)
    for block in [*outer_blocks(config), *layer_blocks(config, 0)]:
        assert block.shape[0] == sum(part.rows for part in block.parts), block.name


def block(name: str, *shape: int) -> WeightBlock:
    return WeightBlock(name, shape, (WeightPart(name, shape[0]),))


def test_offsets_are_aligned_and_the_total_holds_every_block() -> None:
    blocks = [block("a", 3, 5), block("b", 16), block("c", 1)]
    assert [each.items() for each in blocks] == [15, 16, 1]
    assert [(each.name, offset) for each, offset in block_offsets(blocks, 4)] == [("a", 0), ("b", 64), ("c", 128)]
    assert total_bytes(blocks, 4) == 192
    assert [offset for _, offset in block_offsets(blocks, 8)] == [0, 128, 256]
    assert (total_bytes(blocks, 8), total_bytes([], 8)) == (256 + ALIGN_BYTES, 0)
