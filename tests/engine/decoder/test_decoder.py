"""The forward pass: packed batches, and the KV that it writes."""

import pytest
import torch

from dunlin.engine.attention.base import local_row
from dunlin.engine.decoder.decoder import DecoderBatch
from dunlin.engine.decoder.iteration import forward
from dunlin.engine.decoder.loading.loader import LoadedModel
from tests.engine.build import Sequences, load, make_checkpoint, nothing

TOKENS = list(range(7, 27))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load(make_checkpoint(tmp_path_factory.mktemp("model"), seed=6), deterministic=True)


def test_logits_are_of_the_sampled_tokens_in_their_order(loaded: LoadedModel) -> None:
    slots, row = torch.arange(20), local_row(0, 20, 0, 20)
    tokens = torch.tensor(TOKENS)
    whole = forward(loaded.decoder, DecoderBatch(tokens, slots, slots, [row], slots), nothing)
    some = forward(loaded.decoder, DecoderBatch(tokens, slots, slots, [row], torch.tensor([19, 3])), nothing)
    assert (whole.shape, whole.dtype) == ((20, 512), torch.float32)
    assert torch.equal(some, whole[[19, 3]])


def test_a_batch_without_samples_writes_its_kv_and_has_no_logits(loaded: LoadedModel) -> None:
    sequences = Sequences(loaded.decoder, {0: list(range(300, 320)), 1: list(range(400, 420))})
    places = torch.arange(19)
    silent = DecoderBatch(torch.tensor(TOKENS[:19]), places, places + 300, [local_row(0, 19, 300, 19)], places[:0])
    assert forward(loaded.decoder, silent, nothing).shape == (0, 512)
    after = sequences.compute([(0, TOKENS[19:], 19)])
    assert torch.equal(after, sequences.compute([(1, TOKENS, 0)]))


def test_only_the_named_slots_are_written(loaded: LoadedModel) -> None:
    decoder = loaded.decoder.with_kv([torch.full((40, *layer.shape[1:]), 7.0) for layer in loaded.decoder.kv])
    Sequences(decoder, {0: [5, 30, 6]}).compute([(0, TOKENS[:3], 0)])
    for layer in decoder.kv:
        written = (layer != 7.0).flatten(1).any(dim=1).nonzero().flatten().tolist()
        assert written == [5, 6, 30]


def test_the_order_of_earlier_tokens_matters(loaded: LoadedModel) -> None:
    """Without positions, attention would see the same set of keys."""
    sequences = Sequences(loaded.decoder, {0: [600, 601, 602], 1: [700, 701, 702]})
    one, other = sequences.compute([(0, [9, 11, 5], 0), (1, [11, 9, 5], 0)])
    assert not torch.allclose(one, other, atol=1e-3)


def test_other_kv_leaves_the_decoder_as_it_was(loaded: LoadedModel) -> None:
    scratch = loaded.decoder.with_kv([torch.zeros(8, *layer.shape[1:]) for layer in loaded.decoder.kv])
    before = [layer[:8].clone() for layer in loaded.decoder.kv]
    Sequences(scratch, {0: [0, 1, 2]}).compute([(0, TOKENS[:3], 0)])
    assert all(torch.equal(layer[:8], kept) for layer, kept in zip(loaded.decoder.kv, before, strict=True))
    assert scratch.config is loaded.decoder.config
