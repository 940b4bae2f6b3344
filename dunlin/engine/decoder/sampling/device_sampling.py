"""Sampling on a device: the choices of `sampling.py` for all rows at once, with one look at the result.

The same filters and the same noise, in float64: a hash of (seed, choice, position, token). A token may differ from the
CPU's only where two sums of score and noise agree up to the last bits of a logarithm.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dunlin.engine.decoder.gpu.triton_rows import greatest
from dunlin.engine.decoder.host_copies import HostCopy, rows_at, to_device
from dunlin.engine.decoder.sampling.gumbel import noise_key
from dunlin.engine.decoder.sampling.sampling import SampledToken, SamplingInput, adjusted_scores, with_logprobs

_GOLDEN = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT, _UNUSED_BITS = 31, 12


class DeviceChoices:
    """See `Choices`. The host reads them after what was launched up to now, whatever is launched later."""

    def __init__(self, logits: Tensor, draws: Sequence[SamplingInput], chosen: Tensor) -> None:
        """`chosen` `[2, rows]` int64: tokens, and whether there is one."""
        self.chosen = chosen
        self._logits = logits
        self._draws = draws
        self._copy = HostCopy(chosen)

    def following(self, rows: Sequence[int]) -> Tensor:
        return rows_at(self.chosen[0], rows)

    def read(self) -> list[SampledToken | None]:
        rows = enumerate(zip(*self._copy.read().tolist(), strict=True))
        return [self._choice(row, token) if fine else None for row, (token, fine) in rows]

    def _choice(self, row: int, token: int) -> SampledToken:
        wanted = self._draws[row].sampling.logprobs
        return SampledToken(token) if wanted is None else with_logprobs(self._logits[row], token, wanted)


def choose_on_device(logits: Tensor, draws: Sequence[SamplingInput]) -> DeviceChoices:
    """Launch what `sample_tokens` computes."""
    scores = adjusted_scores(logits, draws)
    chosen = greatest(scores)
    drawn = [row for row, draw in enumerate(draws) if draw.sampling.temperature > 0]
    if drawn:
        rows = to_device(torch.tensor(drawn), scores.device)
        chosen[0].index_copy_(0, rows, _draw(scores.index_select(0, rows), [draws[row] for row in drawn]))
    return DeviceChoices(logits, draws, chosen)


def _draw(scores: Tensor, draws: Sequence[SamplingInput]) -> Tensor:
    """The tokens of rows with a temperature, `[rows]`."""
    sampling = [draw.sampling for draw in draws]
    scaled = scores.double() / _column([each.temperature for each in sampling], scores)
    vocabulary = scores.shape[1]
    if any(0 < each.top_k < vocabulary for each in sampling):
        _keep_highest(scaled, [each.top_k if 0 < each.top_k < vocabulary else vocabulary for each in sampling])
    if any(each.top_p < 1.0 for each in sampling):
        _keep_nucleus(scaled, [each.top_p for each in sampling])
    if any(each.min_p > 0.0 for each in sampling):
        least = scaled.amax(1, keepdim=True) + _column([each.min_p for each in sampling], scores).log()
        scaled.masked_fill_(scaled < least, float("-inf"))
    keys = [noise_key(draw.sampling.seed, draw.sampling.choice, len(draw.tokens)) for draw in draws]
    return (scaled + gumbel_noise(keys, vocabulary, scores.device)).argmax(dim=-1)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return to_device(torch.tensor(values, dtype=torch.float64), like.device)[:, None]


def _keep_highest(scaled: Tensor, counts: Sequence[int]) -> None:
    """Exclude scores lower than the row's `counts`-th."""
    most = max(count for count in counts if count < scaled.shape[1])
    places = to_device(torch.tensor([min(count, most) - 1 for count in counts]), scaled.device)[:, None]
    least = scaled.topk(most, dim=1).values.gather(1, places)
    whole = to_device(torch.tensor([count == scaled.shape[1] for count in counts]), scaled.device)[:, None]
    scaled.masked_fill_((scaled < least) & ~whole, float("-inf"))


def _keep_nucleus(scaled: Tensor, top_p: Sequence[float]) -> None:
    """Exclude all but the likeliest tokens that together reach the row's `top_p`; of equally likely ones the first."""
    shares = scaled.softmax(dim=-1)
    ordered, order = shares.sort(dim=-1, descending=True, stable=True)
    limits = _column(top_p, scaled)
    inside = (ordered.cumsum(dim=-1) - ordered < limits) | (limits >= 1.0)
    inside[:, 0] = True
    # Where the temperature is so low that scores are infinite, shares are no numbers: all stay.
    inside |= ordered[:, :1].isnan()
    kept = torch.zeros_like(inside).scatter_(1, order, inside)
    scaled.masked_fill_(~kept, float("-inf"))


def gumbel_noise(keys: Sequence[int], vocabulary: int, device: torch.device) -> Tensor:
    """The noise of every token of the vocabulary for each key, `[keys, vocabulary]` float64.

    Integers are of 64 bits and wrap; a shift to the right is made one without sign by a mask.
    """
    steps = torch.arange(1, vocabulary + 1, device=device) * _signed(_GOLDEN)
    mixed = steps + to_device(torch.tensor([_signed(key) for key in keys], dtype=torch.int64), device)[:, None]
    for shift, factor in _MIX:
        mixed = (mixed ^ _shifted(mixed, shift)) * _signed(factor)
    bits = _shifted(mixed ^ _shifted(mixed, _LAST_SHIFT), _UNUSED_BITS)
    uniform = (bits.double() + 0.5) * 2.0**-52
    return -(-uniform.log()).log()


def _shifted(values: Tensor, by: int) -> Tensor:
    return (values >> by) & ((1 << (64 - by)) - 1)


def _signed(value: int) -> int:
    """The same 64 bits as a number with a sign."""
    return value - (1 << 64) if value >= 1 << 63 else value
