"""Length sets of published data sets whose rows are not at hand, drawn from the figures that were published of them.

All are synthetic: means and ranges are published, the spread is a guess where nothing is said. Prefer a file of the
real lengths where you have one. Licences are the data sets'.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from dunlin.workload.traffic.lengths import LengthSource, LognormalLengths, MixedLengths, Pair


@dataclass(frozen=True, slots=True)
class ClippedLengths:
    """Another source's lengths, its inputs within `low`…`high` and its outputs at most `most`."""

    source: LengthSource
    low: int
    high: int
    most: int

    def draw(self, random: Random) -> Pair:
        """A draw of the source, clipped."""
        inputs, outputs = self.source.draw(random)
        return max(self.low, min(self.high, inputs)), min(self.most, outputs)


@dataclass(frozen=True, slots=True)
class LeveledLengths:
    """Inputs of one of several levels, in words, each equally likely; `tokens` of a word (median), and a spread."""

    words: tuple[int, ...]
    tokens: float
    spread: float
    output_mean: float

    def draw(self, random: Random) -> Pair:
        """A level, then its tokens; the answer is lognormal."""
        inputs = round(random.choice(self.words) * self.tokens * random.lognormvariate(0.0, self.spread))
        return max(1, inputs), LognormalLengths(1.0, self.output_mean).draw(random)[1]


@dataclass(frozen=True, slots=True)
class PublishedLengths:
    """A data set's lengths and the source of the figures behind them."""

    lengths: LengthSource
    source: str


_BURSTGPT = LognormalLengths(642, 262, 1.0, 8192)
_SHAREGPT = ClippedLengths(LognormalLengths(1832, 377, 0.8), 1, 4096, 2048)  # clipped, the means are 1,660 and 373
_LEVAL = ClippedLengths(LognormalLengths(14_000, 55, 0.8), 2_700, 210_500, 1024)
_LVEVAL = ClippedLengths(
    LeveledLengths((16_000, 32_000, 64_000, 128_000, 256_000), 1.4, 0.15, 17), 15_100, 497_300, 200
)
PUBLISHED: Mapping[str, PublishedLengths] = {
    "burstgpt": PublishedLengths(
        _BURSTGPT, "BurstGPT (CC-BY-4.0): means 642 in, 262 out, as KunServe 5.1 says; the spread is a guess"
    ),
    "sharegpt": PublishedLengths(
        _SHAREGPT,
        "ShareGPT (no licence of its own): means 1,660 in, 373 out, inputs to 4K (KunServe 5.1); spread guessed",
    ),
    "longbench": PublishedLengths(
        ClippedLengths(LognormalLengths(5900, 499, 0.6), 1, 32_768, 2048),
        "LongBench (MIT): means 5.9K in, 499 out, as KunServe 5.1 says; the spread is a guess",
    ),
    "leval": PublishedLengths(
        _LEVAL,
        "L-Eval (GPL-3.0): 2.7K to 210.5K tokens, as LoongServe 7.1 says; mean and spread guessed, one document each",
    ),
    "lveval": PublishedLengths(
        _LVEVAL,
        "LV-Eval (MIT): five levels to 256K words, 15.1K to 497.3K tokens (LoongServe 7.1); answers are a guess",
    ),
    "loogle": PublishedLengths(
        ClippedLengths(LognormalLengths(25_000, 60, 0.5), 8_000, 200_000, 1024),
        "LooGLE (MIT): documents of 19.3K words on average (its paper), 1.3 tokens a word; spread and answers guessed",
    ),
    "loongserve-mixed": PublishedLengths(
        MixedLengths((_SHAREGPT, _LEVAL, _LVEVAL), (1.0, 1.0, 1.0)),
        "LoongServe 7.1's Mixed: sharegpt, leval and lveval in equal parts, each as said of it",
    ),
}


def synthetic_notes(text: str) -> list[str]:
    """A line for each data set of this module that a workload's specification names."""
    words = text.replace("(", ",").replace(")", ",").replace("*", ",").replace("=", ",").replace(" ", ",").split(",")
    return [f"synthetic lengths, {name}: {PUBLISHED[name].source}" for name in PUBLISHED if name in words]
