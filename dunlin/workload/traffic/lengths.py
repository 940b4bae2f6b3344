"""How long requests are: sets that are drawn from, and distributions. Pure: the randomness is handed in.

Knows no arrival: a `LengthSource` gives pairs of input and output tokens.
"""

import csv
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Protocol

from dunlin.workload.traffic.trace import TraceError, open_trace

Pair = tuple[int, int]
"""Input and output tokens."""


class LengthSource(Protocol):
    """A source of request lengths."""

    def draw(self, random: Random) -> Pair:
        """One request's input and output tokens, each at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLengths:
    """The same lengths for every request."""

    input_tokens: int
    output_tokens: int

    def draw(self, random: Random) -> Pair:
        """The same pair, always."""
        return self.input_tokens, self.output_tokens


@dataclass(frozen=True, slots=True)
class UniformLengths:
    """Both lengths uniform, ends included."""

    inputs: Pair
    outputs: Pair

    def draw(self, random: Random) -> Pair:
        """Two independent draws."""
        return random.randint(*self.inputs), random.randint(*self.outputs)


@dataclass(frozen=True, slots=True)
class LognormalLengths:
    """Both lengths lognormal with the given means and the sigma of their logarithm, up to `most` tokens each."""

    input_mean: float
    output_mean: float
    sigma: float = 1.0
    most: int = 1 << 20

    def draw(self, random: Random) -> Pair:
        """Two independent draws."""
        return self._one(random, self.input_mean), self._one(random, self.output_mean)

    def _one(self, random: Random, mean: float) -> int:
        # exp(mu + sigma²/2) is the mean of a lognormal.
        drawn = random.lognormvariate(math.log(mean) - self.sigma**2 / 2, self.sigma)
        return max(1, min(self.most, round(drawn)))


class ZipfLengths:
    """Total length in `low`…`high` with a probability that falls as rank^-theta (rank 1: `low`); of it,
    one part in `ratio` + 1 comes out and the rest goes in."""

    def __init__(self, theta: float, low: int, high: int, ratio: float = 4.0) -> None:
        self._low, self._ratio = low, ratio
        self._sums = list(accumulate(rank**-theta for rank in range(1, high - low + 2)))

    def draw(self, random: Random) -> Pair:
        """One draw, divided in two."""
        total = self._low + bisect_left(self._sums, random.random() * self._sums[-1])
        outputs = max(1, round(total / (self._ratio + 1)))
        return max(1, total - outputs), outputs


@dataclass(frozen=True, slots=True)
class EmpiricalLengths:
    """Observed pairs, all equally likely."""

    pairs: Sequence[Pair]

    def draw(self, random: Random) -> Pair:
        """One of them, with replacement."""
        return random.choice(self.pairs)


class MixedLengths:
    """One of several sources, each with its weight."""

    def __init__(self, sources: Sequence[LengthSource], weights: Sequence[float]) -> None:
        self._sources, self._weights = sources, list(accumulate(weights))

    def draw(self, random: Random) -> Pair:
        """A source by weight, then a draw from it."""
        chosen = bisect_left(self._weights, random.random() * self._weights[-1])
        return self._sources[chosen].draw(random)


def read_lengths(path: Path) -> EmpiricalLengths:
    """A list of lengths: CSV, plain or gzip, with input_tokens and output_tokens (a trace is one too).

    Raises TraceError naming the line for what cannot be read.
    """
    with open_trace(path) as lines:
        reader = csv.DictReader(lines)
        missing = [name for name in ("input_tokens", "output_tokens") if name not in (reader.fieldnames or ())]
        if missing:
            raise TraceError(
                f"{path}: line 1: no column {', '.join(missing)}; lengths are CSV with input_tokens,output_tokens"
            )
        pairs = [_pair(row, f"{path}: line {reader.line_num}") for row in reader]
    if not pairs:
        raise TraceError(f"{path}: holds no lengths")
    return EmpiricalLengths(pairs)


def _pair(row: dict[str, str | None], where: str) -> Pair:
    texts = (row["input_tokens"] or "", row["output_tokens"] or "")
    if not all(text.isascii() and text.isdigit() and len(text) < 16 and int(text) > 0 for text in texts):
        said = f"{texts[0]!r:.80}, {texts[1]!r:.80}"
        raise TraceError(f"{where}: input_tokens and output_tokens must be 1 or more, not {said}")
    return int(texts[0]), int(texts[1])
