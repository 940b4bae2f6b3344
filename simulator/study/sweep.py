"""One workload under several presets, in one process or several, and the search for the smallest sufficient cluster.

How a case is run is a function that callers pass; of the results only `wall_s` depends on this machine's clock.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

from dunlin.workload.loadgen.slo import Slos
from dunlin.workload.traffic.trace import Arrival
from simulator.study.engine_groups import EngineGroup
from simulator.study.report import SimulationOutcome

MOST_INSTANCES = 1 << 13


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation of a study; all cases share the arrivals.

    `tier_bytes` is the host memory for KV of each node, `max_positions` the longest request (0: what the memory holds),
    `sample_s` the time between samples of the instances (0: a two-hundredth of the workload), `limit_s` the time after
    the last arrival at which the run is cut off, `story_of` the request to explain ("slowest": the one that waited
    longest for its first token), `overhead` what the engine's host adds to steps (as
    `dunlin.cost.engine_overheads.parse_overhead` reads it; empty: by the preset's engine), `oracle` that the bound of
    each answer is its length, which no scheduler can know otherwise (they all get the same bound), `sampled` that
    tokens are drawn with a temperature (else all are greedy), `links` names and
    bytes per second of links that are not as the device's (`dunlin.cost.device.LINKS`), `has_profiles` that instances
    know the times of their steps from the first one on (else they learn them), `settings` names and values of
    those that differ from the defaults and the preset's, `engines` the instances where they are not all alike: then
    `instances`, `device` and `tp` say nothing.
    """

    preset: str
    instances: int
    device: str
    shape: str
    tp: int = 1
    nodes: int = 0
    dispatchers: int = 1
    seed: int = 0
    tier_bytes: int = 32 << 30
    max_positions: int = 0
    sample_s: float = 0.0
    limit_s: float = 3600.0
    story_of: str = ""
    overhead: str = ""
    oracle: bool = False
    sampled: bool = False
    links: tuple[tuple[str, float], ...] = ()
    has_profiles: bool = True
    settings: tuple[tuple[str, Any], ...] = ()
    engines: tuple[EngineGroup, ...] = ()

    @property
    def groups(self) -> tuple[EngineGroup, ...]:
        """The instances by what they are alike in."""
        return self.engines or (EngineGroup(self.instances, self.device, self.tp),)


Runner = Callable[[Case, Sequence[Arrival], "Callable[[float], None] | None"], SimulationOutcome]
"""Runs a case; calls its last argument with the share that is done, 0 to 1."""


def run_all(
    cases: Sequence[Case],
    arrivals: Sequence[Arrival],
    runner: Runner,
    jobs: int = 1,
    show: Callable[[Case, float], None] = lambda case, share: None,
) -> list[SimulationOutcome]:
    """The outcomes of `cases`, in their order.

    With `jobs` above 1 they run in that many processes; `runner` must then be a module-level function, and `show` is
    called once per case.
    """
    if jobs > 1 and len(cases) > 1:
        return _in_processes(cases, arrivals, runner, jobs, show)
    return [runner(case, arrivals, lambda share, case=case: show(case, share)) for case in cases]  # type: ignore[misc]


def _in_processes(
    cases: Sequence[Case],
    arrivals: Sequence[Arrival],
    runner: Runner,
    jobs: int,
    show: Callable[[Case, float], None],
) -> list[SimulationOutcome]:
    # Fresh interpreters: what a case computes must not depend on what this process did before.
    with ProcessPoolExecutor(min(jobs, len(cases)), get_context("spawn")) as pool:
        futures: dict[Future[SimulationOutcome], Case] = {
            pool.submit(runner, case, arrivals, None): case for case in cases
        }
        for future in as_completed(futures):
            show(futures[future], 1.0)
        return [future.result() for future in futures]


@dataclass(frozen=True, slots=True)
class SizingResult:
    """The outcome of the smallest cluster that met the objective, or None; and the attainment of each size tried."""

    outcome: SimulationOutcome | None
    tried: tuple[tuple[int, float], ...]


def smallest_cluster(
    case: Case,
    most: int,
    attainment: float,
    share_of: Callable[[SimulationOutcome], float],
    run: Callable[[Case], SimulationOutcome],
) -> SizingResult:
    """The fewest instances, at most `most`, with which at least the share `attainment` of requests meets its objective.

    Doubles the size until the objective is met, then bisects: it assumes that more instances never make it worse.
    """
    outcomes: dict[int, tuple[float, SimulationOutcome]] = {}

    def is_enough(instances: int) -> bool:
        if instances not in outcomes:
            outcome = run(replace(case, instances=instances))
            outcomes[instances] = share_of(outcome), outcome
        return outcomes[instances][0] >= attainment

    high = 1
    while high < most and not is_enough(high):
        high = min(most, 2 * high)
    low = high // 2
    found = is_enough(high)
    while found and high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    tried = tuple((size, share) for size, (share, _) in sorted(outcomes.items()))
    return SizingResult(outcomes[high][1] if found else None, tried)


def attainment_of(slos: Slos) -> Callable[[SimulationOutcome], float]:
    """A function to the share (0 to 1) of an outcome's requests that meet their objective."""
    from dunlin.workload.loadgen.slo import meets_slo

    def share(outcome: SimulationOutcome) -> float:
        flags = meets_slo(outcome.records, slos)
        return sum(flags) / len(flags) if flags else 0.0

    return share
