"""Samples of the instances over time, from their public reports."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from dunlin.effects import Address, After, Effect, Message
from services.instance.core import InstanceCore
from simulator.cluster.engine_supervisor import SimulatedEngineSupervisor
from simulator.cluster.world import World

SAMPLER = Address("sampler", "")


@dataclass(frozen=True, slots=True)
class SampleDue:
    """The next sample's time has come."""


@dataclass(slots=True)
class InstanceTrack:
    """One instance's samples, a column per measure. `at_s` is from the start of the run; counters only grow."""

    at_s: "array[float]" = field(default_factory=lambda: array("d"))
    running: "array[int]" = field(default_factory=lambda: array("i"))
    waiting: "array[int]" = field(default_factory=lambda: array("i"))
    used_slots: "array[int]" = field(default_factory=lambda: array("q"))
    cached_slots: "array[int]" = field(default_factory=lambda: array("q"))
    capacity_slots: "array[int]" = field(default_factory=lambda: array("q"))
    steps_total: "array[int]" = field(default_factory=lambda: array("q"))
    step_busy_s: "array[float]" = field(default_factory=lambda: array("d"))
    tokens_total: "array[int]" = field(default_factory=lambda: array("q"))
    prefill_tokens_total: "array[int]" = field(default_factory=lambda: array("q"))
    preemptions_total: "array[int]" = field(default_factory=lambda: array("q"))
    migrations_total: "array[int]" = field(default_factory=lambda: array("q"))
    moved_bytes_total: "array[int]" = field(default_factory=lambda: array("q"))
    prefix_hit_tokens_total: "array[int]" = field(default_factory=lambda: array("q"))
    recomputed_tokens_total: "array[int]" = field(default_factory=lambda: array("q"))
    group: "array[int]" = field(default_factory=lambda: array("i"))
    part: "array[int]" = field(default_factory=lambda: array("b"))

    def add(self, at_s: float, core: InstanceCore, supervisor: SimulatedEngineSupervisor) -> None:
        """Append a sample."""
        report = core.report()
        self.at_s.append(at_s)
        self.running.append(report.running)
        self.waiting.append(report.waiting)
        self.used_slots.append(report.capacity_slots - report.free_slots)
        self.cached_slots.append(report.cached_slots)
        self.capacity_slots.append(report.capacity_slots)
        self.steps_total.append(report.steps_total)
        self.step_busy_s.append(supervisor.busy_s)
        self.tokens_total.append(report.tokens_total)
        self.prefill_tokens_total.append(report.prefill_tokens_total)
        self.preemptions_total.append(report.preemptions_total)
        self.migrations_total.append(report.migrations_total)
        self.moved_bytes_total.append(supervisor.moved_bytes)
        self.prefix_hit_tokens_total.append(report.prefix_hit_tokens_total)
        self.recomputed_tokens_total.append(report.recomputed_tokens_total)
        self.group.append(report.group)
        self.part.append(report.part)


class Sampler:
    """Samples every instance each `period_s` seconds; `tracks` are by instance name."""

    def __init__(
        self,
        world: World,
        period_s: float,
        instances: Callable[[], list[tuple[str, InstanceCore, SimulatedEngineSupervisor]]],
    ) -> None:
        self.tracks: dict[str, InstanceTrack] = {}
        self._world = world
        self._period_s = period_s
        self._instances = instances
        self._start_s = 0.0

    def start(self) -> None:
        """Start sampling at the world's time."""
        self._start_s = self._world.now_s
        self._world.add(SAMPLER, self)
        self._world.post(SAMPLER, SAMPLER, SampleDue(), 0.0)

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """Take the sample that is due."""
        self.sample(now_s)
        return [After(self._period_s, SampleDue())]

    def sample(self, now_s: float) -> None:
        """Take one sample of each instance."""
        for name, core, supervisor in self._instances():
            track = self.tracks.get(name)
            if track is None:
                track = self.tracks[name] = InstanceTrack()
            track.add(now_s - self._start_s, core, supervisor)
