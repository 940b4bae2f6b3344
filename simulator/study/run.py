"""One simulation: a cluster under a workload, with the records of all requests and samples of all instances."""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from dunlin.effects import Address, Message
from dunlin.messages.engine import Open
from dunlin.messages.group import group_of
from dunlin.workload.loadgen.stats import RequestRecord
from dunlin.workload.traffic.prompts import Job
from services.instance.core import InstanceCore
from simulator.cluster.engine_supervisor import SimulatedEngineSupervisor
from simulator.cluster.host_cpu import assign_processors
from simulator.cluster.process import Delivery
from simulator.cluster.simulated import SimulatedCluster
from simulator.cluster.spec import ClusterSpec
from simulator.engine.errors import ContractBroken
from simulator.study.load_generator import SimulatedLoad
from simulator.study.samples import InstanceTrack, Sampler

READY_S = 60.0
READY_LOOK_S = 0.1
TimedDecision = tuple[float, Address, Address, Message]


@dataclass(frozen=True, slots=True)
class SimSpec:
    """What to simulate. `jobs` are sorted by time; an iterator is drawn from as the run goes.

    `sample_s`: seconds between samples of the instances (0: none). The run ends when every request ended, at the latest
    `limit_s` seconds after the last arrival. `keep_decisions`: record every message that carries a reason.
    `keep_tokens`: records hold the tokens. `keep_starts`: note when each request was first in an engine.
    """

    cluster: ClusterSpec
    jobs: Iterable[Job]
    sample_s: float = 1.0
    limit_s: float = 3600.0
    keep_decisions: bool = False
    keep_tokens: bool = False
    keep_starts: bool = False


@dataclass(slots=True)
class SimResult:
    """The results of a simulation.

    Times of records, tracks and `starts` (by public id) are seconds from the start of the load, times of decisions
    those of the world, where the load started at `start_s`. `is_complete`: every request ended.
    """

    records: list[RequestRecord]
    tracks: dict[str, InstanceTrack]
    start_s: float
    span_s: float
    events: int
    is_complete: bool
    decisions: list[TimedDecision] = field(default_factory=list)
    starts: dict[str, float] = field(default_factory=dict)


class FirstScheduled:
    """`at_s[request]`: the time of a request's first `Open`, by public id; `on_delivery` takes every one. A request
    that a group computes is opened at each member's engine, under a number of its leader's.
    """

    def __init__(self, instances: Mapping[str, InstanceCore]) -> None:
        self.at_s: dict[str, float] = {}
        self._instances = instances

    def on_delivery(self, event: Delivery) -> None:
        """Note the time: the delivery opens a sequence in an engine."""
        assert isinstance(event.message, Open)
        key = self._request_of(event.sender.name, event.message.sequence)
        if key:
            self.at_s.setdefault(key, event.at_s)

    def _request_of(self, instance: str, number: int) -> str:
        """The public id of the request whose sequence has that number in the instance's engine; empty if it is gone."""
        if group_of(number):
            led = [core.led_group for core in self._instances.values() if core.led_group is not None]
            spreads = (each.spreads.by_number(number) for each in led)
            return next((each.sequence.place.key for each in spreads if each is not None), "")
        core = self._instances.get(instance)
        sequence = core.sequences.by_number(number) if core is not None else None
        return sequence.place.key if sequence is not None else ""


def simulate(spec: SimSpec, on_progress: Callable[[int, float], None] | None = None) -> SimResult:
    """Run a simulation. `on_progress(ended, seconds)` is called at intervals of virtual time.

    Raises:
        ContractBroken: a core broke a contract, or the cluster did not get ready.
    """
    cluster = SimulatedCluster(spec.cluster)
    world = cluster.world
    if spec.cluster.host is not None:
        assign_processors(cluster, spec.cluster.host)
    world.keep_sent = False
    decisions: list[TimedDecision] = []
    if spec.keep_decisions:
        world.on_decided = lambda at_s, sender, to, message: decisions.append((at_s, sender, to, message))
    starts = FirstScheduled(cluster.instances)
    if spec.keep_starts:
        world.on_kind[Open] = starts.on_delivery
    end_token = spec.cluster.engine.ready.vocabulary - 1
    load = SimulatedLoad(world, iter(spec.jobs), cluster.doors, spec.keep_tokens, end_token=end_token)
    sampler = Sampler(world, spec.sample_s, lambda: _instances(cluster))
    with without_gc():
        _until_ready(cluster)
        load.start()
        if spec.sample_s > 0:
            sampler.start()
        is_complete = _run(cluster, load, spec.limit_s, on_progress)
        if spec.sample_s > 0:
            sampler.sample(world.now_s)
    span_s = world.now_s - load.start_s
    began = {request: at_s - load.start_s for request, at_s in starts.at_s.items()}
    events = world.delivered
    return SimResult(load.records, sampler.tracks, load.start_s, span_s, events, is_complete, decisions, began)


def _until_ready(cluster: SimulatedCluster) -> None:
    """Run until the cluster is ready. It looks at intervals, because a look costs more than an event."""
    world = cluster.world
    end_s = world.now_s + READY_S + cluster.spec.engine.timing.load_s
    while not cluster.is_ready:
        if world.now_s > end_s:
            raise ContractBroken(f"not all instances are ready after {world.now_s} s")
        world.run_to(world.now_s + READY_LOOK_S)


def _run(
    cluster: SimulatedCluster,
    load: SimulatedLoad,
    limit_s: float,
    on_progress: Callable[[int, float], None] | None,
    slice_s: float = 0.5,
) -> bool:
    """Run in slices of virtual time until all requests ended; False at the time limit."""
    world, last_s = cluster.world, 0.0
    while not load.is_over:
        if not load.is_exhausted:
            last_s = world.now_s
        elif world.now_s > last_s + limit_s:
            return False
        world.run_to(world.now_s + slice_s)
        if on_progress is not None:
            on_progress(load.ended_total, world.now_s - load.start_s)
    return True


@contextmanager
def without_gc() -> Iterator[None]:
    """Turn the garbage collector off: it takes a fifth of the time, and finds a few objects in a thousand requests."""
    was_on = gc.isenabled()
    gc.collect()  # garbage of earlier runs
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _instances(cluster: SimulatedCluster) -> list[tuple[str, InstanceCore, SimulatedEngineSupervisor]]:
    return [(name, core, cluster.engine_supervisors[core.address]) for name, core in cluster.instances.items()]
