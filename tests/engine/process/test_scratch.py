"""Steps are tried on one layer of each kind, and on KV of their own."""

from pathlib import Path

import pytest
import torch

from dunlin.engine.process.scratch import first_of_each_kind, scratch_decoder
from tests.engine.build import load
from tests.engine.test_families import make


@pytest.mark.parametrize(
    ("case", "layers"),
    [
        ("llama-mha-biases", [0]),
        ("gemma3", [0, 1]),
        ("qwen2-window-from-a-layer", [0, 1]),
        ("qwen3-moe-some-plain", [0, 1]),
    ],
)
def test_of_layers_that_are_alike_the_first_is_computed(tmp_path: Path, case: str, layers: list[int]) -> None:
    """Windows, rotations and experts make layers differ."""
    decoder = load(make(tmp_path, case)).decoder
    assert first_of_each_kind(decoder) == layers
    scratch = scratch_decoder(decoder, 5)
    assert scratch.held_runs == [range(len(layers))]
    for layer, kv in enumerate(scratch.kv):
        assert (kv is decoder.kv[layer]) == (layer not in layers)
        assert layer not in layers or (len(kv), int(torch.count_nonzero(kv))) == (5, 0)
