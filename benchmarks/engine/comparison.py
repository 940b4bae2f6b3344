"""Rates of several contestants, round by round, and what they come to. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from benchmarks.engine.roofline import Limits

ENGINE, TRANSFORMERS = "dunlin", "transformers"
BELOW_AT_MOST = 0.03
"""So much slower than another tree counts as measured noise, even in every round: two runs of one tree differ so."""

OTHERS_AT_MOST = 0.15
"""Cores that other processes may keep busy in a turn whose wall-clock rate is judged."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of rates in the same round: its median, and the least and greatest of the rounds."""

    median: float
    least: float
    greatest: float

    @staticmethod
    def of(ours: Sequence[float], theirs: Sequence[float]) -> "Ratio":
        """Of all rounds."""
        ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
        return Ratio(median(ratios), min(ratios), max(ratios))

    @property
    def is_below(self) -> bool:
        """Whether the first is the slower one: in every round, and by more than noise."""
        return self.greatest < 1 and self.median < 1 - BELOW_AT_MOST


@dataclass(slots=True)
class Column:
    """One workload's rounds. Lists by round and contestant: `rates` in tokens/s, `cores` that it and `others` that
    other processes kept busy; by round the shares of the engine's time that the roofline and torch's linears would
    take.
    """

    rates: dict[str, list[float]] = field(default_factory=dict)
    cores: dict[str, list[float]] = field(default_factory=dict)
    others: dict[str, list[float]] = field(default_factory=dict)
    first_tokens: dict[str, list[int]] = field(default_factory=dict)
    roofline: list[float] = field(default_factory=list)
    linears: list[float] = field(default_factory=list)

    def against(self, other: str) -> Ratio:
        """The engine's rate over another contestant's."""
        return Ratio.of(self.rates[ENGINE], self.rates[other])

    def undisturbed(self, other: str) -> Ratio | None:
        """The same over the rounds in which other processes were idle; None if there was none."""
        busy = map(max, self.others[ENGINE], self.others[other])
        quiet = [turn for turn, cores in enumerate(busy) if cores <= OTHERS_AT_MOST]
        ours, theirs = ([self.rates[name][turn] for turn in quiet] for name in (ENGINE, other))
        return Ratio.of(ours, theirs) if quiet else None

    def by_cpu(self, other: str) -> Ratio:
        """The engine's rate per core that it kept busy over another contestant's."""
        return Ratio.of(self._cpu_rates(ENGINE), self._cpu_rates(other))

    def _cpu_rates(self, name: str) -> list[float]:
        return [rate / cores for rate, cores in zip(self.rates[name], self.cores[name], strict=True)]

    def agreeing(self, other: str) -> int:
        """Requests whose first sampled token is the same."""
        return sum(a == b for a, b in zip(self.first_tokens[ENGINE], self.first_tokens[other], strict=True))


@dataclass(slots=True)
class ModelSpeed:
    """What one model's rounds found: a column for each workload; `limits`: one of each round."""

    columns: dict[str, Column]
    limits: list[Limits] = field(default_factory=list)


def in_turn(names: Sequence[str], turn: int) -> list[str]:
    """The order in one round: each contestant comes first, last and after each other one equally often."""
    shift = (turn // 2) % len(names)
    order = [*names[shift:], *names[:shift]]
    return order[::-1] if turn % 2 else order
