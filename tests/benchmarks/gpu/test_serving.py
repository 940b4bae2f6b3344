"""The parts of `benchmarks.gpu.serving` that need neither a GPU nor a cluster."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from benchmarks.gpu.plan import TINY
from benchmarks.gpu.serving import checkpoint
from benchmarks.gpu.serving.processes import core_seconds, since
from tests.engine.build import load


def test_a_large_checkpoint_loads_and_each_of_its_tokens_has_a_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SHARD_BYTES", 1 << 16)
    directory = tmp_path / "model"
    checkpoint.write_large_checkpoint(directory, replace(TINY.speed, vocab=5000), torch.device("cpu"))
    assert len(list(directory.glob("model-*.safetensors"))) > 2
    assert load(directory).config.vocab == 5000
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    texts = [tokenizer.decode([token]) for token in range(4096, 5000)]
    assert all(texts)
    assert len(set(texts)) == len(texts)


def test_core_seconds_are_of_processes_that_used_some() -> None:
    assert core_seconds(os.getpid())
    assert since({"engine": 1.0}, {"engine": 3.5, "door": 0.2, "idle": 0.01}) == {"door": 0.2, "engine": 2.5}
