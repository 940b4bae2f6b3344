"""Ranks compute what one rank computes."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dunlin.engine.attention.base import local_row
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.iteration import Iteration
from dunlin.engine.decoder.piece_sizes import PieceSizes
from tests.engine.build import Sequences, load, make_checkpoint
from tests.engine.ranks.two_ranks import load_ranks, together

TEXT = torch.randint(0, 500, (60,), generator=torch.Generator().manual_seed(4)).tolist()
MODELS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "llama gqa": ("llama", 2, {}),
    "llama mha, three ranks": ("llama", 3, {"kv_heads": 6, "intermediate": 192, "vocab": 511}),
    "qwen2 biases, tied": ("qwen2", 2, {"tied": True, "vocab": 501}),
    "qwen3 norms of heads": ("qwen3", 2, {"heads": 8, "kv_heads": 4}),
    "phi3 fused tensors": ("phi3", 2, {}),
    "gemma2 norms and caps": ("gemma2", 2, {"options": {"final_logit_softcapping": 20.0}}),
    "llama biases": ("llama", 2, {"options": {"attention_bias": True, "mlp_bias": True}}),
}


def logits(decoder: Decoder) -> Tensor:
    """After a prompt in two chunks beside another text, and after each of three tokens more."""
    texts = Sequences(decoder, {0: list(range(64)), 1: list(range(199, 135, -1))})
    found = [texts.compute([(0, TEXT[:40], 0)]), texts.compute([(0, TEXT[40:50], 40), (1, TEXT[5:25], 0)])]
    found += [texts.compute([(0, [TEXT[at]], at), (1, [TEXT[at]], at - 30)]) for at in range(50, 53)]
    return torch.cat(found)


@pytest.mark.parametrize(("family", "ranks", "shape"), MODELS.values(), ids=list(MODELS))
def test_logits_are_those_of_one_rank(tmp_path: Path, family: str, ranks: int, shape: dict[str, Any]) -> None:
    directory = make_checkpoint(tmp_path, family, **shape)
    expected = logits(load(directory).decoder)
    found = together(*(partial(logits, each.decoder) for each in load_ranks(directory, ranks)))
    assert all(torch.equal(each, found[0]) for each in found[1:])
    torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


def test_logits_in_bf16_are_near_those_of_one_rank(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path, dtype="bfloat16")
    expected = logits(load(directory, dtype="bfloat16").decoder)
    found = together(*(partial(logits, each.decoder) for each in load_ranks(directory, dtype="bfloat16")))
    assert torch.equal(*found)
    assert float((found[0] - expected).norm() / expected.norm()) < 0.03


@torch.inference_mode()
def hidden_states(decoder: Decoder, sizes: PieceSizes | None) -> Tensor:
    """Of a prompt after the last layer."""
    places = torch.arange(len(TEXT))
    batch = DecoderBatch(torch.tensor(TEXT), places, places, [local_row(0, len(TEXT), 0, len(TEXT))], places[-1:])
    iteration = Iteration(decoder, batch, range(3), sizes)
    while not iteration.done:
        iteration.advance()
    return iteration.hidden


def test_work_by_columns_gives_the_same(tmp_path: Path) -> None:
    """Products that are cut into pieces, each summed with its last columns."""
    directory = make_checkpoint(tmp_path, "qwen2", hidden=128, intermediate=256)
    expected = hidden_states(load(directory).decoder, None)
    pieces = [
        partial(hidden_states, each.decoder, PieceSizes(0.0, lambda: 0.0, 16, 32)) for each in load_ranks(directory)
    ]
    found = together(*pieces)
    assert torch.equal(*found)
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-4)


def test_a_rank_has_its_part_of_weights_and_kv(tmp_path: Path) -> None:
    directory = make_checkpoint(tmp_path)
    one, parts = load(directory), load_ranks(directory)
    assert parts[0].weights_digest == one.weights_digest
    assert parts[0].layer_digests == one.layer_digests
    assert parts[0].config == one.config
    whole, half = one.arena.plan.weights[0], parts[1].arena.plan.weights[0]
    assert half <= whole // 2 + 1
    assert [each.slots for each in parts] == [one.slots] * 2
    assert parts[0].arena.plan.digest != parts[1].arena.plan.digest
