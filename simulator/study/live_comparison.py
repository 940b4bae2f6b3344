"""A recorded live run, simulated again, and the differences of its latencies from the live ones.

Takes the record and a timing; knows neither the command line nor the source of the timing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from dunlin.cost.engine_timing import EngineTiming
from dunlin.workload.loadgen.run_record import RecordedRun
from dunlin.workload.loadgen.stats import RequestRecord, RunReport, summarize
from dunlin.workload.traffic.prompts import make_jobs
from simulator.cluster.network import network_beside
from simulator.cluster.spec import ClusterSpec
from simulator.engine.model import SimulatedEngineSettings, engine_ready_of
from simulator.engine.timing import UnsteadyTiming
from simulator.study.recorded_cluster import RunError, recorded_cluster
from simulator.study.run import SimSpec, simulate
from simulator.study.run_counts import simulated_counts

MEASURES = ("ttft_s", "tpot_s")
QUANTILES = ("p50", "p99")
_ENDS_ALONE_S = 1e9
"""Between samples: one at the start of the load, one at its end."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One quantile of a latency, live and simulated, in seconds."""

    measure: str
    quantile: str
    live_s: float
    simulated_s: float

    @property
    def relative(self) -> float:
        """Simulated over live, less 1; 0 where both agree (also that it never came) or the live one is 0."""
        if self.live_s == self.simulated_s:
            return 0.0
        return self.simulated_s / self.live_s - 1.0 if self.live_s else 0.0


@dataclass(frozen=True, slots=True)
class CountDifference:
    """How often something happened, live and simulated: `run_counts.COUNTERS`."""

    name: str
    live: int
    simulated: int

    @property
    def relative(self) -> float:
        """Simulated over live, less 1; 0 where both agree, infinite where it never happened live alone."""
        if self.live == self.simulated:
            return 0.0
        return self.simulated / self.live - 1.0 if self.live else inf


@dataclass(frozen=True, slots=True)
class Resimulation:
    """A recorded run in virtual time: what became of its requests, and what the instances counted."""

    records: Sequence[RequestRecord]
    counts: Mapping[str, int]


def resimulate(run: RecordedRun, timing: EngineTiming, start: float = 0.0) -> list[RequestRecord]:
    """The records of `resimulate_whole`."""
    return list(resimulate_whole(run, timing, start).records)


def resimulate_whole(run: RecordedRun, timing: EngineTiming, start: float = 0.0) -> Resimulation:
    """Simulate the run's requests at their times on the same cluster: processes, nodes, memory and settings.

    `start` (0 to 1): where in the record of the machine's variation the first instance's steps begin; those of others
    begin elsewhere, for what disturbs one process does not disturb all.

    Raises:
        RunError: the record does not say what cluster it was, or it was one that cannot be modelled.
        ContractBroken: see `simulate`.
    """
    asked = run.facts.get("asked")
    if not isinstance(asked, dict):
        raise RunError("the record does not say what workload it was: record it with `dunlin replay --record`")
    said = recorded_cluster(run.facts)
    ready = engine_ready_of(timing, slots=said.slots, max_positions=said.max_positions, vocabulary=said.vocabulary)
    host = timing.host
    slowness = 1.0 / (1.0 - host.instance.idle_share) if host is not None and host.shares_core else 1.0
    engine = SimulatedEngineSettings(
        ready=ready, timing=timing, progress_s=0.25, audit=False, links=timing.links, interrupts=timing.interrupts
    )
    courses = [
        UnsteadyTiming(timing, slowness, (start + number / said.instances) % 1.0) for number in range(said.instances)
    ]
    cluster = ClusterSpec(
        instances=said.instances,
        dispatchers=said.dispatchers,
        managers=said.managers,
        nodes=said.nodes,
        preset=said.preset,
        tier_bytes=said.tier_bytes,
        engine=engine,
        engines={f"instance-{number}": replace(engine, timing=course) for number, course in enumerate(courses)},
        node_links=timing.node,
        network=network_beside(host),
        host=host,
        **said.settings,  # type: ignore[arg-type]
    )
    arrivals = list(run.arrivals)
    sampled = bool(asked.get("sampled"))  # older records do not say: they are greedy
    # The record's times are those at which requests were sent: `asked["speed"]` is in them.
    jobs = make_jobs(arrivals, ready.max_positions, ready.vocabulary, int(asked["seed"]), sampled=sampled)
    result = simulate(SimSpec(cluster, jobs, sample_s=_ENDS_ALONE_S))
    return Resimulation(result.records, simulated_counts(result.tracks))


def count_differences(live: Mapping[str, int], simulated: Mapping[str, int]) -> list[CountDifference]:
    """The counts of a live run beside those of the same run simulated."""
    return [CountDifference(name, live[name], simulated[name]) for name in live]


def differences(live: Sequence[RequestRecord], simulated: Sequence[RequestRecord]) -> list[Difference]:
    """The differences of TTFT and TPOT, each at p50 and p99."""
    ours, theirs = summarize(simulated), summarize(live)
    return [_difference(theirs, ours, measure, quantile) for measure in MEASURES for quantile in QUANTILES]


def _difference(live: RunReport, simulated: RunReport, measure: str, quantile: str) -> Difference:
    values = (getattr(getattr(each, measure), quantile) for each in (live, simulated))
    return Difference(measure.removesuffix("_s"), quantile, *values)
