"""Small batches are computed before the first request: every size once, and nothing of it in the slab."""

from pathlib import Path

import torch

from dunlin.engine.device.warm_steps import GPU_WARM_STEPS, WarmRow, host_warm_steps
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

    warm_up(loaded.decoder, count, host_warm_steps(rows=5, tokens=40))
    assert passed == (5 + 2) * 3  # phases of one layer; and prompts of 21 and 37 tokens
    assert all(torch.all(layer[: loaded.slots] == 7.0) for layer in loaded.decoder.kv)


def test_decode_rows_of_a_gpu_are_computed_beside_their_keys_and_a_prompt(tmp_path: Path) -> None:
    loaded = load(make_checkpoint(tmp_path), attention="torch")
    planned: list[list[tuple[int, int, bool]]] = []
    plan = loaded.decoder.numerics.attention.plan

    def watched(rows, kind):  # type: ignore[no-untyped-def]
        planned.append([(row.tokens, row.length, len(row.keys) > 1) for row in rows])
        return plan(rows, kind)

    loaded.decoder.numerics.attention.plan = watched  # type: ignore[assignment,method-assign]
    warm_up(loaded.decoder, lambda: None, GPU_WARM_STEPS)
    assert planned == [[(row.tokens, row.keys, row.is_cut) for row in step] for step in GPU_WARM_STEPS]


def test_rows_too_long_for_the_model_are_left_out(tmp_path: Path) -> None:
    loaded = load(make_checkpoint(tmp_path))
    most = loaded.config.max_positions
    warm_up(loaded.decoder, lambda: None, [(WarmRow(1, most + 1),), (WarmRow(1, 2), WarmRow(1, most + 1))])
