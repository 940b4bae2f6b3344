"""Sampling: the next token is the argmax of filtered logits / temperature + Gumbel noise.

The noise is a hash of (seed, choice, position, token), so a choice depends on nothing else: not on the batch, not on
how often a sequence was preempted or moved. Log-probabilities are the model's own, before any filter. Knows no
sequence.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dunlin.engine.decoder.sampling.gumbel import noise_key, noisy_argmax
from dunlin.messages.types import SamplingParams

MOST_PRUNED_TOP_P = 1.0 - 1e-6
"""Beyond, what a nucleus leaves out is too little to tell before all tokens are sorted; up to there a token is in it or
not whatever rounding does.
"""


@dataclass(frozen=True, slots=True)
class SamplingInput:
    """One row's choice: `tokens` is the sequence so far (prompt first), the token chosen goes to `len(tokens)`.

    Besides what `sampling` says, none of `excluded` is chosen, and of the vocabulary only what is True in `allowed`.
    """

    sampling: SamplingParams
    tokens: Sequence[int]
    prompt_tokens: int
    excluded: Collection[int] = ()
    allowed: NDArray[np.bool_] | None = None


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A token, its log-probability (0 where none was asked for), and the n best with theirs."""

    token: int
    logprob: float = 0.0
    top: tuple[tuple[int, float], ...] = ()


class Choices(Protocol):
    """The next tokens of some rows, chosen or being chosen by a device."""

    def following(self, rows: Sequence[int]) -> Tensor | None:
        """`[rows]` int64: the tokens of these rows, where what is launched now finds them; of a row without a choice,
        any token. None: nothing can be launched before they are read.
        """
        ...

    def read(self) -> list[SampledToken | None]:
        """The choices; see `sample_tokens`. Waits for them."""
        ...


class HostChoices:
    """See `Choices`: chosen already."""

    def __init__(self, choices: list[SampledToken | None]) -> None:
        self._choices = choices

    def following(self, rows: Sequence[int]) -> None:
        """They are read already."""

    def read(self) -> list[SampledToken | None]:
        return self._choices


def choose_tokens(logits: Tensor, draws: Sequence[SamplingInput]) -> HostChoices:
    """See `sample_tokens`."""
    return HostChoices(sample_tokens(logits, draws))


def sample_tokens(logits: Tensor, draws: Sequence[SamplingInput]) -> list[SampledToken | None]:
    """The next token for every row of `logits` `[rows, vocab]` fp32; None where the best score is no finite number.

    One number is looked at in each row, for NaN and +inf are greater than all others. -inf only excludes a token.
    """
    scores = adjusted_scores(logits, draws)
    values = scores.numpy()
    best = values.argmax(axis=-1)  # torch's looks at one number after the other
    finite = np.isfinite(values[np.arange(len(values)), best]).tolist()
    tokens = best.tolist()
    for row, draw in enumerate(draws):
        if draw.sampling.temperature > 0 and finite[row]:
            tokens[row] = _sample(scores[row], draw)
    rows = zip(logits, tokens, draws, finite, strict=True)
    return [with_logprobs(row, token, draw.sampling.logprobs) if good else None for row, token, draw, good in rows]


def _sample(scores: Tensor, draw: SamplingInput) -> int:
    """The token of a row with a temperature. By numpy: on a busy machine torch's threads wait for each other."""
    sampling = draw.sampling
    with np.errstate(over="ignore"):
        scaled = scores.numpy().astype(np.float64) / sampling.temperature
    if 0 < sampling.top_k < len(scaled):
        place = len(scaled) - sampling.top_k
        scaled[scaled < np.partition(scaled, place)[place]] = -np.inf
    if sampling.top_p < 1.0:
        _keep_nucleus(scaled, sampling.top_p)
    if sampling.min_p > 0.0:
        scaled[scaled < scaled.max() + float(np.log(sampling.min_p))] = -np.inf
    return noisy_argmax(scaled, noise_key(sampling.seed, sampling.choice, len(draw.tokens)))


def _keep_nucleus(scaled: NDArray[np.float64], top_p: float) -> None:
    """Exclude all but the likeliest tokens that together reach `top_p`, the first of equally likely ones first."""
    shares = torch.from_numpy(scaled).softmax(dim=-1).numpy()
    # Tokens of this share or less are together at most half of what lies beyond `top_p`: they are not sorted. Those of
    # more are far from what rounding does to their sum.
    least = (1.0 - top_p) / (2 * len(shares)) if top_p < MOST_PRUNED_TOP_P else -1.0
    ordered = -np.sort(-shares[shares > least])
    if not len(ordered):  # the temperature is so low that scores are infinite
        return
    inside = ordered.cumsum() - ordered < top_p
    kept = max(1, int(inside.sum()))
    kept_surely = shares > ordered[kept - 1]
    alike = np.flatnonzero(shares == ordered[kept - 1])
    kept_surely[alike[: kept - int(kept_surely.sum())]] = True
    scaled[~kept_surely] = -np.inf


def adjusted_scores(logits: Tensor, draws: Sequence[SamplingInput]) -> Tensor:
    """Logits after penalties, biases and exclusions; the very same tensor where no row has any."""
    changed = [row for row, draw in enumerate(draws) if _has_adjustments(draw)]
    if not changed:
        return logits
    scores = logits.clone()
    for row in changed:
        _penalise(scores[row], draws[row])
        _bias(scores[row], draws[row].sampling)
        _exclude(scores[row], draws[row])
    return scores


def is_greedy(sampling: SamplingParams) -> bool:
    """Whether it asks for the greatest logit's token, and for no log-probability."""
    return sampling.temperature <= 0 and sampling.logprobs is None and not _adjusts(sampling)


def _adjusts(sampling: SamplingParams) -> bool:
    penalties = sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty
    columns = sampling.bias_tokens, sampling.allowed_tokens, sampling.bad_tokens
    return penalties != (0.0, 0.0, 1.0) or any(map(len, columns))


def _has_adjustments(draw: SamplingInput) -> bool:
    return _adjusts(draw.sampling) or len(draw.excluded) > 0 or draw.allowed is not None


def _penalise(scores: Tensor, draw: SamplingInput) -> None:
    """Repetition counts the prompt too; presence and frequency count what was generated, as their inventors do."""
    sampling, vocabulary = draw.sampling, len(scores)
    if sampling.repetition_penalty != 1.0:
        seen, _ = _counts(draw.tokens, vocabulary, scores.device)
        values = scores[seen]
        scores[seen] = torch.where(
            values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty
        )
    if sampling.presence_penalty or sampling.frequency_penalty:
        seen, counts = _counts(draw.tokens[draw.prompt_tokens :], vocabulary, scores.device)
        scores[seen] -= sampling.presence_penalty + sampling.frequency_penalty * counts


def _counts(tokens: Sequence[int], vocabulary: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The tokens of the vocabulary that occur, and how often."""
    found, counts = np.unique(np.array(tokens, dtype=np.int64), return_counts=True)
    known = found < vocabulary
    return torch.from_numpy(found[known]).to(device), torch.from_numpy(counts[known]).to(device)


def _bias(scores: Tensor, sampling: SamplingParams) -> None:
    # One addition for all: a client may send a thousand biases for each of 128 choices, at every step.
    if not sampling.bias_tokens:
        return
    tokens = torch.frombuffer(sampling.bias_tokens, dtype=torch.int32).long()
    values = torch.frombuffer(sampling.bias_values, dtype=torch.float32)
    known = (tokens >= 0) & (tokens < len(scores))
    scores.index_add_(0, tokens[known].to(scores.device), values[known].to(scores.device))


def _exclude(scores: Tensor, draw: SamplingInput) -> None:
    """Set to -inf, in place, what may not be chosen: a bias cannot bring it back."""
    vocabulary = len(scores)
    if draw.sampling.allowed_tokens:
        allowed = torch.zeros(vocabulary, dtype=torch.bool, device=scores.device)
        allowed[[token for token in draw.sampling.allowed_tokens if token < vocabulary]] = True
        scores.masked_fill_(~allowed, float("-inf"))
    if draw.allowed is not None:
        scores.masked_fill_(torch.from_numpy(~draw.allowed).to(scores.device), float("-inf"))
    excluded = [token for token in (*draw.excluded, *_ends_of_bad_words(draw)) if 0 <= token < vocabulary]
    if excluded:
        scores[excluded] = float("-inf")


def _ends_of_bad_words(draw: SamplingInput) -> Iterator[int]:
    """The last token of each bad word whose other tokens are the last of the generated text."""
    sampling, start = draw.sampling, 0
    for stop in sampling.bad_stops:
        *before, last = sampling.bad_tokens[start:stop]
        start, at = stop, len(draw.tokens) - len(before)
        if at >= draw.prompt_tokens and list(draw.tokens[at:]) == before:
            yield last


def with_logprobs(logits: Tensor, token: int, wanted: int | None) -> SampledToken:
    """The token with its log-probability and the `wanted` best, of one row's `logits` `[vocab]`."""
    if wanted is None:
        return SampledToken(token)
    logprobs = logits.log_softmax(dim=-1)
    if not wanted:
        return SampledToken(token, float(logprobs[token]))
    best = logprobs.topk(min(wanted, len(logprobs)))
    top = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return SampledToken(token, float(logprobs[token]), tuple(top))
