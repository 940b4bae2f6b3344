"""Sampling: the next token is the argmax of filtered logits / temperature + Gumbel noise.

The noise is a hash of (seed, choice, position, token), so a choice depends on nothing else: not on the batch, not on
how often a sequence was preempted or moved. Log-probabilities are the model's own, before any filter. Knows no
sequence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dunlin.messages.types import SamplingParams

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = ((np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)), (np.uint64(27), np.uint64(0x94D049BB133111EB)))
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SamplingInput:
    """One row's choice: `tokens` is the sequence so far (prompt first), the token chosen goes to `len(tokens)`."""

    sampling: SamplingParams
    tokens: Sequence[int]
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token, its log-probability (0 where none was asked for), and the n best with theirs."""

    token: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


def sample_tokens(logits: Tensor, draws: Sequence[SamplingInput]) -> list[SampledToken | None]:
    """The next token for every row of `logits` `[rows, vocab]` fp32; None where the best score is no finite number.

    One number is looked at in each row, for NaN and +inf are greater than all others. -inf only excludes a token.
    """
    scores = _adjusted(logits, draws)
    best = scores.argmax(dim=-1)
    finite = scores.gather(1, best[:, None])[:, 0].isfinite().tolist()
    tokens = best.tolist()
    warm = [row for row, draw in enumerate(draws) if draw.sampling.temperature > 0 and finite[row]]
    if warm:
        sampled = _sample(scores[warm], [draws[row] for row in warm])
        for row, token in zip(warm, sampled, strict=True):
            tokens[row] = token
    rows = zip(logits, tokens, draws, finite, strict=True)
    return [_with_logprobs(row, token, draw.sampling.logprobs) if good else None for row, token, draw, good in rows]


def gumbel_noise(keys: NDArray[np.uint64], vocabulary: int) -> NDArray[np.float64]:
    """Gumbel noise `[rows, vocabulary]` for the rows' keys (see `noise_key`)."""
    with np.errstate(over="ignore"):
        mixed = keys[:, None] + np.arange(1, vocabulary + 1, dtype=np.uint64) * _GOLDEN
        for shift, factor in _MIX:
            mixed = (mixed ^ (mixed >> shift)) * factor
    mixed ^= mixed >> np.uint64(31)
    # The upper 52 bits and a half: never 0, never 1.
    uniform = ((mixed >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return np.asarray(-np.log(-np.log(uniform)))


def noise_key(seed: int, choice: int, position: int) -> int:
    """The hash key of one choice's noise: each part is mixed in before the next, so they cannot cancel."""
    state = 0
    for part in (seed, choice, position):
        state = _mix_int((state + part * int(_GOLDEN) + 1) & _MASK)
    return state


def _mix_int(value: int) -> int:
    for shift, factor in _MIX:
        value = ((value ^ (value >> int(shift))) * int(factor)) & _MASK
    return value ^ (value >> 31)


def _sample(scores: Tensor, draws: Sequence[SamplingInput]) -> list[int]:
    temperatures = torch.tensor([draw.sampling.temperature for draw in draws], dtype=torch.float64)
    scaled = scores.double() / temperatures[:, None]
    for row, draw in enumerate(draws):
        _filter(scaled[row], draw.sampling)
    keys = [noise_key(draw.sampling.seed, draw.sampling.choice, len(draw.tokens)) for draw in draws]
    noise = gumbel_noise(np.array(keys, dtype=np.uint64), scaled.shape[1])
    tokens: list[int] = (scaled + torch.from_numpy(noise)).argmax(dim=-1).tolist()
    return tokens


def _filter(scaled: Tensor, sampling: SamplingParams) -> None:
    """Exclude in place, in this order: all but the `top_k` best, the tail beyond `top_p`, what `min_p` cuts."""
    if 0 < sampling.top_k < len(scaled):
        scaled[scaled < scaled.topk(sampling.top_k).values[-1]] = float("-inf")
    if sampling.top_p < 1.0:
        ordered, order = scaled.softmax(dim=-1).sort(descending=True, stable=True)
        before = ordered.cumsum(dim=-1) - ordered
        excluded = before >= sampling.top_p
        excluded[0] = False
        scaled[order[excluded]] = float("-inf")
    if sampling.min_p > 0.0:
        scaled[scaled < scaled.max() + float(np.log(sampling.min_p))] = float("-inf")


def _adjusted(logits: Tensor, draws: Sequence[SamplingInput]) -> Tensor:
    """Logits after penalties and biases; the very same tensor where no row has any."""
    changed = [row for row, draw in enumerate(draws) if _has_adjustments(draw.sampling)]
    if not changed:
        return logits
    scores = logits.clone()
    for row in changed:
        _penalise(scores[row], draws[row])
        _bias(scores[row], draws[row].sampling)
    return scores


def _has_adjustments(sampling: SamplingParams) -> bool:
    penalties = sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty
    return penalties != (0.0, 0.0, 1.0) or len(sampling.bias_tokens) > 0


def _penalise(scores: Tensor, draw: SamplingInput) -> None:
    """Repetition counts the prompt too; presence and frequency count what was generated, as their inventors do."""
    sampling, vocabulary = draw.sampling, len(scores)
    if sampling.repetition_penalty != 1.0:
        seen = _counts(draw.tokens, vocabulary) > 0
        away = torch.where(scores > 0, scores / sampling.repetition_penalty, scores * sampling.repetition_penalty)
        scores.copy_(torch.where(seen, away, scores))
    if sampling.presence_penalty or sampling.frequency_penalty:
        counts = _counts(draw.tokens[draw.prompt_tokens :], vocabulary)
        scores -= sampling.presence_penalty * (counts > 0) + sampling.frequency_penalty * counts


def _counts(tokens: Sequence[int], vocabulary: int) -> Tensor:
    return torch.bincount(torch.tensor(tokens, dtype=torch.int64), minlength=vocabulary)[:vocabulary]


def _bias(scores: Tensor, sampling: SamplingParams) -> None:
    # One addition for all: a client may send a thousand biases for each of 128 choices, at every step.
    if not sampling.bias_tokens:
        return
    tokens = torch.frombuffer(sampling.bias_tokens, dtype=torch.int32).long()
    values = torch.frombuffer(sampling.bias_values, dtype=torch.float32)
    known = (tokens >= 0) & (tokens < len(scores))
    scores.index_add_(0, tokens[known], values[known])


def _with_logprobs(logits: Tensor, token: int, wanted: int | None) -> SampledToken:
    if wanted is None:
        return SampledToken(token)
    logprobs = logits.log_softmax(dim=-1)
    if not wanted:
        return SampledToken(token, float(logprobs[token]))
    best = logprobs.topk(min(wanted, len(logprobs)))
    top = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return SampledToken(token, float(logprobs[token]), tuple(top))
