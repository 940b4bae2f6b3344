"""Sampling for all rows at once makes the choices that sampling row by row makes."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dunlin.engine.decoder.sampling.device_sampling import choose_on_device, gumbel_noise
from dunlin.engine.decoder.sampling.gumbel import gumbel_noise as noise_by_token
from dunlin.engine.decoder.sampling.sampling import SamplingInput, sample_tokens
from dunlin.messages.types import SamplingParams, f32, i32

VOCABULARY = 500


def draw(tokens: int = 5, **sampling: object) -> SamplingInput:
    return SamplingInput(SamplingParams(**sampling), list(range(tokens)), 3)  # type: ignore[arg-type]


def logits(rows: int, seed: int = 0) -> torch.Tensor:
    return 4 * torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed))


def test_the_noise_is_the_same_number_for_number() -> None:
    keys = [0, 1, 12345, (1 << 63) + 5, (1 << 64) - 1]
    ours = gumbel_noise(keys, 1000, torch.device("cpu")).numpy()
    theirs = np.stack([noise_by_token(key, np.arange(1000)) for key in keys])
    assert np.allclose(ours, theirs, rtol=1e-13, atol=0)


params = st.builds(
    draw,
    tokens=st.integers(3, 40),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 40, VOCABULARY, 9999]),
    top_p=st.sampled_from([0.01, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.9]),
    seed=st.integers(0, 1 << 40),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
)


@settings(max_examples=60, deadline=None)
@given(draws=st.lists(params, min_size=1, max_size=6), seed=st.integers(0, 1000))
def test_a_batch_has_the_choices_of_its_rows(draws: list[SamplingInput], seed: int) -> None:
    scores = logits(len(draws), seed)
    assert choose_on_device(scores, draws).read() == sample_tokens(scores, draws)


def test_of_equally_likely_tokens_the_first_are_in_the_nucleus() -> None:
    scores = torch.zeros(1, VOCABULARY)
    for seed in range(30):
        draws = [draw(temperature=1.0, top_p=0.1, seed=seed)]
        (found,) = choose_on_device(scores, draws).read()
        assert found == sample_tokens(scores, draws)[0]
        assert found is not None
        assert found.token < 50


def test_logprobs_and_biases_are_those_of_the_row() -> None:
    scores = logits(2)
    draws = [
        draw(temperature=0.0, logprobs=3, bias_tokens=i32([7, 9]), bias_values=f32([50.0, -50.0])),
        draw(temperature=1.0, seed=4, logprobs=0, bad_tokens=i32([3]), bad_stops=i32([1])),
    ]
    found = choose_on_device(scores, draws).read()
    assert found == sample_tokens(scores, draws)
    assert found[0] is not None
    assert found[0].token == 7


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_finite_best_score_has_no_token(temperature: float) -> None:
    scores = logits(3)
    scores[1, 4] = float("nan")
    scores[2] = float("-inf")
    found = choose_on_device(scores, [draw(temperature=temperature, seed=each) for each in range(3)]).read()
    assert [each is None for each in found] == [False, True, True]
