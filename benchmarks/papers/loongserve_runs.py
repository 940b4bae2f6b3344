"""Runs one system under one load of LoongServe's section 7, and measures it as the paper does."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import fsum, inf

from benchmarks.papers.loongserve_scenes import DEVICE, LINKS, MAX_POSITIONS, SHAPE, Scene, System
from dunlin.cost.engine_overheads import parse_overhead
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.models import BatchCounts
from dunlin.cost.timing_loader import load_timing
from dunlin.workload.loadgen.stats import RequestRecord, percentiles
from simulator.study.run_case import run_case
from simulator.study.sweep import Case

SLO_FACTOR = 25.0
"""The objective is so many times the latency of a request that has all eight GPUs to itself (TP 8)."""
PAPERS = "papers"
GRACE_S = 3_600.0
"""Seconds after the last arrival at which a run is cut off."""


@dataclass(frozen=True, slots=True)
class Row:
    """One system at one rate. Latencies in ms per token: of all tokens, of the prompt's until the first token, and
    between tokens of the answer; each the mean over requests, infinite where one never came.

    `*_slo`: the objectives, of the same requests. `met`: share of the requests whose own first token and gaps were
    within `SLO_FACTOR` of theirs alone. `refused`, `expired` and `failed` of the `requests` got no answer, `unanswered`
    of them no token.
    """

    requests: int
    refused: int
    expired: int
    failed: int
    unanswered: int
    token_ms: float
    input_ms: float
    output_ms: float
    token_slo: float
    input_slo: float
    output_slo: float
    met: float
    ttft_p50: float
    ttft_p99: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What all runs of a call have in common. `overhead`: of the engine's host, for all systems alike; or `PAPERS`:
    what was measured of vLLM for those built on it, and of LoongServe's engine for the others."""

    seed: int
    overhead: str = "dunlin"

    def overhead_of(self, system: System) -> str:
        """As `Case` takes it."""
        if self.overhead != PAPERS:
            return self.overhead
        return "vllm" if system.is_vllm else "a800-lwm-7b"


def run(plan: Plan, scene: Scene, system: System, rate: float) -> Row:
    """Simulate one system at one rate."""
    case = Case(
        system.preset,
        system.instances * scene.nodes,
        DEVICE,
        SHAPE,
        tp=system.tp,
        nodes=scene.nodes,
        seed=plan.seed,
        tier_bytes=1 << 40,
        max_positions=MAX_POSITIONS,
        limit_s=GRACE_S,
        overhead=plan.overhead_of(system),
        links=LINKS,
        settings=(
            ("instance.checkpoint.engine_share", 0.0),
            ("instance.scheduler.max_running", 512),
            ("instance.scheduler.max_waiting", 4_096),
            ("dispatcher.admission.max_wait_s", 1e6),
            *system.settings,
        ),
    )
    return _row(run_case(case, scene.arrivals(rate, plan.seed)).records)


def _row(records: Sequence[RequestRecord]) -> Row:
    alone = [_alone_s(record.input_tokens, record.output_tokens) for record in records]
    lengths = [record.input_tokens + record.output_tokens for record in records]
    ttft = [record.token_s[0] - record.at_s if record.token_s else inf for record in records]
    whole = [record.token_s[-1] - record.at_s if record.outcome == "ok" else inf for record in records]
    gaps = [_gap_s(record) for record in records]
    outcomes = [record.outcome for record in records]
    met = [
        first_s <= SLO_FACTOR * one[0] and gap_s <= SLO_FACTOR * one[1]
        for first_s, gap_s, one in zip(ttft, gaps, alone, strict=True)
    ]
    found = percentiles(ttft)
    return Row(
        len(records),
        outcomes.count("refused"),
        outcomes.count("expired"),
        outcomes.count("error"),
        sum(not record.token_s for record in records),
        _mean_ms([seconds / length for seconds, length in zip(whole, lengths, strict=True)]),
        _mean_ms([seconds / record.input_tokens for seconds, record in zip(ttft, records, strict=True)]),
        _mean_ms(gaps),
        SLO_FACTOR
        * _mean_ms([(p + d * r.output_tokens) / n for (p, d), r, n in zip(alone, records, lengths, strict=True)]),
        SLO_FACTOR * _mean_ms([p / record.input_tokens for (p, _), record in zip(alone, records, strict=True)]),
        SLO_FACTOR * _mean_ms([d for _, d in alone]),
        sum(met) / len(met),
        found.p50,
        found.p99,
    )


def _gap_s(record: RequestRecord) -> float:
    """The mean time between tokens of the answer; 0 of an answer of one token."""
    if record.outcome != "ok":
        return inf
    return (record.token_s[-1] - record.token_s[0]) / max(1, len(record.token_s) - 1)


def _mean_ms(seconds: Sequence[float]) -> float:
    return 1e3 * fsum(seconds) / len(seconds) if inf not in seconds else inf


@lru_cache(maxsize=1)
def _timing() -> EngineTiming:
    return load_timing(DEVICE, SHAPE, 8, parse_overhead("dunlin").overhead)


@lru_cache(maxsize=1 << 16)
def _alone_s(inputs: int, outputs: int) -> tuple[float, float]:
    """Seconds of the prompt and of each further token of a request that has eight GPUs to itself (TP 8)."""
    prompt = BatchCounts()
    prompt.add_prefill(inputs)
    decode = BatchCounts(decode_rows=1, decode_context=inputs + outputs // 2)
    return _timing().step_s(prompt), _timing().step_s(decode)
