"""Runs one system under one load in the twin."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from benchmarks.papers.conserve_scenes import TPOT_S, TTFT_S, Scene, Setup, System
from dunlin.workload.loadgen.stats import RequestRecord, percentiles
from dunlin.workload.traffic.scaling import overlay
from dunlin.workload.traffic.workload_spec import read_workload
from simulator.study.report import SimulationOutcome
from simulator.study.run_case import run_case
from simulator.study.sweep import Case

BATCH_PER_S = 1.5
"""Batch requests that are waiting at the start, per second of the horizon, of the A100: more than any system ends."""
GRACE_S = 120.0
"""Seconds after the last arrival at which a run is cut off: a request without a token counts as infinitely late."""
WINDOWS = 18
"""Of the horizon, for pictures over time."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a run from `start_s` on. Times in ms, of requests that arrived and tokens that came in it; rates in
    tokens per second."""

    start_s: float
    ttft_p99: float
    tpot_p99: float
    online: float
    offline: float


@dataclass(frozen=True, slots=True)
class Row:
    """One system in one scene; times in ms, rates in tokens per second of the horizon.

    `offline_off`: the rate of batch work while no online request arrives. `unanswered`: online ones without a token.
    """

    ttft_p50: float
    ttft_p99: float
    tpot_p99: float
    online: float
    offline: float
    unanswered: int
    preemptions: int = 0
    offline_off: float = 0.0
    windows: Sequence[Window] = field(default_factory=tuple)

    @property
    def total(self) -> float:
        """All tokens."""
        return self.online + self.offline


@dataclass(frozen=True, slots=True)
class Plan:
    """What all runs of a call have in common. `overhead`: what the engine's host adds, for all systems alike."""

    setup: Setup
    horizon_s: float
    seed: int
    overhead: str = "dunlin"


def run(plan: Plan, scene: Scene, system: System, ideal: Row | None) -> Row:
    """Simulate one system, with the p99 of `ideal` (online requests alone) as its objectives, as the paper does."""
    aims = (TTFT_S, TPOT_S) if ideal is None else (1e-3 * ideal.ttft_p99, 1e-3 * ideal.tpot_p99)
    outcome = outcome_of(plan, scene, system, aims)
    online = [record for record in outcome.records if record.label == "chat"]
    offline = [record for record in outcome.records if record.label == "batch"]
    whole = _window(online, offline, 0.0, plan.horizon_s)
    edges = [plan.horizon_s * index / WINDOWS for index in range(WINDOWS + 1)]
    start_s, stop_s = scene.off_s
    return Row(
        1e3 * percentiles(ttft_s(online)).p50,
        1e3 * percentiles(ttft_s(online)).p99,
        1e3 * percentiles(gaps_s(online)).p99,
        whole.online,
        whole.offline,
        sum(not record.token_s for record in online),
        sum(track.preemptions_total[-1] for track in outcome.tracks.values()),
        tokens_within(offline, start_s, stop_s) / (stop_s - start_s) if stop_s > start_s else 0.0,
        tuple(_window(online, offline, start_s, stop_s) for start_s, stop_s in pairwise(edges)),
    )


def outcome_of(
    plan: Plan, scene: Scene, system: System, aims: tuple[float, float], has_profiles: bool = True
) -> SimulationOutcome:
    """Simulate one system beside batch work, with these objectives (TTFT and TPOT, in seconds). `has_profiles`: it
    knows the times of its steps; else it learns them.
    """
    chat = scene.online(plan.seed)
    waiting = round(BATCH_PER_S * plan.setup.rate_factor * plan.horizon_s)
    batch = read_workload(f"gamma:rate=10000,cv=1,requests={waiting},lengths=longbench,class=batch", plan.seed + 1)
    case = replace(_case(plan, system, aims), has_profiles=has_profiles)
    return run_case(case, overlay([chat, batch]))


def _case(plan: Plan, system: System, aims: tuple[float, float]) -> Case:
    settings = (
        ("instance.kv_cache.max_slots", plan.setup.slots),
        ("instance.scheduler.max_running", plan.setup.max_running),
        ("dispatcher.admission.max_wait_s", 3600.0),
        ("instance.objectives.ttft_s", aims[0]),
        ("instance.objectives.tpot_s", aims[1]),
        *system.settings,
    )
    return Case(
        system.preset,
        1,
        plan.setup.device,
        plan.setup.model,
        seed=plan.seed,
        max_positions=plan.setup.max_positions,
        limit_s=GRACE_S,
        overhead=plan.overhead,
        settings=settings,
    )


def ttft_s(records: Sequence[RequestRecord]) -> list[float]:
    """Of each request; infinite for one without a token."""
    return [record.token_s[0] - record.at_s if record.token_s else float("inf") for record in records]


def gaps_s(records: Sequence[RequestRecord]) -> list[float]:
    """The paper's TPOT: between tokens that follow each other."""
    return [late - early for record in records for early, late in pairwise(record.token_s)]


def tokens_within(records: Sequence[RequestRecord], start_s: float, stop_s: float) -> int:
    """Prompt and generated tokens that came in it; a prompt counts with its first token."""
    total = 0
    for record in records:
        came = sum(start_s < at_s <= stop_s for at_s in record.token_s)
        is_first = bool(record.token_s) and start_s < record.token_s[0] <= stop_s
        total += came + (record.input_tokens if is_first else 0)
    return total


def _window(online: Sequence[RequestRecord], offline: Sequence[RequestRecord], start_s: float, stop_s: float) -> Window:
    arrived = [record for record in online if start_s <= record.at_s < stop_s]
    gaps = [late - early for record in online for early, late in pairwise(record.token_s) if start_s < late <= stop_s]
    return Window(
        start_s,
        1e3 * percentiles(ttft_s(arrived)).p99,
        1e3 * percentiles(gaps).p99,
        tokens_within(online, start_s, stop_s) / (stop_s - start_s),
        tokens_within(offline, start_s, stop_s) / (stop_s - start_s),
    )
