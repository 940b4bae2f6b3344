"""config.json: what is read, and what is refused with a cause."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dunlin.model.config import load_config, parse_config
from dunlin.model.errors import ModelError
from dunlin.model.rope_config import RopeConfig

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}
PATH = Path("/model/config.json")


def parse(**overrides: Any) -> Any:
    return parse_config({**LLAMA, **overrides}, PATH)


def test_what_a_file_leaves_out_has_the_usual_value() -> None:
    config = parse()
    assert (config.kv_heads, config.head_dim, config.max_positions, config.norm_eps) == (4, 16, 2048, 1e-6)
    assert (config.tied, config.qkv_bias, config.eos_ids, config.dtype) == (False, False, (), "float32")
    assert config.rope == RopeConfig(theta=10_000.0, original_max_positions=2048)


def test_what_a_file_says_counts() -> None:
    config = parse(
        num_key_value_heads=2, head_dim=32, tie_word_embeddings=True, eos_token_id=[3, 4], torch_dtype="bfloat16"
    )
    assert (config.kv_heads, config.head_dim, config.tied, config.eos_ids) == (2, 32, True, (3, 4))
    assert config.dtype == "bfloat16"
    assert config.slot_bytes(2) == 2 * 2 * 32 * 2


def test_qwen_has_biases() -> None:
    assert parse(model_type="qwen2", architectures=["Qwen2ForCausalLM"]).qkv_bias


@pytest.mark.parametrize(
    "values",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}},
    ],
)
def test_rope_in_the_old_and_the_new_spelling(values: dict[str, Any]) -> None:
    assert parse(**values).rope == RopeConfig(5e5, "linear", 2.0, original_max_positions=2048)


REFUSED: dict[str, dict[str, Any]] = {
    "architecture GPT2LMHeadModel is not supported; dunlin runs LlamaForCausalLM, MistralForCausalLM, Qwen2": {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
    },
    "`architectures` must be a list, not 4": {"architectures": 4},
    "architecture model_type ['llama'] is not supported": {"architectures": None, "model_type": ["llama"]},
    "rope type {} is not supported": {"rope_scaling": {"rope_type": {}}},
    "architecture model_type None is not supported": {"architectures": None, "model_type": None},
    "architecture LlamaForSequenceClassification": {"architectures": ["LlamaForSequenceClassification"]},
    "`hidden_size` must be a positive integer, not '64'": {"hidden_size": "64"},
    "`num_hidden_layers` must be a positive integer, not 0": {"num_hidden_layers": 0},
    "`num_attention_heads` must be a positive integer, not True": {"num_attention_heads": True},
    "`vocab_size` is missing": {"vocab_size": None},
    "4 attention heads do not divide into 3 key-value heads": {"num_key_value_heads": 3},
    "hidden size 66 does not divide into 4 heads": {"hidden_size": 66},
    "`head_dim` must be even": {"head_dim": 5},
    "`rms_norm_eps` must be a positive number": {"rms_norm_eps": float("nan")},
    "`tie_word_embeddings` must be true or false": {"tie_word_embeddings": "yes"},
    "rope type 'axial' is not supported; of this family dunlin runs default, linear, dynamic, llama3, yarn, longrope": {
        "rope_scaling": {"rope_type": "axial"}
    },
    "`factor` of rope type yarn is missing": {"rope_scaling": {"rope_type": "yarn"}},
    "`low_freq_factor` of rope type llama3 is missing": {
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}
    },
    "the rope parameters are not an object": {"rope_scaling": [1]},
    "`hidden_act` 'tanh' is not supported": {"hidden_act": "tanh"},
    "weights quantised by hqq (`quantization_config`) are not supported: its tensors": {
        "quantization_config": {"quant_method": "hqq"}
    },
    "`final_logit_softcapping` is not supported with this family": {"final_logit_softcapping": 30.0},
    "`partial_rotary_factor` is not supported with this family": {"partial_rotary_factor": 0.5},
    "`layer_types` of full_attention, sliding_attention is not supported": {
        "layer_types": ["full_attention", "sliding_attention"]
    },
    "a sliding window of 512 tokens is not supported": {"sliding_window": 512},
    "`sliding_window` must be a positive integer": {"sliding_window": "wide"},
    "`eos_token_id` must be token ids": {"eos_token_id": "end"},
    "`rope_theta` must be a positive number": {"rope_theta": 10**400},
    "`num_hidden_layers` of 1000000000 is not supported; dunlin runs up to 1000": {"num_hidden_layers": 10**9},
}


@pytest.mark.parametrize("what", sorted(REFUSED))
def test_what_dunlin_does_not_run_is_named(what: str) -> None:
    with pytest.raises(ModelError, match=r"^/model/") as caught:
        parse(**REFUSED[what])
    assert what in str(caught.value)


def test_a_number_of_thousands_of_digits_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": ' + "9" * 5000 + "}")
    with pytest.raises(ModelError, match=r"config\.json: cannot be read as JSON"):
        load_config(tmp_path)


def test_a_window_as_long_as_the_model_changes_nothing() -> None:
    assert parse(sliding_window=4096, max_position_embeddings=4096).max_positions == 4096
    assert parse(sliding_window=16, use_sliding_window=False).max_positions == 2048


MISTRAL = {"model_type": "mistral", "architectures": ["MistralForCausalLM"]}


def test_which_layers_have_a_window() -> None:
    def windows(**values: Any) -> list[int]:
        config = parse(num_hidden_layers=4, sliding_window=16, num_key_value_heads=2, **values)
        return [config.layer(layer).window for layer in range(4)]

    qwen = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True}
    gemma = {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}
    assert windows(**MISTRAL) == [16, 16, 16, 16]
    assert windows(**qwen, max_window_layers=3) == [0, 0, 0, 16]
    assert windows(**qwen, layer_types=["sliding_attention", "full_attention"] * 2) == [16, 0, 16, 0]
    assert windows(**{**qwen, "use_sliding_window": False}) == [0, 0, 0, 0]
    assert windows(**gemma) == [16, 0, 16, 0]
    local = {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
    assert windows(**local, sliding_window_pattern=3) == [16, 16, 0, 16]
    with pytest.raises(ModelError, match="`layer_types` of full_attention is not supported"):
        windows(**MISTRAL, layer_types=["full_attention"] * 4)


def test_a_scaling_beside_parameters_by_layer_changes_the_layers_without_a_window() -> None:
    """As transformers reads the two: neither base is lost."""
    named = {"full_attention": {"rope_type": "default", "rope_theta": 5e5}, "sliding_attention": {"rope_theta": 123.0}}
    gemma = {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "num_key_value_heads": 2}
    scaling = {"rope_type": "linear", "factor": 8.0}
    config = parse(**gemma, rope_parameters=named, rope_scaling=scaling)
    assert (config.rope.theta, config.rope.kind, config.rope.factor) == (5e5, "linear", 8.0)
    assert config.local_rope is not None
    assert (config.local_rope.theta, config.local_rope.kind) == (123.0, "default")
    assert parse(**gemma, rope_scaling=scaling, rope_theta=7.0).rope.theta == 7.0


def test_a_rope_that_depends_on_length_bounds_the_length() -> None:
    scaling = {"type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    phi = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "original_max_position_embeddings": 1000}
    config = parse(**phi, max_position_embeddings=8000, rope_scaling=scaling)
    assert (config.max_positions, config.rope.kind, config.rope.factors) == (1000, "longrope", (1.0,) * 8)
    assert config.rope.attention_factor == pytest.approx((1 + math.log(8) / math.log(1000)) ** 0.5)


def test_yarn_makes_texts_as_long_as_it_stretches_what_the_file_names() -> None:
    """As Qwen2.5's users write it into a file: nothing else changes. A window as long as before is one then."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1000}
    assert parse(max_position_embeddings=1000, rope_scaling=yarn).max_positions == 4000
    assert parse(max_position_embeddings=9000, rope_scaling=yarn).max_positions == 9000
    del yarn["original_max_position_embeddings"]
    assert parse(max_position_embeddings=1000, rope_scaling=yarn).max_positions == 1000
    outside = {"original_max_position_embeddings": 500}
    assert parse(max_position_embeddings=1000, rope_scaling=yarn, **outside).max_positions == 2000
    qwen = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}
    windowed = {**qwen, "sliding_window": 1000, "max_window_layers": 0, "num_key_value_heads": 2}
    assert parse(max_position_embeddings=1000, **windowed).layer(0).window == 0
    assert parse(max_position_embeddings=1000, rope_scaling=yarn, **outside, **windowed).layer(0).window == 1000


def test_generation_config_has_the_say_about_the_end(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "eos_token_id": 1}))
    assert load_config(tmp_path).eos_ids == (1,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    assert load_config(tmp_path).eos_ids == (2, 5)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": None}))
    assert load_config(tmp_path).eos_ids == (1,), "null names none: without an end token no text would end"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "no such file"),
        (b"{", "cannot be read as JSON"),
        (b"[]", "holds no JSON object"),
        (b"\xff", "cannot be read"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, content: bytes | None, what: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=what) as caught:
        load_config(tmp_path)
    assert caught.value.path == str(tmp_path / "config.json")


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such directory; give a directory"):
        load_config(tmp_path / "none")
