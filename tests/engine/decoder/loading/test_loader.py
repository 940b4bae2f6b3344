"""Weights and KV laid out in one arena, the same way each time."""

import json
import os
from pathlib import Path

import pytest
import torch

from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.loading.loader import load_model, open_loaded_model
from dunlin.engine.decoder.memory.layer_layout import GRANULE_BYTES
from dunlin.model.kv_dtypes import FP8
from tests.engine.build import load, make_checkpoint

SLOT_BYTES = 2 * 2 * 16 * 4


def test_slots_are_what_fits_in_whole_granules(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path)
    loaded = load(directory, kv_bytes=3 * 2 * GRANULE_BYTES + 1000)
    assert (loaded.slots, loaded.quantum) == (2 * GRANULE_BYTES // SLOT_BYTES, GRANULE_BYTES // SLOT_BYTES)
    assert loaded.arena.free_granules == 0
    loaded.decoder.kv[2][loaded.slots - 1] = 1.0  # the last slot is mapped
    halved = load(directory, kv_bytes=3 * 2 * GRANULE_BYTES, dtype="bfloat16")
    assert halved.slots == 2 * loaded.slots
    assert halved.weights_digest != loaded.weights_digest


def test_kv_of_narrower_numbers_has_more_slots_and_is_not_taken_for_other_kv(tmp_path: Path) -> None:
    directory, fd = make_checkpoint(tmp_path), os.memfd_create("arena")
    kv_bytes, chosen = 3 * 2 * GRANULE_BYTES, numerics.fast_numerics()
    whole = load_model(directory, "bfloat16", kv_bytes, chosen, fd)
    identity = whole.arena.identity
    whole.arena.close()
    narrow = load_model(directory, "bfloat16", kv_bytes, chosen, fd, kv_dtype=FP8)
    assert narrow.slots == 2 * whole.slots
    assert narrow.decoder.dtype is torch.bfloat16
    assert {layer.dtype for layer in narrow.decoder.kv} == {torch.float8_e4m3fn}
    assert narrow.arena.identity != identity, "what lay in the slots is gone"
    assert narrow.weights_digest == whole.weights_digest
    again = open_loaded_model(directory, "bfloat16", kv_bytes, chosen, fd, FP8)
    assert again is not None
    assert open_loaded_model(directory, "bfloat16", kv_bytes, chosen, fd) is None


def test_the_digest_names_the_rope_and_all_else_that_kv_depends_on(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path)
    before = load(directory)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "rope_theta": 20_000.0}))
    assert load(directory).weights_digest != before.weights_digest


def test_a_slot_larger_than_a_granule(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path, heads=66, kv_heads=66, head_dim=128, layers=1, hidden=64)
    loaded = load(directory, kv_bytes=5 * GRANULE_BYTES)
    assert (loaded.slots, loaded.quantum) == (5 * GRANULE_BYTES // (2 * 66 * 128 * 4), 1)


def test_too_little_is_refused_with_what_it_takes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"give at least {3 * GRANULE_BYTES}"):
        load(make_checkpoint(tmp_path), kv_bytes=3 * GRANULE_BYTES - 1)


def test_kv_outlives_the_decoder_that_wrote_it(tmp_path: Path) -> None:
    """A restarted engine on the same memfd finds every slot where it was, behind weights that it read anew."""
    directory, fd = make_checkpoint(tmp_path), os.memfd_create("arena")
    first = load_model(directory, "float32", 1 << 20, numerics.fast_numerics(), fd)
    draw = torch.Generator().manual_seed(1)
    written = [torch.randn(first.slots, 2, 2, 16, generator=draw) for _ in first.decoder.kv]
    for layer, content in zip(first.decoder.kv, written, strict=True):
        layer[: first.slots] = content
    first.arena.close()
    second = load_model(directory, "float32", 1 << 20, numerics.fast_numerics(), fd)
    assert all(
        torch.equal(layer[: second.slots], content) for layer, content in zip(second.decoder.kv, written, strict=True)
    )
    assert second.weights_digest == first.weights_digest
    second.arena.close()
    os.close(fd)
