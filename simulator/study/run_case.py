"""Runs one case of a study: assembles the cluster, simulates it and returns the outcome."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dunlin.cost.engine_overheads import NamedOverhead, overhead_of_preset, parse_overhead
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.host_costs import DISPATCHING
from dunlin.cost.links import EngineLinks, NodeLinks
from dunlin.cost.timing_loader import load_timing
from dunlin.policies.presets import PRESETS
from dunlin.workload.traffic.prompts import answer_bound, clip_lengths, iter_jobs
from dunlin.workload.traffic.trace import Arrival
from services.settings import CORES
from simulator.cluster.network import network_beside
from simulator.cluster.spec import ClusterSpec
from simulator.engine.model import SimulatedEngineSettings, engine_ready_of
from simulator.study.engine_groups import EngineGroup, named, prefill_instances
from simulator.study.explanation import explain_request
from simulator.study.report import SimulationOutcome, slowest
from simulator.study.run import SimResult, SimSpec, simulate
from simulator.study.sweep import Case

_GPUS_PER_NODE = 8
_SAMPLES = 400
_VOCABULARY = 32_000
_QUANTUM = 16
SLOWEST = "slowest"


class SimError(Exception):
    """A case that cannot be simulated; the text says why and what to do."""


def run_case(
    case: Case, arrivals: Sequence[Arrival], progress: Callable[[float], None] | None = None
) -> SimulationOutcome:
    """Simulate `case`. `progress` is called with the share of requests that ended, 0 to 1.

    Raises:
        SimError: an unknown device, model or setting.
    """
    start_s = time.perf_counter()
    cluster = cluster_of(case)
    room, bound = case.max_positions or _longest_request(case, cluster), None
    if not case.oracle:
        bound = answer_bound(arrivals)
        cluster = _with_answer_ends(cluster, answer_ends(arrivals, room))
    jobs = iter_jobs(arrivals, room, _VOCABULARY, case.seed, bound=bound, sampled=case.sampled)
    sample_s = case.sample_s or max(0.1, arrivals[-1].at_s / _SAMPLES)
    spec = SimSpec(cluster, jobs, sample_s, case.limit_s, keep_decisions=bool(case.story_of), keep_starts=True)
    on_progress = None if progress is None else (lambda ended, _: progress(ended / len(arrivals)))
    result = simulate(spec, on_progress)
    return _outcome(case, cluster, arrivals, result, time.perf_counter() - start_s)


def answer_ends(arrivals: Sequence[Arrival], max_positions: int) -> dict[int, int]:
    """The tokens of prompt and answer of each arrival, by its place, which is the seed that `SimulatedLoad` sends."""
    clipped = (clip_lengths(arrival.input_tokens, arrival.output_tokens, max_positions) for arrival in arrivals)
    return {place: inputs + outputs for place, (inputs, outputs) in enumerate(clipped)}


def _with_answer_ends(cluster: ClusterSpec, ends: dict[int, int]) -> ClusterSpec:
    engines = {name: replace(engine, answer_ends=ends) for name, engine in cluster.engines.items()}
    return replace(cluster, engine=replace(cluster.engine, answer_ends=ends), engines=engines)


def _outcome(
    case: Case, cluster: ClusterSpec, arrivals: Sequence[Arrival], result: SimResult, wall_s: float
) -> SimulationOutcome:
    for arrival, record in zip(arrivals, result.records, strict=False):
        record.label = arrival.label
    starts = [result.starts.get(record.request, -1.0) for record in result.records]
    queued = [at_s - record.at_s if at_s >= 0 else -1.0 for at_s, record in zip(starts, result.records, strict=True)]
    return SimulationOutcome(
        case.preset,
        result.records,
        queued,
        result.tracks,
        wall_s,
        result.events,
        _story(case.story_of, result) if case.story_of else (),
        overhead_text(case),
        "; ".join(dict.fromkeys(links_text(each.links, cluster.node_links) for each in _engines(cluster))),
    )


def links_text(engine: EngineLinks, node: NodeLinks) -> str:
    """The bandwidths of an engine's links and its node's, as tables say them."""
    rates = {
        "PCIe": engine.pcie, "NVLink": engine.nvlink, "network": engine.nic, "host memory": node.memory,
        "host network": node.nic,
    }  # fmt: skip
    return ", ".join(f"{name} {f'{rate / 1e9:.4g}' if rate else 'no limit'}" for name, rate in rates.items())


def _story(request: str, result: SimResult) -> tuple[str, ...]:
    if request == SLOWEST:
        found = slowest(result.records)
        if not found:
            return ()
        request = found[0].request
    try:
        lines = explain_request(result.decisions, request)
        return (f"{request}:", *lines) if lines else ()
    except ValueError as error:
        raise SimError(str(error)) from None


def overhead_of(case: Case, group: EngineGroup) -> NamedOverhead | None:
    """What the host of the group's engines adds: as the case says, else by its preset; None: a profile, which holds it
    already.

    Raises ValueError.
    """
    if case.overhead:
        return parse_overhead(case.overhead, group.tp)
    return None if _is_profile(group) else overhead_of_preset(case.preset, group.tp)


def _is_profile(group: EngineGroup) -> bool:
    """Whether the group's device is a file with what was measured."""
    return Path(group.device).is_file()


def overhead_text(case: Case) -> str:
    """What the engines' hosts add, as tables say it: of each group where they differ."""
    said = {group: str(overhead_of(case, group) or "that of the profile") for group in case.groups}
    if len(set(said.values())) == 1:
        return next(iter(said.values()))
    return "; ".join(f"{group}: {text}" for group, text in said.items())


def cluster_of(case: Case) -> ClusterSpec:
    """The specification of a case's cluster. Raises SimError as `run_case`."""
    try:
        groups = case.groups
        timings = {group: _timing(case, group) for group in dict.fromkeys(groups)}
        members = _members(case)
        engines = {group: engine_of(timing, case.max_positions, members) for group, timing in timings.items()}
        by_name = {name: engines[group] for name, group in named(groups)}
        measured = timings[groups[0]].host  # none but profiles have one
        nodes = case.nodes or -(-sum(group.count * group.tp for group in groups) // _GPUS_PER_NODE)
        spec = ClusterSpec(
            instances=len(by_name),
            dispatchers=case.dispatchers,
            nodes=min(nodes, len(by_name)),
            preset=case.preset,
            tier_bytes=case.tier_bytes,
            engine=engines[groups[0]],
            engines=by_name if len(engines) > 1 else {},
            node_links=timings[groups[0]].node,
            network=network_beside(measured),
            host=measured if _is_profile(groups[0]) else DISPATCHING,
            has_profiles=case.has_profiles,
        )
        spec = replace(spec, **_overrides(case))  # type: ignore[arg-type]
        # What a role would refuse at its start is refused here, before anything runs.
        spec.instance_config(""), spec.dispatcher_config(), spec.manager_config(), spec.kvstore_config("")
        spec.monitor_config()
        return spec
    except ValueError as error:
        raise SimError(str(error)) from None


def _timing(case: Case, group: EngineGroup) -> EngineTiming:
    """The times and the memory of a group's engines. Raises ValueError: none are known, or no memory is left."""
    added = overhead_of(case, group)
    timing = load_timing(
        group.device, case.shape, group.tp, None if added is None else added.overhead, dict(case.links)
    )
    if timing.slots < _QUANTUM:
        gpus = f"{group.tp} {group.device}"
        raise ValueError(f"{case.shape} leaves no memory for KV on {gpus}: take more GPUs (--tp)")
    return timing


def _overrides(case: Case) -> dict[str, dict[str, Any]]:
    """Settings by role. Raises ValueError: there is no such role."""
    found: dict[str, dict[str, Any]] = {}
    if names := prefill_instances(case.groups):
        if PRESETS[case.preset].handoff == "none":
            raise ValueError(f"preset {case.preset} splits no work: its instances have no roles (distserve's have)")
        found["manager"] = {"groups.prefill_instances": names}
    for name, value in case.settings:
        role, _, rest = name.partition(".")
        if role not in CORES:
            raise ValueError(f"there is no setting {name!r}: names begin with {', '.join(CORES)}")
        found.setdefault(role, {})[rest] = value
    return found


def _members(case: Case) -> int:
    """How many instances may hold a request together."""
    return sum(group.count for group in case.groups) if PRESETS[case.preset].forms_groups else 1


def _engines(cluster: ClusterSpec) -> tuple[SimulatedEngineSettings, ...]:
    return cluster.engine, *cluster.engines.values()


def _longest_request(case: Case, cluster: ClusterSpec) -> int:
    """Tokens of the longest request that the cluster takes: where it moves after its prompt, each engine must."""
    positions = [engine.ready.max_positions for engine in _engines(cluster)]
    return min(positions) if PRESETS[case.preset].handoff != "none" else max(positions)


def engine_of(timing: EngineTiming, max_positions: int, members: int = 1) -> SimulatedEngineSettings:
    """An engine with the times and the memory that were found for a device and a model. `members`: so many may hold a
    sequence together, which is as long as all of them hold at most.
    """
    slots = timing.slots // _QUANTUM * _QUANTUM
    ready = engine_ready_of(
        timing,
        slots=slots,
        quantum=_QUANTUM,
        max_positions=min(members * slots, max_positions or members * slots),
        vocabulary=_VOCABULARY,
    )
    # The workload begins when the cluster is up: how long that took does not matter.
    return SimulatedEngineSettings(
        ready,
        replace(timing, load_s=0.0),
        progress_s=0.25,
        audit=False,
        links=timing.links,
        interrupts=timing.interrupts,
    )
