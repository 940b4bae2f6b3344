"""`dunlin model show`: what a checkpoint's files say, and every reason why it cannot be served."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from dunlin.cli.main import main
from dunlin.cli.model_show import render, show
from dunlin.engine.checkpoint import Shape, init_checkpoint
from dunlin.engine.errors import ModelError

SHAPE = Shape(layers=2, hidden=32, heads=4, kv_heads=2, head_dim=8, intermediate=48, vocab=300, max_positions=128)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    init_checkpoint(tmp_path / "model", "llama", SHAPE, 0)
    return tmp_path / "model"


def change(checkpoint: Path, **values: Any) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_checkpoint_that_can_be_served(checkpoint: Path) -> None:
    shown = show(checkpoint)
    assert (shown.layers, shown.heads, shown.kv_heads, shown.head_dim, shown.max_positions) == (2, 4, 2, 8, 128)
    layer = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 48 + 2 * 32
    assert shown.parameters == 2 * shown.vocabulary * 32 + 2 * layer + 32 if shown.vocabulary else False
    assert shown.weight_bytes == 4 * shown.parameters
    assert (shown.kv_bytes_per_token_bf16, shown.kv_bytes_per_token_fp32) == (2 * 2 * 2 * 8 * 2, 2 * 2 * 2 * 8 * 4)
    assert shown.dtypes == {"F32": 21}
    assert (shown.servable, shown.problems) == (True, ())
    assert "dunlin serves it  yes" in render(shown)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"num_attention_heads": 3}, "3"),
        ({"num_hidden_layers": 3}, "7 tensors are missing, the first is model.layers.2.self_attn.q_proj.weight"),
    ],
)
def test_a_configuration_that_cannot(checkpoint: Path, values: dict[str, Any], said: str) -> None:
    change(checkpoint, **values)
    shown = show(checkpoint)
    assert not shown.servable
    assert any(said in problem for problem in shown.problems)
    assert said in render(shown)


def test_missing_files(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()
    (checkpoint / "model.safetensors").unlink()
    problems = " ".join(show(checkpoint).problems)
    assert "tokenizer.json is missing" in problems
    assert "no *.safetensors" in problems


@pytest.mark.parametrize("keep", [0, 5, 40, 20_000])
def test_a_truncated_file_is_named(checkpoint: Path, keep: int) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert any(problem.startswith("model.safetensors cannot be read") for problem in show(checkpoint).problems)


@pytest.mark.parametrize("header", [b"[]", b"{", b'{"a": 5}', b'{"a": {"dtype": "F32"}}', b"\xff"])
def test_a_corrupt_header_is_named(checkpoint: Path, header: bytes) -> None:
    (checkpoint / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert not show(checkpoint).servable


def test_quantised_weights_are_named(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["model.layers.0.mlp.up_proj.weight"]["dtype"] = "I32"
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    assert any("is I32" in problem for problem in show(checkpoint).problems)


def test_the_command(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "show", str(checkpoint), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layers"] == 2
    (checkpoint / "tokenizer.json").unlink()
    assert main(["model", "show", str(checkpoint)]) == 1
    assert main(["model", "show", str(checkpoint / "nowhere")]) == 2
    assert "no such directory" in capsys.readouterr().err


def test_nothing_to_show_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        show(tmp_path)
