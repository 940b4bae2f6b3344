"""`dunlin model show`: what a checkpoint's files say, and every reason why it cannot be served."""

import json
import os
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from benchmarks.fuzzing.packed_weights import formats, quantise
from cli.commands.setup import model_list
from cli.commands.setup.model_init import TOKENS
from cli.commands.setup.model_show import render, summarize_checkpoint
from cli.main import main
from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.loading.loader import load_model
from dunlin.engine.decoder.loading.random_checkpoint import TOKENIZER, CheckpointShape, write_random_checkpoint
from dunlin.model.errors import ModelError
from dunlin.text.tokenizer import load_tokenizer
from services.dispatcher.doors.generation.served_model import load_served_model as load_for_door

SHAPE = CheckpointShape(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, intermediate=48, max_positions=128)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_random_checkpoint(tmp_path / "model", "llama", SHAPE, 0)
    return tmp_path / "model"


def change(checkpoint: Path, **values: Any) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_checkpoint_that_can_be_served(checkpoint: Path) -> None:
    shown = summarize_checkpoint(checkpoint)
    assert (shown.layers, shown.heads, shown.kv_heads, shown.head_dim, shown.max_positions) == (2, 4, 2, 8, 128)
    layer = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 48 + 2 * 32
    assert shown.parameters == 2 * shown.vocabulary * 32 + 2 * layer + 32 if shown.vocabulary else False
    assert shown.weight_bytes == 4 * shown.parameters
    assert (shown.kv_bytes_per_token_bf16, shown.kv_bytes_per_token_fp32) == (2 * 2 * 2 * 8 * 2, 2 * 2 * 2 * 8 * 4)
    assert shown.dtypes == {"F32": 21}
    assert (shown.servable, shown.problems) == (True, ())
    assert "dunlin serves it  yes" in render(shown)
    assert "end tokens        1\n" in render(shown)


def test_a_checkpoint_without_an_end_token_is_served_and_says_so(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As transformers does: it generates up to the limit."""
    load_for_door(str(checkpoint), checkpoint)
    assert not caplog.messages
    (checkpoint / "generation_config.json").unlink()
    change(checkpoint, eos_token_id=None)
    shown = summarize_checkpoint(checkpoint)
    assert (shown.end_tokens, shown.servable) == ((), True)
    assert "end tokens        none: texts go on to their limit" in render(shown)
    load_for_door(str(checkpoint), checkpoint)
    assert caplog.messages == [
        f"the files of {checkpoint.name} name no `eos_token_id`: texts end at their limit or a stop string alone"
    ]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"rope_scaling": {"rope_type": "axial", "factor": 2.0}}, "axial"),
        ({"num_attention_heads": 3}, "3"),
        ({"num_hidden_layers": 3}, "tensor `model.layers.2.mlp.down_proj.weight` is missing"),
        ({"hidden_size": 64}, "model.norm.weight` has shape (32,), config.json implies (64,); use the config.json"),
        ({"eos_token_id": 4096}, "`eos_token_id` 4096 is outside the vocabulary of 4096"),
        ({"vocab_size": 4095}, "tokenizer.json: has token ids up to 4095, config.json's `vocab_size` is 4095"),
    ],
)
def test_a_configuration_that_cannot(checkpoint: Path, values: dict[str, Any], said: str) -> None:
    (checkpoint / "generation_config.json").unlink()  # it would have the say about the end
    change(checkpoint, **values)
    shown = summarize_checkpoint(checkpoint)
    assert not shown.servable
    assert any(said in problem for problem in shown.problems)
    assert said in render(shown)


def test_every_defect_is_listed(checkpoint: Path) -> None:
    change(checkpoint, hidden_size="wide", rms_norm_eps=-1)
    (checkpoint / "generation_config.json").write_text("{")
    (checkpoint / "tokenizer.json").write_text("{}")
    (checkpoint / "chat_template.jinja").write_text("{% for")
    (checkpoint / "model.safetensors").unlink()
    shown = summarize_checkpoint(checkpoint)
    wanted = (
        "config.json: `hidden_size` must be a positive integer, not 'wide'; check the file",
        "config.json: `rms_norm_eps` must be a positive number",
        "generation_config.json: cannot be read as JSON",
        "holds no model.safetensors and no index of shards",
        "tokenizer.json: is no tokenizer",
        "chat_template.jinja: has a chat template that does not compile",
    )
    assert len(shown.problems) == len(wanted)
    assert all(text in problem for text, problem in zip(wanted, shown.problems, strict=True))
    assert all(text in render(shown) for text in wanted)


def test_many_defects_are_counted(checkpoint: Path) -> None:
    change(checkpoint, num_hidden_layers=1000)
    shown = summarize_checkpoint(checkpoint)
    assert len(shown.problems) == 1000
    assert render(shown).endswith("  - and 980 more, which --json lists")


@pytest.mark.parametrize("keep", [0, 5, 40, 20_000])
def test_a_truncated_file_is_named(checkpoint: Path, keep: int) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    (problem,) = summarize_checkpoint(checkpoint).problems
    assert problem.startswith("model.safetensors: is truncated")


def test_a_tokenizer_without_tokens(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").write_text('{"model": {"type": "BPE", "vocab": {}, "merges": []}}')
    assert "has no tokens" in summarize_checkpoint(checkpoint).problems[0]


def test_an_index_that_names_a_missing_shard(checkpoint: Path) -> None:
    names = {"lm_head.weight": "model.safetensors", "model.norm.weight": "model-2.safetensors"}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    (problem,) = summarize_checkpoint(checkpoint).problems
    assert problem.startswith("model-2.safetensors: the index names this shard and it is not there")


def test_tied_embeddings_need_no_head(tmp_path: Path) -> None:
    write_random_checkpoint(tmp_path / "tied", "llama", replace(SHAPE, tied=True), 0)
    assert summarize_checkpoint(tmp_path / "tied").servable
    change(tmp_path / "tied", tie_word_embeddings=False)
    assert "tensor `lm_head.weight` is missing" in summarize_checkpoint(tmp_path / "tied").problems[0]


def quantise_nothing(model: Path, last: str) -> None:
    """config.json says FP8 and a tensor is there; the weights are plain."""
    change(model, quantization_config={"quant_method": "fp8", "weight_block_size": [128, 128]})
    path = model / "model.safetensors"
    tensors = safetensors.torch.load(path.read_bytes())
    safetensors.torch.save_file({**tensors, f"model.layers.0.mlp.up_proj.{last}": torch.ones(1, 1)}, path)


def test_a_quantised_checkpoint_is_served_and_counted_as_the_dense_model(checkpoint: Path, tmp_path: Path) -> None:
    form = formats(16)["awq"]
    quantise(checkpoint, tmp_path / "packed", tmp_path / "plain", form)
    packed, plain = (summarize_checkpoint(tmp_path / name) for name in ("packed", "plain"))
    assert packed.servable
    assert packed.parameters == plain.parameters
    assert packed.weight_bytes < plain.weight_bytes
    assert "quantised         awq: 4-bit integers in groups of 16; dequantised when loaded:" in render(packed)
    assert "quantised         no" in render(plain)


DEFECTS: dict[str, Callable[[Path], object]] = {
    "hidden size": lambda model: change(model, hidden_size=64),
    "vocabulary": lambda model: change(model, vocab_size=8192),
    "layers": lambda model: change(model, num_hidden_layers=3),
    "no weights": lambda model: (model / "model.safetensors").unlink(),
    "quantised by another method": lambda model: change(model, quantization_config={"quant_method": "bitsandbytes"}),
    "another layout": lambda model: change(model, quantization_config={"quant_method": "gptq", "bits": 3}),
    "no quantised tensors": lambda model: quantise_nothing(model, "weight_scale_inv"),
    "rope": lambda model: change(model, rope_scaling={"rope_type": "yarn"}),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_the_loader_refuses_the_same_for_the_same_reason(checkpoint: Path, name: str) -> None:
    DEFECTS[name](checkpoint)
    with pytest.raises(ModelError) as caught:
        load_model(checkpoint, "float32", 1 << 20, numerics.fast_numerics(), os.memfd_create("test-arena"))
    assert str(caught.value).removeprefix(f"{checkpoint}/") == summarize_checkpoint(checkpoint).problems[0]


def test_the_door_refuses_the_same_for_the_same_reason(checkpoint: Path) -> None:
    change(checkpoint, vocab_size=4000)
    with pytest.raises(ModelError) as caught:
        load_for_door(str(checkpoint), checkpoint)
    assert str(caught.value).removeprefix(f"{checkpoint}/") == summarize_checkpoint(checkpoint).problems[0]


@pytest.mark.parametrize("header", [b"[]", b"{", b'{"a": 5}', b'{"a": {"dtype": "F32"}}', b"\xff"])
def test_a_corrupt_header_is_named(checkpoint: Path, header: bytes) -> None:
    (checkpoint / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert not summarize_checkpoint(checkpoint).servable


def test_quantised_weights_are_named(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["model.layers.0.mlp.up_proj.weight"]["dtype"] = "I32"
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    assert any("has dtype I32; dunlin reads F32" in problem for problem in summarize_checkpoint(checkpoint).problems)


def test_the_command(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "show", str(checkpoint), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layers"] == 2
    (checkpoint / "tokenizer.json").write_text("{}")
    assert main(["model", "show", str(checkpoint)]) == 1
    assert main(["model", "show", str(checkpoint / "nowhere")]) == 2
    assert "no such directory" in capsys.readouterr().err


def test_the_built_in_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DUNLIN_MODELS", raising=False)
    assert main(["model", "show", "builtin:tiny", "--data-dir", str(tmp_path)]) == 0
    assert "dunlin serves it  yes" in capsys.readouterr().out
    assert main(["model", "show", "builtin:huge", "--data-dir", str(tmp_path)]) == 2


def test_the_written_vocabulary_has_an_embedding_for_every_token() -> None:
    assert load_tokenizer(TOKENIZER).max_token_id() == TOKENS - 1


def test_nothing_to_show_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        summarize_checkpoint(tmp_path)


def test_features_and_the_positions_that_are_served(tmp_path: Path) -> None:
    options = {
        "sliding_window": 64,
        "max_position_embeddings": 512,
        "original_max_position_embeddings": 128,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
    }
    write_random_checkpoint(tmp_path / "model", "phi3", replace(SHAPE, options=options))
    shown = summarize_checkpoint(tmp_path / "model")
    assert (shown.max_positions, shown.served_positions, shown.servable) == (512, 128, True)
    assert shown.features == ("window of 64 tokens in 2 of 2 layers", "rope longrope")
    assert "512, of which dunlin serves 128" in render(shown)


def test_positions_that_yarn_adds_are_named(tmp_path: Path) -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    write_random_checkpoint(tmp_path / "model", "qwen2", replace(SHAPE, options={"rope_scaling": yarn}))
    shown = summarize_checkpoint(tmp_path / "model")
    assert (shown.max_positions, shown.served_positions) == (128, 512)
    assert "128, stretched to 512 by yarn" in render(shown)


def test_the_page_of_models_is_what_the_code_says() -> None:
    root = Path(__file__).parents[4]
    fresh = "run `dunlin model list --markdown > docs/models.md`"
    assert (root / "docs/models.md").read_text() == model_list.page() + "\n", fresh
