"""The kernel of decode steps from tokens to tokens: logits, the greatest of them, and steps that are launched before
the one that chooses their tokens is done.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dunlin.engine.attention.native.library import KernelUnavailable
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.native.decode_steps import ALL_BEGUN, DecodeKernel, DecodeStep, load_decode_kernel
from dunlin.engine.decoder.sampling.sampling import SampledToken, SamplingInput, sample_tokens
from dunlin.messages.types import SamplingParams
from tests.engine.build import load
from tests.engine.decoder.test_decode_steps import LEVELS, at_level, checkpoint, make_batch, with_keys

LENGTHS = (3, 40, 257)
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    with torch.inference_mode():
        yield
    torch.set_num_threads(threads)


def make_decoder(folder: Path, **sizes: Any) -> Decoder:
    decoder = with_keys(load(checkpoint(folder, **sizes), dtype="bfloat16").decoder, LENGTHS)
    try:
        load_decode_kernel(decoder)
    except KernelUnavailable as error:
        pytest.skip(str(error))
    return decoder


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return make_decoder(tmp_path_factory.mktemp("model"))


def launch(kernel: DecodeKernel, batch: DecoderBatch, hidden: Tensor | None = None) -> DecodeStep:
    step = kernel.begin(batch, hidden)
    assert step is not None
    assert step.run(0, 2) == 2
    return step


def chosen(step: DecodeStep) -> list[SampledToken | None]:
    greatest = step.greatest(range(len(step.lengths)))
    assert greatest is not None
    return greatest.read()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sizes", [{}, {"tied": True}, {"hidden": 76, "intermediate": 84}])
def test_logits_are_those_of_the_hidden_states(tmp_path: Path, level: str, sizes: dict[str, Any]) -> None:
    decoder = make_decoder(tmp_path, **sizes)
    step = launch(at_level(load_decode_kernel(decoder), level), make_batch(LENGTHS))
    wanted, found = decoder.logits(step.hidden), step.logits([0, 1, 2])
    assert found is not None
    assert found.dtype is torch.float32
    assert torch.allclose(found, wanted, atol=0.02 * float(wanted.abs().max()))
    some = step.logits([2, 0])
    assert some is not None
    assert torch.equal(some, found[[2, 0]])
    assert chosen(step) == sample_tokens(found, [SamplingInput(GREEDY, [1], 1)] * 3)


SPECIAL = {
    "ties": (1.0, 1.0),
    "zeros of both signs": (0.0, -0.0),
    "one is no number": (1.0, float("nan")),
    "one is infinite": (1.0, float("inf")),
    "one is infinite the other way": (1.0, float("-inf")),
    "all are infinite": (float("inf"), float("-inf")),
    "tiny ones": (1e-39, -1e-39),
}


@pytest.mark.parametrize("name", SPECIAL)
@pytest.mark.parametrize("vocabulary", [4, 32, 36, 100, 1000])
def test_of_the_logits_the_first_greatest_is_chosen(decoder: Decoder, name: str, vocabulary: int) -> None:
    """The same as where they are searched outside. One input of the head counts, of either sign."""
    kernel, random = load_decode_kernel(decoder), torch.Generator().manual_seed(vocabulary)
    norm = torch.zeros(decoder.config.hidden, dtype=torch.bfloat16)
    norm[0] = 1
    head = torch.zeros(vocabulary, decoder.config.hidden, dtype=torch.bfloat16)
    kernel._outer, kernel._call.vocabulary = (decoder.outer["embed"], norm, head), vocabulary
    for _ in range(20):
        values = torch.tensor(SPECIAL[name])
        head[:, 0] = values[torch.randint(0, len(values), (vocabulary,), generator=random)].bfloat16()
        step = launch(kernel, make_batch(LENGTHS))
        logits = step.logits([0, 1, 2])
        assert logits is not None
        assert chosen(step) == sample_tokens(logits, [SamplingInput(GREEDY, [1], 1)] * 3)


def test_a_step_may_be_launched_before_its_tokens_are_chosen(tmp_path: Path) -> None:
    """And gives what it gives afterwards: tokens, KV and logits."""
    texts, kv = [], []
    for ahead in (False, True):
        decoder = make_decoder(tmp_path / str(ahead))
        kernel, batches = load_decode_kernel(decoder), [make_batch(tuple(n + i for n in (3, 40, 57))) for i in range(6)]
        step, steps = launch(kernel, batches[0]), []
        for batch in batches[1:]:
            greatest = step.greatest([0, 1, 2])
            assert greatest is not None
            if not ahead:
                greatest.read()
            tokens = greatest.following([0, 1, 2])
            assert tokens is not None
            steps.append(step)
            step = launch(kernel, replace(batch, tokens=tokens))
        kernel.join(ALL_BEGUN)
        texts.append([chosen(each) for each in [*steps, step]])
        kv.append(decoder.kv)
    assert texts[0] == texts[1]
    assert len({str(each) for each in texts[0]}) > 1, "the tokens change from step to step"
    assert all(torch.equal(one, other) for one, other in zip(*kv, strict=True))


def test_tokens_that_are_not_chosen_yet_follow_in_their_order_alone(decoder: Decoder) -> None:
    greatest = launch(load_decode_kernel(decoder), make_batch(LENGTHS)).greatest([0, 1, 2])
    assert greatest is not None
    assert greatest.following([0, 1, 2]) is not None
    assert greatest.following([0, 2, 1]) is None
    assert greatest.following([0, 1]) is None


def test_of_some_rows_nothing_is_chosen(decoder: Decoder) -> None:
    assert launch(load_decode_kernel(decoder), make_batch(LENGTHS)).greatest([0, 2]) is None


def test_before_the_last_layer_there_are_no_logits(decoder: Decoder) -> None:
    step = load_decode_kernel(decoder).begin(make_batch(LENGTHS), None)
    assert step is not None
    step.run(0, 1)
    assert (step.logits([0]), step.greatest([0, 1, 2])) == (None, None)
    step.run(1, 2)
    assert step.greatest([0, 1, 2]) is not None


def test_a_vocabulary_that_the_kernel_does_not_divide_goes_without(tmp_path: Path) -> None:
    decoder = make_decoder(tmp_path, vocab=102)
    step = launch(load_decode_kernel(decoder), make_batch(LENGTHS))
    assert (step.logits([0]), step.greatest([0, 1, 2])) == (None, None)
    assert bool(step.hidden.isfinite().all())


def test_a_row_without_a_choice_harms_no_other_in_the_next_step(tmp_path: Path) -> None:
    decoder = make_decoder(tmp_path)
    kernel, batch = load_decode_kernel(decoder), make_batch(LENGTHS)
    found, wanted = (launch(kernel, replace(batch, tokens=torch.tensor([5, token, 7]))).hidden for token in (-1, 0))
    assert torch.equal(found, wanted)


def test_who_joins_for_a_moment_leaves_the_rest_to_others(decoder: Decoder) -> None:
    """With one thread nobody else computes: each moment ends after one task."""
    torch.set_num_threads(1)
    kernel, batch = load_decode_kernel(decoder), make_batch(LENGTHS)
    step, moments = launch(kernel, batch), 1
    while not kernel.join(step.ticket, 0.0):
        moments += 1
    assert moments > 20
    assert torch.equal(step.hidden, launch(kernel, batch).hidden)


def test_what_is_refused_waits_for_what_is_under_way(decoder: Decoder) -> None:
    torch.set_num_threads(1)
    kernel, batch = load_decode_kernel(decoder), make_batch(LENGTHS)
    launch(kernel, batch)
    assert not kernel.join(ALL_BEGUN, 0.0)
    assert kernel.begin(make_batch((2,) * 65), None) is None
    assert kernel.join(ALL_BEGUN, 0.0)
