"""Small batches are computed before the first request: every size once, and nothing of it in the slab."""

from pathlib import Path

import torch

from dunlin.engine.process.warmup import warm_up
from tests.engine.build import load, make_checkpoint


def test_every_small_batch_is_computed_and_the_slab_stays_as_it_was(tmp_path: Path) -> None:
    loaded = load(make_checkpoint(tmp_path))
    for layer in loaded.decoder.kv:
        layer[: loaded.slots].fill_(7.0)
    passed = 0

    def count() -> None:
        nonlocal passed
        passed += 1

    warm_up(loaded.decoder, count, rows_max=5, tokens_max=40)
    assert passed == (5 + 2) * 3 * loaded.config.layers  # phases; and prompts of 21 and 37 tokens
    assert all(torch.all(layer[: loaded.slots] == 7.0) for layer in loaded.decoder.kv)
