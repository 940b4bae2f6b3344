"""Members of a group on cores of their own, on a machine that has too few: each has a clock of the CPU time it used.

All engines live in this process and take turns, a piece each: the one whose clock is least. A piece adds its CPU time
to its member's clock, and what it sends can be read from its end on. A member that waits is set forward to the next
other's clock, and the time until then is a wait. What is not modelled is that cores share memory bandwidth.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.engine.overlap_plan import OverlapPlan, part_of_step
from benchmarks.engine.overlap_probe import LayerTimes, RoundClock, TimedIteration
from dunlin.engine.transfer.host_tier import Bytes
from dunlin.engine.transfer.room_pipe import PipeReader, PipeWriter
from dunlin.messages.engine import StepDone

_SENT_S = 48
"""A word of a room's header that pipes do not use: when its writer wrote last."""


class VirtualCore:
    """A member's engine and its clock."""

    def __init__(self, member: Any) -> None:
        self.member = member
        self.now_s = 0.0
        self._began_s = 0.0
        self.clock = RoundClock(self.read)

    def read(self) -> float:
        """The member's time, the piece that it computes included."""
        return self.now_s + (time.thread_time() - self._began_s if self._began_s else 0.0)

    def advance(self) -> list[Any]:
        """Compute one piece."""
        TimedIteration.clock = self.clock
        StampedPipes.now = self.read
        self._began_s = time.thread_time()
        events: list[Any] = self.member.runner.work(lambda: True)
        self.now_s, self._began_s = self.read(), 0.0
        return events


class StampedPipes:
    """Pipes between members of this process: `now()` is the time of the one that computes."""

    now: Callable[[], float]

    @staticmethod
    @contextmanager
    def installed() -> Iterator[None]:
        """Have all pipes of this process say when they were written, and hide what was written later than now."""
        write, read = PipeWriter.write, PipeReader.read_into

        def stamped(pipe: PipeWriter, content: Bytes) -> int:
            count = write(pipe, content)
            if count:
                pipe._words.view("float64")[_SENT_S] = StampedPipes.now()
            return count

        def visible(pipe: PipeReader, wanted: Bytes) -> int:
            is_sent = float(pipe._words.view("float64")[_SENT_S]) <= StampedPipes.now()
            return read(pipe, wanted) if is_sent else 0

        classes: Any = (PipeWriter, PipeReader)
        classes[0].write, classes[1].read_into = stamped, visible
        try:
            yield
        finally:
            classes[0].write, classes[1].read_into = write, read


@torch.inference_mode()
def run_step(plan: OverlapPlan, index: int, cores: Sequence[VirtualCore], layers: int) -> list[list[LayerTimes]]:
    """A step of the plan at all members, which begin at once; the layers of each, none where it has no part."""
    running: list[VirtualCore] = []
    for core in cores:
        core.now_s, core.clock.layers = 0.0, []
        step = part_of_step(plan, index, core.member.me, layers)
        if step is not None:
            core.member.runner.receive(step)
            core.clock.begin()
            running.append(core)
    started = list(running)
    while running:
        core = min(running, key=lambda one: one.now_s)
        events = core.advance()
        if core.member.runner.is_waiting:
            others = [one.now_s for one in running if one is not core and one.now_s > core.now_s]
            core.now_s = min(others, default=core.now_s) + 1e-6
        for done in events:
            assert isinstance(done, StepDone), done
            assert not done.left, done
            running.remove(core)
    return [core.clock.layers if core in started else [] for core in cores]


def run_plan(plan: OverlapPlan, cores: Sequence[VirtualCore], layers: int) -> list[list[list[LayerTimes]]]:
    """The layers by member and step."""
    for core in cores:
        core.member.open(plan)
    steps = [run_step(plan, index, cores, layers) for index in range(plan.steps)]
    for core in cores:
        core.member.close(plan)
    return [[step[at] for step in steps] for at in range(len(cores))]
