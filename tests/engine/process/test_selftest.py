"""The test at an engine's start: finite logits, and the same bits in any batch."""

from pathlib import Path

import pytest
import torch

from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.process.selftest import LENGTH, determinism_self_test, has_finite_logits
from tests.engine.build import SHAPES, damage, load, make_checkpoint


@pytest.fixture(scope="module", params=sorted(SHAPES))
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    family, overrides = SHAPES[request.param]
    return load(make_checkpoint(tmp_path_factory.mktemp("model"), family, seed=4, **overrides), deterministic=True)


def test_the_self_test_passes_a_deterministic_decoder_and_fails_a_fast_one(loaded: LoadedModel, tmp_path: Path) -> None:
    assert determinism_self_test(loaded.decoder) is not None
    fast = load(make_checkpoint(tmp_path, seed=4))
    assert determinism_self_test(fast.decoder) is None


def test_the_logits_of_a_damaged_checkpoint_are_found_not_finite(tmp_path: Path) -> None:
    sound = make_checkpoint(tmp_path)
    assert has_finite_logits(load(sound).decoder)
    # `damage` makes the embedding of one token NaN: the last token of the text that the test computes.
    last = torch.randint(0, 512, (LENGTH,), generator=torch.Generator().manual_seed(0))[-1]
    assert not has_finite_logits(load(damage(sound, int(last))).decoder)


@pytest.mark.parametrize("layer", range(3))
def test_weights_that_are_not_finite_are_found_in_whatever_layer(tmp_path: Path, layer: int) -> None:
    decoder = load(make_checkpoint(tmp_path, layers=3)).decoder
    assert has_finite_logits(decoder)
    decoder.blocks(layer)["down"][0, 0] = torch.nan
    assert not has_finite_logits(decoder)


def test_the_slab_keeps_what_an_earlier_process_left(tmp_path: Path) -> None:
    loaded = load(make_checkpoint(tmp_path), deterministic=True)
    for layer in loaded.decoder.kv:
        layer[: loaded.slots].fill_(7.0)
    assert has_finite_logits(loaded.decoder)
    assert determinism_self_test(loaded.decoder) is not None
    assert all(torch.all(layer[: loaded.slots] == 7.0) for layer in loaded.decoder.kv)


def test_a_model_of_few_positions_is_tested_within_them(tmp_path: Path) -> None:
    loaded = load(make_checkpoint(tmp_path, max_positions=1), deterministic=True)
    assert has_finite_logits(loaded.decoder)
    logits = determinism_self_test(loaded.decoder)
    assert logits is not None
    assert logits.shape == (512,)
