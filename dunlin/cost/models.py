"""Pure cost models: how long a step takes, also in a group, from counts alone.

Knows coefficients and arithmetic. Does not know where coefficients come from (`step_fit`, `device`), where they are
kept (`store`), nor any sequence: a step is described by the counts of a `BatchCounts`. Times are seconds, sizes bytes.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import frexp
from typing import Protocol


@dataclass(slots=True)
class BatchCounts:
    """What one step computes, in counts. Not frozen only because a simulator makes one per step.

    With n new tokens of a prefill row whose p tokens before are computed already: `prefill_tokens` = Σ n,
    `prefix_products` = Σ n·p, `self_products` = Σ n². A decode row is one new token; `decode_context` = Σ of the tokens
    each attends to, its own included. `sampled_rows` draw their next token with a temperature; all others are greedy or
    have none.
    """

    prefill_rows: int = 0
    prefill_tokens: int = 0
    prefix_products: int = 0
    self_products: int = 0
    decode_rows: int = 0
    decode_context: int = 0
    sampled_rows: int = 0

    def add_prefill(self, tokens: int, prefix: int = 0) -> None:
        """Count a row that computes `tokens` new tokens after `prefix` computed ones."""
        self.prefill_rows += 1
        self.prefill_tokens += tokens
        self.prefix_products += tokens * prefix
        self.self_products += tokens * tokens

    def add_stripe(self, positions: range) -> None:
        """Count a row that computes the tokens at these positions, each after all tokens before it."""
        count = len(positions)
        self.prefill_rows += 1
        self.prefill_tokens += count
        self.prefix_products += sum(positions) - count * (count - 1) // 2
        self.self_products += count * count

    def add_decode(self, context: int) -> None:
        """Count a row that computes one token attending to `context` tokens, itself included."""
        self.decode_rows += 1
        self.decode_context += context


@dataclass(slots=True)
class AttentionCounts:
    """Attention alone: `pairs` of a query and a key by `queries` that have others beside them in their sequence, and
    `context` keys that `rows` single queries attend to.
    """

    queries: int = 0
    pairs: float = 0.0
    rows: int = 0
    context: int = 0

    def add(self, queries: int, keys: int) -> None:
        """Count queries of one sequence that attend to `keys` each."""
        if queries == 1:
            self.rows += 1
            self.context += keys
        else:
            self.queries += queries
            self.pairs += queries * keys

    def add_all(self, other: "AttentionCounts") -> None:
        """Count what another one counts."""
        self.queries += other.queries
        self.pairs += other.pairs
        self.rows += other.rows
        self.context += other.context


class StepTimes(Protocol):
    """A predictor of a step's duration."""

    def step_s(self, batch: BatchCounts) -> float:
        """Seconds the step takes; monotone in every count, never negative."""
        ...


class GroupStepTimes(StepTimes, Protocol):
    """A predictor for steps that compute with those of other engines, too."""

    @property
    def bare_s(self) -> float:
        """Seconds of a step without a row, before what it computes for others."""
        ...

    def attention_s(self, work: AttentionCounts) -> float:
        """Seconds of attention alone, over all layers."""
        ...


def own_attention(batch: BatchCounts) -> AttentionCounts:
    """The attention that a step of these counts computes for its own rows."""
    pairs = batch.prefix_products + 0.5 * (batch.self_products + batch.prefill_tokens)
    return AttentionCounts(batch.prefill_tokens, pairs, batch.decode_rows, batch.decode_context)


@dataclass(frozen=True, slots=True)
class PiecewiseCurve:
    """A rising piecewise-linear function through (`x[i]`, `y[i]`): constant before the first knot, and beyond the last
    one straight on with the last piece's slope. Raises ValueError unless x rises strictly and y never falls below 0 or
    below its predecessor.
    """

    x: tuple[float, ...]
    y: tuple[float, ...]
    slope: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.x or len(self.x) != len(self.y):
            raise ValueError(f"a curve needs as many x as y and at least one: {len(self.x)} and {len(self.y)}")
        if any(b <= a for a, b in pairwise(self.x)):
            raise ValueError("the x of a curve must rise strictly")
        if self.y[0] < 0 or any(b < a for a, b in pairwise(self.y)):
            raise ValueError("the y of a curve must not be negative and must not fall")
        object.__setattr__(self, "slope", tuple(_slopes(self.x, self.y)))

    def at(self, x: float) -> float:
        """The value at x."""
        if x <= self.x[0]:
            return self.y[0]
        index = bisect_right(self.x, x) - 1
        return self.y[index] + self.slope[index] * (x - self.x[index])


def _slopes(x: Sequence[float], y: Sequence[float]) -> list[float]:
    """The slope of each piece; the last one again beyond the last knot."""
    slopes = [(y[i + 1] - y[i]) / (x[i + 1] - x[i]) for i in range(len(x) - 1)]
    return [*slopes, slopes[-1] if slopes else 0.0]


ZERO = PiecewiseCurve((0.0,), (0.0,))


@dataclass(frozen=True, slots=True)
class StepModel:
    """The time of a mixed step: KunServe's equation 1 with a linear part per regime, and a term for decode contexts.

    `tokens` gives the linear layers over all tokens of the step, prefill and decode together: flat while the weights'
    bytes are what takes time, rising when the arithmetic is. `rows` is what each row adds (head, sampling).
    `product_s` is paid per pair of a new token and one before it; a row's n new tokens make (n² + n) / 2 pairs among
    themselves and n·p with its prefix. `decode_row_s` and `decode_context_s` are the same for decode rows, whose
    attention reads every key for a single query and costs another price per pair.
    """

    tokens: PiecewiseCurve
    rows: PiecewiseCurve = ZERO
    fixed_s: float = 0.0
    product_s: float = 0.0
    prefix_s: float = 0.0
    """Added to `product_s` for pairs with the prefix, which is read from the slab and not from the step itself."""
    prefill_row_s: float = 0.0
    decode_row_s: float = 0.0
    decode_context_s: float = 0.0
    sampled_row_s: float = 0.0
    """Added for a row whose token is drawn with a temperature."""

    def step_s(self, batch: BatchCounts) -> float:
        """Seconds the step takes."""
        new = batch.prefill_tokens
        rows = batch.prefill_rows + batch.decode_rows
        if not rows:
            return 0.0
        seconds = self.fixed_s + self.tokens.at(new + batch.decode_rows) + self.rows.at(rows)
        if new:
            prefix = batch.prefix_products
            pairs = prefix + 0.5 * (batch.self_products + new)
            seconds += self.product_s * pairs + self.prefix_s * prefix + self.prefill_row_s * batch.prefill_rows
        seconds += self.decode_row_s * batch.decode_rows + self.decode_context_s * batch.decode_context
        return seconds + self.sampled_row_s * batch.sampled_rows

    @property
    def bare_s(self) -> float:
        """See `GroupStepTimes`."""
        return self.fixed_s

    def attention_s(self, work: AttentionCounts) -> float:
        """See `GroupStepTimes`."""
        return self.product_s * work.pairs + self.decode_row_s * work.rows + self.decode_context_s * work.context


@dataclass(frozen=True, slots=True)
class CountSheet:
    """A function of two counts that rises in both, known at powers of two: `rows[i][j]` is its value at (2^i, 2^j).

    Linear in each count between them, and beyond the last; below 1 a count is taken as 1. Raises ValueError unless
    there are at least two rows of at least two values that never fall along either axis, none below 0.
    """

    rows: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        rows = self.rows
        if len(rows) < 2 or len(rows[0]) < 2 or any(len(row) != len(rows[0]) for row in rows):
            raise ValueError("a sheet needs two rows of two values, all rows of the same length")
        along = any(b < a for row in rows for a, b in pairwise(row))
        across = any(b < a for low, high in pairwise(rows) for a, b in zip(low, high, strict=True))
        if rows[0][0] < 0 or along or across:
            raise ValueError("the values of a sheet must not be negative and must not fall along a row or column")

    def at(self, first: float, second: float) -> float:
        """The value at these counts."""
        first_part, i = frexp(first if first > 1.0 else 1.0)
        second_part, j = frexp(second if second > 1.0 else 1.0)
        # x = part · 2^exponent with part in [0.5, 1): it lies at 2·part − 1 between 2^(exponent − 1) and 2^exponent.
        if i < len(self.rows):
            u = first_part + first_part - 1.0
        else:
            i = len(self.rows) - 1
            u = first / (1 << (i - 1)) - 1.0
        low, high = self.rows[i - 1], self.rows[i]
        if j < len(low):
            v = second_part + second_part - 1.0
        else:
            j = len(low) - 1
            v = second / (1 << (j - 1)) - 1.0
        left = low[j - 1] + u * (high[j - 1] - low[j - 1])
        return left + v * (low[j] + u * (high[j] - low[j]) - left)


@dataclass(frozen=True, slots=True)
class ComposedModel:
    """The time of a step as the sum of its operations: linear layers over tokens, head over rows, two attentions.

    `prefill` and `decode` give the attention of all layers over (queries, mean keys of a query): a row of n
    new tokens after p computed ones has n queries and n·p + (n² + n) / 2 pairs of a query and a key, a decode row one
    query and as many pairs as its context. Longer contexts never take less, nor does another row of at least the mean
    length; a shorter one may: kernels share out many rows better than few long ones.
    """

    tokens: PiecewiseCurve
    rows: PiecewiseCurve
    prefill: CountSheet
    decode: CountSheet
    fixed_s: float = 0.0

    def step_s(self, batch: BatchCounts) -> float:
        """Seconds the step takes."""
        new, decoding = batch.prefill_tokens, batch.decode_rows
        rows = batch.prefill_rows + decoding
        if not rows:
            return 0.0
        seconds = self.fixed_s + self.tokens.at(new + decoding) + self.rows.at(rows)
        if new:
            seconds += self.prefill.at(new, (batch.prefix_products + 0.5 * (batch.self_products + new)) / new)
        if decoding:
            seconds += self.decode.at(decoding, batch.decode_context / decoding)
        return seconds

    @property
    def bare_s(self) -> float:
        """See `GroupStepTimes`."""
        return self.fixed_s

    def attention_s(self, work: AttentionCounts) -> float:
        """See `GroupStepTimes`."""
        seconds = self.prefill.at(work.queries, work.pairs / work.queries) if work.queries else 0.0
        return seconds + (self.decode.at(work.rows, work.context / work.rows) if work.rows else 0.0)


@dataclass(frozen=True, slots=True)
class EngineOverhead:
    """What an engine's host adds to its device's kernels: `step_s` to every step, `prefill_s` besides to one that
    computes prompt tokens (launched one by one, where a decode step is replayed). Raises ValueError if negative.
    """

    step_s: float = 0.0
    prefill_s: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.step_s < float("inf") and 0 <= self.prefill_s < float("inf")):
            raise ValueError(f"an overhead is a finite time, 0 or more: {self.step_s} s and {self.prefill_s} s")


@dataclass(frozen=True, slots=True)
class StepWithOverhead:
    """The time of a step on a device (`kernels`), with what the host adds."""

    kernels: GroupStepTimes
    overhead: EngineOverhead

    def step_s(self, batch: BatchCounts) -> float:
        """Seconds the step takes."""
        seconds = self.kernels.step_s(batch)
        if batch.prefill_rows:
            return seconds + self.overhead.step_s + self.overhead.prefill_s
        return seconds + self.overhead.step_s if batch.decode_rows else seconds

    @property
    def bare_s(self) -> float:
        """See `GroupStepTimes`."""
        return self.kernels.bare_s + self.overhead.step_s

    def attention_s(self, work: AttentionCounts) -> float:
        """See `GroupStepTimes`."""
        return self.kernels.attention_s(work)


def compute_bound_tokens(tokens: PiecewiseCurve, fixed_s: float = 0.0) -> int | None:
    """The tokens of a step at which it turns from memory- to compute-bound; None if the curve never rises.

    That is where the cost of many tokens, the last slope times their number, comes to be as long as a step of a single
    token (with `fixed_s`, what does not depend on tokens): below it another decode row is nearly free, above it every
    row pays its arithmetic.
    """
    steepest = tokens.slope[-1]
    return max(1, round((fixed_s + tokens.at(1.0)) / steepest)) if steepest > 0 else None


UNSTEADINESS_PIECE_S = 0.002
