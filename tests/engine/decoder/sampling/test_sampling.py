"""Choosing a token: filters, penalties, noise, log-probabilities."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dunlin.engine.decoder.sampling import gumbel
from dunlin.engine.decoder.sampling.gumbel import gumbel_noise, noise_key, noisy_argmax
from dunlin.engine.decoder.sampling.sampling import SampledToken, SamplingInput, sample_tokens
from dunlin.messages.types import SamplingParams, f32, i32

LOGITS = torch.tensor([1.0, 3.0, 2.0, 0.0, -1.0])


def make_draw(tokens: Sequence[int] = (0,), prompt_tokens: int = 1, **overrides: Any) -> SamplingInput:
    return SamplingInput(SamplingParams(**{"temperature": 1.0, **overrides}), list(tokens), prompt_tokens)


def one(logits: torch.Tensor = LOGITS, **overrides: Any) -> SampledToken:
    (choice,) = sample_tokens(logits[None], [make_draw(**overrides)])
    assert choice is not None
    return choice


def drawn(count: int = 3000, logits: torch.Tensor = LOGITS, **overrides: Any) -> Counter[int]:
    """How often each token is chosen over as many seeds."""
    draws = [make_draw(seed=seed, **overrides) for seed in range(count)]
    return Counter(choice.token for choice in sample_tokens(logits.expand(count, -1), draws) if choice is not None)


def test_temperature_zero_is_greedy_whatever_the_seed() -> None:
    assert {one(temperature=0.0, seed=seed).token for seed in range(20)} == {1}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_the_softmax(temperature: float) -> None:
    counts, expected = drawn(temperature=temperature), (LOGITS / temperature).softmax(0)
    for token, share in enumerate(expected.tolist()):
        assert counts[token] / 3000 == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 3000))


def test_top_k_leaves_the_best() -> None:
    assert set(drawn(top_k=2)) == {1, 2}
    assert set(drawn(top_k=1)) == {1}
    assert set(drawn(temperature=3.0, top_k=5)) == set(drawn(temperature=3.0, top_k=99)) == {0, 1, 2, 3, 4}


def test_top_p_leaves_the_least_set_that_reaches_it() -> None:
    shares = LOGITS.softmax(0).tolist()
    assert set(drawn(top_p=shares[1] - 0.01)) == {1}
    assert set(drawn(top_p=shares[1] + 0.01)) == {1, 2}
    assert set(drawn(top_p=1e-9)) == {1}, "one token always remains"


def test_min_p_is_relative_to_the_best() -> None:
    assert set(drawn(temperature=3.0, min_p=math.exp(-2.5 / 3))) == {0, 1, 2}
    assert set(drawn(min_p=1.0)) == {1}


def test_a_bias_moves_the_choice() -> None:
    assert one(temperature=0.0, bias_tokens=i32([4, 99]), bias_values=f32([100.0, 5.0])).token == 4
    assert one(temperature=0.0, bias_tokens=i32([1]), bias_values=f32([-100.0])).token == 2


def test_presence_and_frequency_count_what_was_generated() -> None:
    once: dict[str, Any] = {"temperature": 0.0, "tokens": [1, 1, 1, 1], "prompt_tokens": 3}
    assert one(**once, presence_penalty=1.5).token == 2
    assert one(**once, presence_penalty=0.5).token == 1
    assert one(**once, frequency_penalty=0.9).token == 1
    assert one(**{**once, "prompt_tokens": 2}, frequency_penalty=0.9).token == 2
    assert one(**{**once, "prompt_tokens": 4}, frequency_penalty=2.0, presence_penalty=2.0).token == 1


def test_repetition_counts_the_prompt_too_and_pushes_both_signs_down() -> None:
    assert one(temperature=0.0, tokens=[1], repetition_penalty=2.0).token == 2
    negative = torch.tensor([-1.0, -1.5])
    assert one(negative, temperature=0.0, tokens=[0], repetition_penalty=2.0).token == 1


def test_penalties_leave_the_models_logits_alone() -> None:
    logits = LOGITS.clone()[None]
    sample_tokens(logits, [make_draw(tokens=[1], repetition_penalty=3.0, presence_penalty=1.0, top_k=1)])
    assert torch.equal(logits[0], LOGITS)


def test_logprobs_are_the_models_own() -> None:
    expected = LOGITS.log_softmax(0)
    choice = one(temperature=0.3, top_k=1, repetition_penalty=5.0, tokens=[1], logprobs=2)
    assert choice.token == 2
    assert choice.logprob == pytest.approx(float(expected[2]))
    assert [token for token, _ in choice.top] == [1, 2]
    assert [logprob for _, logprob in choice.top] == pytest.approx([float(expected[1]), float(expected[2])])


def test_logprobs_as_asked_for() -> None:
    assert one(temperature=0.0) == SampledToken(1)
    assert one(temperature=0.0, logprobs=0).top == ()
    assert one(temperature=0.0, logprobs=0).logprob < 0
    assert len(one(temperature=0.0, logprobs=50).top) == 5


SEEDS = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(SEEDS, st.integers(0, 3), st.integers(1, 9), st.floats(0.0, 2.0)), min_size=2, max_size=6))
def test_a_choice_does_not_depend_on_the_batch(rows: list[tuple[int, int, int, float]]) -> None:
    logits = torch.randn(len(rows), 300, generator=torch.Generator().manual_seed(1))
    draws = [make_draw([0] * n, seed=seed, choice=choice, temperature=t, top_p=0.9) for seed, choice, n, t in rows]
    together = sample_tokens(logits, draws)
    assert together == [sample_tokens(logits[row : row + 1], [draw])[0] for row, draw in enumerate(draws)]
    assert together[::-1] == sample_tokens(logits.flip(0), draws[::-1])


def test_seed_choice_and_position_all_matter_and_cannot_stand_for_each_other() -> None:
    flat = torch.zeros(1, 4096)
    keys = [(seed, choice, position) for seed in range(5) for choice in range(4) for position in range(1, 6)]
    chosen = [sample_tokens(flat, [make_draw([0] * key[2], seed=key[0], choice=key[1])])[0] for key in keys]
    assert len({choice.token for choice in chosen if choice is not None}) >= len(keys) - 4
    assert len({noise_key(*key) for key in keys}) == len(keys)


def test_noise_is_gumbel() -> None:
    noise = np.stack([gumbel_noise(noise_key(seed, 0, 1), np.arange(4096)) for seed in range(64)])
    assert np.isfinite(noise).all()
    assert float(noise.mean()) == pytest.approx(0.5772, abs=0.01)
    assert float(noise.var()) == pytest.approx(math.pi**2 / 6, abs=0.02)
    assert abs(float(np.corrcoef(noise[0], noise[1])[0, 1])) < 0.06
    assert abs(float(np.corrcoef(noise[0, :-1], noise[0, 1:])[0, 1])) < 0.06


def test_the_noise_stays_what_it_is() -> None:
    """A stored request is replayed with the same tokens by another version."""
    assert noise_key(1, 2, 3) == NOISE_KEY
    assert gumbel_noise(noise_key(1, 2, 3), np.arange(3)).tolist() == pytest.approx(NOISE)


NOISE_KEY = 14417873056091705250
NOISE = [1.2433150675799507, -1.2388039029606486, 0.1862505375491148]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_row_that_is_not_finite_has_no_token_and_its_neighbours_have_theirs(wrong: float, temperature: float) -> None:
    damaged = LOGITS.clone()
    damaged[2] = wrong
    draws = [make_draw(temperature=temperature, seed=seed, logprobs=2, top_p=0.9) for seed in range(3)]
    before, found, after = sample_tokens(torch.stack([LOGITS, damaged, LOGITS]), draws)
    assert found is None
    assert [before, after] == [sample_tokens(LOGITS[None], [draws[0]])[0], sample_tokens(LOGITS[None], [draws[2]])[0]]


def test_a_token_that_the_model_excludes_is_never_chosen() -> None:
    logits = LOGITS.clone()
    logits[1] = -math.inf
    assert set(drawn(200, logits)) <= {0, 2, 3, 4}
    assert one(logits, temperature=0.0).token == 2
    assert sample_tokens(torch.full((1, 5), -math.inf), [make_draw()]) == [None]


SCORES = st.sampled_from(["flat", "normal", "peaked", "tied", "few"])


@given(SCORES, SEEDS, st.sampled_from([1025, 3000, 20_000]))
def test_tokens_that_are_not_looked_at_cannot_win(kind: str, seed: int, vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(seed & 0xFFFF)
    scores = torch.randn(vocabulary, generator=generator).double()
    scores *= {"flat": 0.0, "normal": 1.0, "peaked": 20.0, "tied": 3.0, "few": 2.0}[kind]
    if kind == "tied":
        scores = scores.round()
    if kind == "few":
        scores[torch.randperm(vocabulary, generator=generator)[7:]] = -math.inf
    key = noise_key(seed, 0, 1)
    noisy = scores.numpy() + gumbel_noise(key, np.arange(vocabulary))
    assert noisy_argmax(scores.numpy(), key) == int(noisy.argmax())


def test_few_tokens_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason to leave tokens out: it must hold for scores that are all alike, too."""
    looked_at: list[int] = []
    noise = gumbel.gumbel_noise

    def watched(key: int, tokens: Any) -> Any:
        looked_at.append(len(tokens))
        return noise(key, tokens)

    monkeypatch.setattr(gumbel, "gumbel_noise", watched)
    for spread in (0.0, 1.0, 20.0):
        scores = torch.randn(100_000, generator=torch.Generator().manual_seed(1)).double() * spread
        for seed in range(5):
            noisy_argmax(scores.numpy(), noise_key(seed, 0, 1))
    assert max(looked_at) < 10_000


def plain_choice(logits: torch.Tensor, draw: SamplingInput) -> int:
    """The same choice as its definition says it, of all tokens and without a short cut."""
    sampling, scores = draw.sampling, logits.clone()
    for token in range(len(scores)):
        if token in draw.tokens and sampling.repetition_penalty != 1.0:
            factor = sampling.repetition_penalty
            scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
        count = list(draw.tokens[draw.prompt_tokens :]).count(token)
        scores[token] -= sampling.presence_penalty * (count > 0) + sampling.frequency_penalty * count
    scaled = scores.double() / sampling.temperature
    if 0 < sampling.top_k < len(scaled):
        scaled[scaled < scaled.sort(descending=True).values[sampling.top_k - 1]] = -math.inf
    shares, order = scaled.softmax(0).sort(descending=True, stable=True)
    total = 0.0
    for place, (share, token) in enumerate(zip(shares.tolist(), order.tolist(), strict=True)):
        if place and sampling.top_p < 1.0 and total >= sampling.top_p:
            scaled[token] = -math.inf
        total += share
    if sampling.min_p > 0:
        scaled[scaled < scaled.max() + math.log(sampling.min_p)] = -math.inf
    noise = gumbel_noise(noise_key(sampling.seed, sampling.choice, len(draw.tokens)), np.arange(len(scaled)))
    return int((scaled.numpy() + noise).argmax())


@given(
    SEEDS,
    st.floats(0.1, 3.0),
    st.sampled_from([0, 1, 5, 50]),
    st.sampled_from([0.05, 0.5, 0.9, 0.999, 1.0 - 1e-9, 1.0]),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([(0.0, 0.0, 1.0), (0.7, 0.3, 1.0), (0.0, 0.5, 1.3)]),
)
def test_a_choice_is_what_its_definition_says(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float, penalties: tuple[float, float, float]
) -> None:
    generator = torch.Generator().manual_seed(seed & 0xFFFF)
    logits = (torch.randn(400, generator=generator) * 3).round(decimals=1)
    presence, frequency, repetition = penalties
    draw = make_draw(
        [3, 1, 4, 1, 5, 9, 2, 6, 5, 3], 3, seed=seed, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=repetition,
    )  # fmt: skip
    (choice,) = sample_tokens(logits[None], [draw])
    assert choice == SampledToken(plain_choice(logits, draw))


def test_what_is_excluded_is_not_chosen_whatever_its_bias() -> None:
    sampling = SamplingParams(temperature=0.0, bias_tokens=i32([1, 2]), bias_values=f32([100.0, 90.0]))

    def chosen(sampling: SamplingParams, tokens: Sequence[int] = (0,), **limits: Any) -> int | None:
        (choice,) = sample_tokens(LOGITS[None], [SamplingInput(sampling, tokens, 1, **limits)])
        return None if choice is None else choice.token

    assert chosen(sampling) == 1
    assert chosen(sampling, excluded=(1, 99)) == 2
    assert chosen(replace(sampling, allowed_tokens=i32([0, 3, 99]))) == 0
    assert chosen(sampling, allowed=np.array([True, False, False, True, True])) == 0
    assert chosen(sampling, allowed=np.zeros(5, dtype=np.bool_)) is None


def test_a_bad_word_is_cut_off_before_its_last_token() -> None:
    bad: dict[str, Any] = {"temperature": 0.0, "bad_tokens": i32([3, 4, 1, 1, 1]), "bad_stops": i32([3, 5])}

    def chosen(tokens: Sequence[int], prompt_tokens: int = 1) -> int:
        return one_of(make_draw(tokens, prompt_tokens, **bad))

    assert chosen([0, 3, 4]) == 2, "the word 3 4 1"
    assert chosen([0, 4, 3]) == 1
    assert chosen([0, 1]) == 2, "the word 1 1"
    assert chosen([3, 4]) == 1, "a word begins in the generated text"
    assert one_of(make_draw([0], 1, temperature=0.0, bad_tokens=i32([1]), bad_stops=i32([1]))) == 2


def one_of(draw: SamplingInput) -> int:
    (choice,) = sample_tokens(LOGITS[None], [draw])
    assert choice is not None
    return choice.token
