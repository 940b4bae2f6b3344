"""Shapes: sizes of known models, any configuration, and refusals that say what is missing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dunlin.cost.shapes import SHAPES, ModelShape, ShapeError, find_shape, shape_of

CONFIG = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "torch_dtype": "float32",
}


@pytest.mark.parametrize(
    ("name", "billions"), [("llama-2-7b", 6.74), ("llama-3-8b", 8.03), ("llama-3-70b", 70.6), ("qwen-2.5-72b", 72.7)]
)
def test_known_models_weigh_what_they_are_called(name: str, billions: float) -> None:
    assert SHAPES[name].weights_bytes() / 2e9 == pytest.approx(billions, rel=0.01)


def test_kv_is_held_twice_once_there_are_more_gpus_than_kv_heads() -> None:
    shape = SHAPES["llama-3-70b"]
    assert shape.kv_bytes_per_token() == shape.kv_bytes_per_token(8) == 2 * 80 * 8 * 128 * 2
    assert shape.kv_bytes_per_token(16) == 2 * shape.kv_bytes_per_token()


def test_a_configuration_gives_a_shape(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    shape = find_shape(str(tmp_path))
    assert shape == ModelShape(tmp_path.name, 2, 64, 4, 2, 128, 100, head_dim=16, dtype_bytes=4)
    assert find_shape(str(tmp_path / "config.json")) == shape


@pytest.mark.parametrize(
    ("said", "size"),
    [({"torch_dtype": "bfloat16"}, 2), ({"dtype": "float16"}, 2), ({"dtype": "float32"}, 4), ({}, 2)],
)
def test_weights_have_two_bytes_unless_they_are_said_to_be_float32(said: dict[str, str], size: int) -> None:
    config = {key: value for key, value in CONFIG.items() if key != "torch_dtype"}
    assert shape_of({**config, **said}, "it").dtype_bytes == size


@pytest.mark.parametrize("missing", [key for key in CONFIG if key not in ("torch_dtype", "num_key_value_heads")])
def test_what_a_configuration_lacks_is_named(missing: str) -> None:
    config = {key: value for key, value in CONFIG.items() if key != missing}
    with pytest.raises(ShapeError, match=missing):
        shape_of(config, "it")


def test_mixtures_are_refused() -> None:
    with pytest.raises(ShapeError, match="mixtures"):
        shape_of({**CONFIG, "num_experts": 8}, "it")


def test_no_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ShapeError, match="no JSON"):
        find_shape(str(tmp_path))


def test_what_is_no_configuration_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ShapeError, match="an object must stand there"):
        find_shape(str(tmp_path))


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("num_attention_heads", 0, "heads is 0, no whole number from 1 on"),
        ("num_key_value_heads", [2, 4], r"kv_heads is \[2, 4\], no whole number"),
        ("head_dim", 2.5, "head_dim is 2.5, no whole number"),
        ("hidden_size", -64, "hidden is -64, no whole number"),
    ],
)
def test_a_size_that_is_none_is_named(key: str, value: object, complaint: str) -> None:
    with pytest.raises(ShapeError, match=complaint):
        shape_of({**CONFIG, key: value}, "it")


@pytest.mark.parametrize("tp", [-1, 0, 3, 16])
def test_gpus_must_share_evenly(tp: int) -> None:
    with pytest.raises(ShapeError, match=f"cannot run on {tp} GPUs"):
        SHAPES["qwen-2.5-7b"].check_tp(tp)


def test_heads_must_share_evenly() -> None:
    with pytest.raises(ShapeError, match="evenly"):
        ModelShape("it", 1, 64, 6, 4, 128, 100)


@pytest.mark.parametrize(("name", "parameters"), [("phi-3-mini", 3_821_079_552), ("phi-3-medium", 13_960_238_080)])
def test_phi_3_has_the_parameters_that_are_published(name: str, parameters: int) -> None:
    """Both counts hold the norms, which the shape leaves out: two of each layer, and the last."""
    shape = SHAPES[name]
    norms = (2 * shape.layers + 1) * shape.hidden
    assert shape.weights_bytes() == 2 * (parameters - norms)


def test_phi_3_mini_is_as_transformers_has_it() -> None:
    config = pytest.importorskip("transformers").Phi3Config().to_dict()
    assert replace(shape_of(config, "phi-3-mini"), dtype_bytes=2) == SHAPES["phi-3-mini"]
