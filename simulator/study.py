"""One workload under several presets: what is compared, run one after the other or in processes of their own, and the
search for the smallest cluster that is good enough.

Knows how a case is run only as a function; nothing here depends on the clock of this machine but `wall_s`.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from typing import Any

from dunlin.workload.slo import Slos
from dunlin.workload.trace import Arrival
from simulator.report import Outcome

MOST_INSTANCES = 1 << 13


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation to run. Arrivals are shared by all cases of a study; a case says the rest.

    `tier_bytes` is the host memory for KV of each node, `max_positions` the longest request (0: what the memory holds),
    `sample_s` the time between samples of the instances (0: a two-hundredth of the workload), `story_of` the request to
    explain ("slowest": the one that waited longest for its first token), `overhead` what the engine's host adds to
    steps (as `dunlin.cost.shipped.find_overhead` reads it; empty: nothing), `settings` names and
    values of those that differ from the defaults and the preset's.
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
    story_of: str = ""
    overhead: str = ""
    settings: tuple[tuple[str, Any], ...] = ()


Runner = Callable[[Case, Sequence[Arrival], "Callable[[float], None] | None"], Outcome]
"""Runs a case; calls the last with the share that is done."""


def run_all(
    cases: Sequence[Case],
    arrivals: Sequence[Arrival],
    runner: Runner,
    jobs: int = 1,
    show: Callable[[Case, float], None] = lambda case, share: None,
) -> list[Outcome]:
    """The outcomes of `cases`, in their order. With `jobs` above 1 they run in that many processes; `runner` then must
    be a function of a module, and progress is told case by case."""
    if jobs > 1 and len(cases) > 1:
        return _in_processes(cases, arrivals, runner, jobs, show)
    return [runner(case, arrivals, lambda share, case=case: show(case, share)) for case in cases]  # type: ignore[misc]


def _in_processes(
    cases: Sequence[Case],
    arrivals: Sequence[Arrival],
    runner: Runner,
    jobs: int,
    show: Callable[[Case, float], None],
) -> list[Outcome]:
    # Fresh interpreters: what a case computes must not depend on what this process did before.
    with ProcessPoolExecutor(min(jobs, len(cases)), get_context("spawn")) as pool:
        futures: dict[Future[Outcome], Case] = {pool.submit(runner, case, arrivals, None): case for case in cases}
        for future in as_completed(futures):
            show(futures[future], 1.0)
        return [future.result() for future in futures]


@dataclass(frozen=True, slots=True)
class Found:
    """The smallest cluster that met the objective, or None; and every size that was tried with its attainment."""

    outcome: Outcome | None
    tried: tuple[tuple[int, float], ...]


def smallest(
    case: Case, most: int, attainment: float, share_of: Callable[[Outcome], float], run: Callable[[Case], Outcome]
) -> Found:
    """The fewest instances, at most `most`, with which at least the share `attainment` of requests meets its objective.

    Doubles until it is met, then halves the gap: it takes for granted that more instances never make it worse.
    """
    outcomes: dict[int, tuple[float, Outcome]] = {}

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
    return Found(outcomes[high][1] if found else None, tried)


def attainment_of(slos: Slos) -> Callable[[Outcome], float]:
    """The share of an outcome's requests that meet their objective."""
    from dunlin.workload.slo import met

    def share(outcome: Outcome) -> float:
        flags = met(outcome.records, slos)
        return sum(flags) / len(flags) if flags else 0.0

    return share
