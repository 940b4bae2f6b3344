"""Decode steps go by their kernel where it computes what the decoder does."""

from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dunlin.engine.attention.base import LocalRows
from dunlin.engine.attention.native.library import KernelUnavailable
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.native import decode_choice
from dunlin.engine.decoder.native.decode_choice import TRIED_ROWS, agrees, choose_decode_steps, rows_worth_it
from dunlin.engine.decoder.native.decode_steps import DecodeStep, load_decode_kernel
from dunlin.engine.device.base import cpu_device
from tests.engine.build import load, make_checkpoint


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    directory = make_checkpoint(tmp_path_factory.mktemp("model"), layers=2, head_dim=32, dtype="bfloat16")
    return load(directory, dtype="bfloat16").decoder


def given() -> tuple[DecoderBatch, None]:
    """A step of one row."""
    one = torch.tensor([3])
    rows = LocalRows([0], [1], [4], [(array("q", [0]), array("q", [0]))])
    return DecoderBatch(one, one, one, rows, one[:0]), None


@pytest.fixture
def _kernel(decoder: Decoder) -> None:
    try:
        load_decode_kernel(decoder)
    except KernelUnavailable as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize("factor", [1.0, 1.05])
def test_the_processors_engine_takes_the_kernel_if_it_agrees(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    wait = DecodeStep.wait

    def scaled(self: DecodeStep) -> Tensor:
        wait(self)
        return factor * self.states

    monkeypatch.setattr(DecodeStep, "hidden", property(scaled))
    begin = cpu_device().begin_segments
    assert begin is not None
    assert agrees(decoder) is (factor == 1.0)
    assert (begin(decoder, None)(*given()) is not None) is (factor == 1.0)


@pytest.mark.usefixtures("_kernel")
def test_a_kernel_with_other_logits_does_not_agree(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = DecodeStep.logits

    def moved(self: DecodeStep, places: Sequence[int]) -> Tensor:
        found = logits(self, places)
        assert found is not None
        return found.roll(1, dims=1)

    assert agrees(decoder)
    monkeypatch.setattr(DecodeStep, "logits", moved)
    assert not agrees(decoder)


@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize("slower", range(len(TRIED_ROWS) + 1))
def test_steps_of_more_rows_than_the_kernel_is_worth_go_layer_by_layer(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, slower: int
) -> None:
    """The kernel takes longer in so many trials, and as long in the next."""
    kernel = load_decode_kernel(decoder)
    kernel.most_rows = TRIED_ROWS[0]
    times = [(2.0, 1.0)] * slower + [(1.0, 1.0)]
    monkeypatch.setattr(decode_choice, "least_s", lambda _, turns: times.pop(0))
    assert rows_worth_it(kernel, decoder) == [*TRIED_ROWS, 0][slower]
    kernel.most_rows = TRIED_ROWS[1]
    times = [(1.0, 1.0)]
    assert rows_worth_it(kernel, decoder) == TRIED_ROWS[1]
    kernel.most_rows = 0
    assert kernel.begin(*given()) is None


@pytest.mark.usefixtures("_kernel")
def test_the_check_leaves_the_decoders_kv_alone(decoder: Decoder) -> None:
    kv = [torch.full((4, *layer.shape[1:]), 2.0, dtype=torch.bfloat16) for layer in decoder.kv]
    assert agrees(decoder.with_kv(kv))
    assert all(bool((layer == 2.0).all()) for layer in kv)


def test_a_model_that_the_kernel_cannot_compute_goes_without_it(tmp_path: Path) -> None:
    other = load(make_checkpoint(tmp_path)).decoder
    assert choose_decode_steps(other)(*given()) is None
