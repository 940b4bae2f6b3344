"""Random checkpoints and the built-in model."""

import json
from pathlib import Path

import pytest

from dunlin.engine.decoder.loading.random_checkpoint import CheckpointShape, write_random_checkpoint
from dunlin.model.config import load_config
from dunlin.model.errors import ModelError
from dunlin.model.families import FAMILIES
from dunlin.text.tokenizer import load_chat_template, load_tokenizer
from tests.engine.build import make_checkpoint, make_shape

FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_what_is_written_is_what_was_asked_for(tmp_path: Path, family: str) -> None:
    config = write_random_checkpoint(tmp_path / "model", family, make_shape(tied=True, dtype="bfloat16"))
    assert config == load_config(tmp_path / "model")
    assert (config.family, config.layers, config.hidden, config.tied, config.dtype) == (family, 3, 96, True, "bfloat16")
    assert config.eos_ids == (1,)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == FILES


def test_a_seed_fixes_every_byte(tmp_path: Path) -> None:
    content = {
        seed: (make_checkpoint(tmp_path / str(place), seed=seed) / "model.safetensors").read_bytes()
        for place, seed in enumerate((1, 2))
    }
    again = (make_checkpoint(tmp_path / "again", seed=1) / "model.safetensors").read_bytes()
    assert content[1] == again != content[2]


@pytest.mark.parametrize(
    ("family", "shape", "what"),
    [
        ("bert", CheckpointShape(), "family 'bert' is unknown; choose one of llama, mistral, qwen2"),
        ("llama", make_shape(dtype="int8"), "dtype 'int8' is unknown; choose one of float32, bfloat16"),
        ("llama", make_shape(heads=5), "5 attention heads do not divide into 2 key-value heads"),
        ("llama", make_shape(layers=0), "`num_hidden_layers` must be a positive integer"),
    ],
)
def test_what_cannot_be_made_is_refused(tmp_path: Path, family: str, shape: CheckpointShape, what: str) -> None:
    with pytest.raises(ModelError, match=what):
        write_random_checkpoint(tmp_path / "model", family, shape)
    assert not (tmp_path / "model" / "model.safetensors").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    make_checkpoint(tmp_path)
    with pytest.raises(ModelError, match="already holds a checkpoint; name another directory"):
        make_checkpoint(tmp_path)


def test_the_oracle_loads_it_with_its_tokenizer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    directory = make_checkpoint(tmp_path, "mistral")
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    assert type(model).__name__ == "MistralForCausalLM"
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    messages = [{"role": "user", "content": "Hello, wörld"}]
    theirs = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert theirs == load_chat_template(directory).render(messages)
    ours = load_tokenizer(directory).encode(theirs, add_special_tokens=False)
    assert tokenizer(theirs, add_special_tokens=False)["input_ids"] == ours
    assert json.loads((directory / "generation_config.json").read_text())["eos_token_id"] == tokenizer.eos_token_id
