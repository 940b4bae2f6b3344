"""Frequencies and factors of a `config.json` are those of transformers, or the file is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from dunlin.engine.decoder.rope import inverse_frequencies
from dunlin.model.config import load_config
from dunlin.model.errors import ModelError

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": None,
}
LLAMA = {**SIZES, "model_type": "llama", "architectures": ["LlamaForCausalLM"]}
GEMMA = {**SIZES, "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "sliding_window": 8}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "factor": 8.0}

Ropes = list[tuple[list[float], float]]


def ours(directory: Path) -> Ropes:
    config = load_config(directory)
    ropes = [config.rope, *([config.local_rope] if config.local_rope else [])]
    return [(inverse_frequencies(rope, config.head_dim).tolist(), rope.attention_factor) for rope in ropes]


def theirs(directory: Path) -> Ropes:
    """Of all layers; or of those without a window, then of those with one."""
    config = transformers.AutoConfig.from_pretrained(directory)
    with torch.device("cpu"):
        rope: Any = transformers.AutoModelForCausalLM.from_config(config).model.rotary_emb  # type: ignore[no-untyped-call]
    prefixes = ("",) if hasattr(rope, "inv_freq") else ("full_attention_", "sliding_attention_")
    found = [(getattr(rope, f"{one}inv_freq"), getattr(rope, f"{one}attention_scaling")) for one in prefixes]
    return [(frequencies.tolist(), factor) for frequencies, factor in found]


def check(found: Ropes, expected: Ropes) -> None:
    assert [factor for _, factor in found] == [factor for _, factor in expected]
    for (mine, _), (their, _) in zip(found, expected, strict=True):
        assert mine == pytest.approx(their, rel=1e-5)


def written(directory: Path, model: dict[str, Any], values: dict[str, Any]) -> Path:
    (directory / "config.json").write_text(json.dumps({**model, **values}))
    return directory


YARNS: list[dict[str, Any]] = [
    {"mscale": 0, "mscale_all_dim": 0},
    {"mscale": 0.0, "mscale_all_dim": 1.0},
    {"mscale": 1.0, "mscale_all_dim": 0},
    {"mscale": 0},
    {"mscale": None, "mscale_all_dim": None},
    {"mscale": 0.7, "mscale_all_dim": 0.9},
    {"beta_fast": 0, "beta_slow": 0},
    {"beta_fast": None, "beta_slow": None},
    {"truncate": None},
    {"truncate": False},
]


@pytest.mark.parametrize("values", YARNS, ids=str)
def test_yarn_without_a_number_is_that_of_transformers(tmp_path: Path, values: dict[str, Any]) -> None:
    directory = written(tmp_path, LLAMA, {"rope_scaling": {**YARN, **values}})
    check(ours(directory), theirs(directory))


GEMMAS: list[dict[str, Any]] = [
    {"rope_scaling": LINEAR},
    {"rope_scaling": {**LINEAR, "type": "linear"}},
    {"rope_scaling": LINEAR, "rope_theta": 5e4, "rope_local_base_freq": 3e3},
    {"rope_scaling": {**LINEAR, "rope_theta": 7e4}},
    {"rope_scaling": {"factor": 8.0}},
    {"rope_scaling": {}},
    {"rope_scaling": {"type": "default"}},
    {"rope_parameters": {"full_attention": LINEAR, "sliding_attention": None}},
    {"rope_parameters": {"full_attention": {"type": "linear", "factor": 8.0}}},
    {"rope_scaling": LINEAR, "rope_parameters": {"full_attention": {"rope_theta": 7e5}}},
]


@pytest.mark.parametrize("values", GEMMAS, ids=str)
def test_gemma_3_in_the_old_and_the_new_spelling_is_that_of_transformers(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    directory = written(tmp_path, GEMMA, values)
    check(ours(directory), theirs(directory))


REFUSED: dict[str, dict[str, Any]] = {
    "`type` 'linear' in `rope_scaling` is read by some and not by others; call it `rope_type`": {
        "rope_scaling": {"type": "linear", "factor": 8.0}
    },
    "`rope_scaling` must not name full_attention": {"rope_scaling": {"full_attention": LINEAR}},
}


@pytest.mark.parametrize("what", sorted(REFUSED))
def test_what_transformers_passes_over_is_refused(tmp_path: Path, what: str) -> None:
    """It computes these without scaling, which their writers did not mean."""
    directory = written(tmp_path, GEMMA, REFUSED[what])
    with pytest.raises(ModelError) as refused:
        load_config(directory)
    assert what in str(refused.value)
    assert theirs(directory) == theirs(written(tmp_path, GEMMA, {}))
