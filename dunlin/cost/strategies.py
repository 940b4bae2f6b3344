"""Seconds of a prefill on several GPUs by strategy: LoongServe's equation 7, one fit per strategy. Pure.

Knows coefficients. Does not know where they come from (`shipped`, `store`), nor a group, an instance or a scheduler:
a policy that decides how many instances prefill together calls `Strategies.step_s` for each strategy in question.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from dunlin.cost.models import BatchCounts, EngineOverhead

if TYPE_CHECKING:
    from dunlin.cost.device import Source


class StrategyError(ValueError):
    """A strategy that was not measured; the message names the known ones."""


class Strategy(NamedTuple):
    """How GPUs share a step: `sp` instances along the sequence (degree of parallelism), each of `tp` GPUs."""

    sp: int
    tp: int

    def __str__(self) -> str:
        return f"sp{self.sp}-tp{self.tp}"


@dataclass(frozen=True, slots=True)
class PrefillModel:
    """Equation 7: `fixed_s` + `token_s`·Σ length + `square_s`·Σ length².

    `least_tokens` and `most_tokens` are the sums of lengths that were measured, `points` how many: a prediction beyond
    them goes on as the formula does.
    """

    fixed_s: float
    token_s: float
    square_s: float
    least_tokens: int = 0
    most_tokens: int = 0
    points: int = 0

    def __post_init__(self) -> None:
        if min(self.fixed_s, self.token_s, self.square_s) < 0:
            raise ValueError(f"no price of a prefill may be negative: {self}")

    def step_s(self, batch: BatchCounts) -> float:
        """Seconds to prefill the batch.

        A chunk of n tokens after p computed ones is its share of the whole's square: (n + p)² − p² = n² + 2·n·p.
        Raises ValueError if there are decode rows: the equation knows none.
        """
        if batch.decode_rows:
            raise ValueError(f"equation 7 is of prefills; the batch has {batch.decode_rows} decode rows")
        if not batch.prefill_rows:
            return 0.0
        squares = batch.self_products + 2 * batch.prefix_products
        return self.fixed_s + self.token_s * batch.prefill_tokens + self.square_s * squares


@dataclass(frozen=True, slots=True)
class Strategies:
    """One model on one kind of machine: a fit per strategy, and the overhead of the engine that was measured."""

    name: str
    title: str
    shape: str
    prefill: Mapping[Strategy, PrefillModel]
    overhead: EngineOverhead
    sources: "tuple[Source, ...]" = ()
    notes: Mapping[str, str] = field(default_factory=dict)

    def known(self) -> list[Strategy]:
        """The measured strategies, by (sp, tp)."""
        return sorted(self.prefill)

    def step_s(self, strategy: Strategy, batch: BatchCounts) -> float:
        """Seconds for a prefill. Raises StrategyError for one that was not measured, ValueError for decode rows."""
        model = self.prefill.get(strategy)
        if model is None:
            known = ", ".join(map(str, self.known()))
            raise StrategyError(f"{self.name} was not measured as {Strategy(*strategy)}; known: {known}")
        return model.step_s(batch)

    def as_json(self) -> dict[str, Any]:
        """The fits as JSON, which `parse_strategies` reads back."""
        plain = asdict(self)
        plain["prefill"] = {f"{s.sp}x{s.tp}": asdict(model) for s, model in sorted(self.prefill.items())}
        return plain
