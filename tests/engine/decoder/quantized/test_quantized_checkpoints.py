"""Whole checkpoints in every format: their weights are bit for bit those of the dense model that they stand for."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from benchmarks.fuzzing.packed_weights import formats, quantise, shard
from dunlin.engine.decoder.loading import weights
from dunlin.engine.decoder.loading.loader import LoadedModel, load_model
from dunlin.engine.decoder.loading.random_checkpoint import CheckpointShape, write_random_checkpoint
from dunlin.engine.decoder.loading.weight_sources import CheckpointSource
from dunlin.engine.decoder.loading.weights import digest_of
from dunlin.engine.decoder.numerics import fast_numerics
from dunlin.model.errors import ModelError
from dunlin.model.families import FAMILIES
from tests.engine.build import Sequences

transformers = pytest.importorskip("transformers")

FORMATS = formats()
SHAPE = CheckpointShape(
    layers=1, hidden=64, heads=4, kv_heads=2, head_dim=16, intermediate=96, vocab=64, max_positions=256
)
RELATIVE = 1e-4
TEXT = torch.randint(0, 64, (60,), generator=torch.Generator().manual_seed(3)).tolist()
FAMILY_OF = dict(zip(FORMATS, list(FAMILIES) * 3, strict=False))


def make(folder: Path, family: str, form: str, layers: int = 1) -> tuple[Path, Path]:
    """The quantised checkpoint and the dense one."""
    write_random_checkpoint(folder / "random", family, replace(SHAPE, layers=layers), seed=len(form))
    quantise(folder / "random", folder / "packed", folder / "plain", FORMATS[form])
    return folder / "packed", folder / "plain"


def load(directory: Path, dtype: str = "float32", layers: tuple[int, ...] | None = None) -> LoadedModel:
    fd = os.memfd_create("quantised")
    return load_model(directory, dtype, 4 << 20, fast_numerics("torch"), fd, layers=layers)


def logits(loaded: LoadedModel) -> Tensor:
    sequences = Sequences(loaded.decoder, {0: list(range(len(TEXT)))})
    return torch.cat([sequences.compute([(0, TEXT[:40], 0)]), sequences.compute([(0, TEXT[40:], 40)])])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_format_has_the_weights_of_the_dense_model(tmp_path: Path, family: str) -> None:
    for form in FORMATS:
        (tmp_path / form).mkdir()
        packed, plain = make(tmp_path / form, family, form)
        for dtype in ("float32", "bfloat16") if family == "llama" else ("float32",):
            own, dense = load(packed, dtype), load(plain, dtype)
            assert own.weights_digest == dense.weights_digest, f"{form} {dtype}"
            own.arena.close()
            dense.arena.close()


@pytest.mark.parametrize("form", FORMATS)
def test_logits_are_those_of_transformers_with_the_dense_model(tmp_path: Path, form: str) -> None:
    packed, plain = make(tmp_path, FAMILY_OF[form], form)
    shard(packed)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        plain, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    with torch.inference_mode():
        theirs = model(torch.tensor([TEXT])).logits[0, [39, 59]]
        worst = (logits(load(packed)) - theirs).abs().max() / theirs.abs().max()
    assert float(worst) < RELATIVE, FAMILY_OF[form]


@pytest.mark.parametrize("form", ["awq", "gptq reordered", "packed", "fp8 by block"])
def test_a_layer_that_comes_back_from_disk_is_dequantised_again(tmp_path: Path, form: str) -> None:
    packed, _ = make(tmp_path, "llama", form, layers=2)
    both, one = load(packed), load(packed, layers=(0,))
    assert one.weights_digest == both.weights_digest, "a layer that is not held has the digest of what it would be"
    room = both.arena.layer_room(1)
    digest = digest_of(room)
    room.content.zero_()
    assert digest_of(room) != digest
    assert sum(CheckpointSource(packed).fill(1, room)) > 0
    assert digest_of(room) == digest


DAMAGE: dict[str, tuple[str, str, list[int], str]] = {
    "group beyond": ("gptq reordered", "g_idx", [2], "has inputs in groups 0 to 2 of 2"),
    "group before": ("packed reordered", "weight_g_idx", [-2], "has inputs in groups -2 to 1 of 2"),
    "shape": ("packed", "weight_shape", [64, 64], "has a `weight_shape` of (64, 64), config.json implies (96, 64)"),
    "zero-point": ("gptq", "qzeros", [-1], "has a zero-point that `checkpoint_format` gptq cannot hold (gptq_v2 can)"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_numbers_that_no_writer_means_are_named_when_they_are_read(tmp_path: Path, name: str) -> None:
    form, last, values, said = DAMAGE[name]
    packed, _ = make(tmp_path, "llama", form, layers=2)
    path = packed / "model.safetensors"
    tensors = safetensors.torch.load(path.read_bytes())
    damaged = tensors[f"model.layers.1.mlp.up_proj.{last}"].view(-1)
    damaged[: len(values)] = torch.tensor(values)
    safetensors.torch.save_file(tensors, path)
    for layers in (None, (0,)):  # held, and not held
        with pytest.raises(ModelError) as caught:
            load(packed, layers=layers)
        assert f"`model.layers.1.mlp.up_proj` {said}" in str(caught.value)


def test_weights_are_read_again_once_config_json_says_otherwise(tmp_path: Path) -> None:
    packed, _ = make(tmp_path, "llama", "gptq")
    fd = os.memfd_create("quantised")
    first = load_model(packed, "float32", 4 << 20, fast_numerics("torch"), fd).weights_digest
    config = json.loads((packed / "config.json").read_text())
    config["quantization_config"]["checkpoint_format"] = "gptq_v2"
    (packed / "config.json").write_text(json.dumps(config))
    assert load_model(packed, "float32", 4 << 20, fast_numerics("torch"), fd).weights_digest != first


def test_rows_are_the_same_however_many_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for form in FORMATS:
        (tmp_path / form).mkdir()
        packed, _ = make(tmp_path / form, "llama", form)
        whole = load(packed).weights_digest
        with monkeypatch.context() as small:
            small.setattr(weights, "PIECE_BYTES", 64)
            assert load(packed).weights_digest == whole, form
