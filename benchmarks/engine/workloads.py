"""What the contestants of `benchmarks.engine.speed` are asked to compute. Imports nothing of dunlin: a contestant's
process reads it before it knows from which tree its engine comes.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that are there at once: `prompts[i]` tokens each, then `outputs` sampled tokens.

    `is_decode`: the KV of all prompt tokens but the last is there before the clock starts, so that every step decodes.
    `pieces` is the number of extents in which an engine's slots of one sequence lie.
    """

    name: str
    prompts: tuple[int, ...]
    outputs: int
    is_decode: bool = False
    pieces: int = 1

    @property
    def counted_tokens(self) -> int:
        """The tokens of the rate: of prompts where nothing is decoded, else the sampled ones."""
        return sum(self.prompts) if self.outputs == 1 and not self.is_decode else self.outputs * len(self.prompts)


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step's columns as in `Step`; `sequence` counts the workload's requests."""

    sequence: list[int] = field(default_factory=list)
    start: list[int] = field(default_factory=list)
    stop: list[int] = field(default_factory=list)
    sample: list[int] = field(default_factory=list)
    extent_row: list[int] = field(default_factory=list)
    extent_start: list[int] = field(default_factory=list)
    extent_length: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens computed."""
        return sum(self.stop) - sum(self.start)


@dataclass(frozen=True, slots=True)
class Plan:
    """A workload in detail: the prompts' ids, and for an engine the steps. `fill` computes, before the clock starts,
    the KV that `cached[i]` (extents of request i) names when a run opens its sequences.
    """

    workload: Workload
    prompts: list[list[int]]
    cached: list[list[tuple[int, int]]]
    fill: list[PlannedStep]
    steps: list[PlannedStep]


@dataclass(frozen=True, slots=True)
class Setup:
    """The first line to a contestant. `kv_bytes` is what an engine needs for the slots of all plans together."""

    checkpoint: str
    threads: int
    kv_bytes: int
    plans: list[Plan]


@dataclass(frozen=True, slots=True)
class Turn:
    """One measurement: as many whole runs of `name` as take `least_s` seconds, at least one."""

    name: str
    least_s: float


@dataclass(frozen=True, slots=True)
class TurnResult:
    """`seconds` on the clock and `cpu_s` of the process for all `runs`; the first sampled token of each request."""

    runs: int
    seconds: float
    cpu_s: float
    first_tokens: list[int]

    @property
    def run_s(self) -> float:
        """Seconds of one run."""
        return self.seconds / self.runs


CONTEXT = 128
RAGGED = tuple(range(100, 1001, 60))
PROMPTS = tuple(range(20, 201, 12))
WORKLOADS = (
    Workload("prefill 512", (512,), 1),
    Workload("decode 1", (CONTEXT,), 32, is_decode=True),
    Workload("decode 16", (CONTEXT,) * 16, 16, is_decode=True),
    Workload("decode 64", (CONTEXT,) * 64, 8, is_decode=True),
    Workload("ragged 16", RAGGED, 16, is_decode=True),
    Workload("ragged 16, 2 extents", RAGGED, 16, is_decode=True, pieces=2),
    Workload("prefill 2,048", (2048,), 1),
    Workload("16 prompts", PROMPTS, 1),
    Workload("64 × (128, 128)", (128,) * 64, 128),
)
