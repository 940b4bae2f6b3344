"""Responses to interrupts and times of moves, of a live engine and of the modelled one that its profile makes.

Both get the same commands. An interrupt comes at a random part of the time that its step takes, by the profile and by
how fast steps of that prompt were just now; it suspends the one row, a prompt that is computed in one step. A move is a
copy of KV to the host tier or back; before each some reference copies of another length say how fast copies are just
now. Lengths are none of those that a profile is fitted to. All of it is the engine's own CPU time, so that neighbours
on its core do not count.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from statistics import median
from typing import Any

from cli.profiling.engine_probe import EngineProbe
from cli.profiling.engine_process import ProbeHostTier
from cli.profiling.interrupt_fit import interrupt_trials
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.models import BatchCounts
from dunlin.effects import Address, After, sends
from dunlin.messages.engine import Close, Interrupt, Interrupted, MapHost, Open, Step, Transfer, TransferDone
from dunlin.messages.types import (
    HostRegion,
    Region,
    SamplingParams,
    TransferKind,
    Verdict,
    i8,
    i32,
    i64,
)
from dunlin.workload.loadgen.stats import percentiles
from simulator.engine.host_memory import SimulatedHostMemory
from simulator.engine.model import SimulatedEngine, SimulatedEngineSettings, engine_ready_of
from simulator.engine.timing import UnsteadyTiming
from simulator.links.ports import make_fabric
from simulator.study.live_comparison import QUANTILES, Difference

PROMPTS = (300, 700, 1500)
COPIES = (48, 200, 330, 700, 1500)
"""An odd number: the median of an even number would lie between two lengths, where a single copy moves it by half."""
REFERENCE_COPY, REFERENCES = 400, 3
INTERRUPTS, MOVES = 120, 40
"""Of each length."""
ME = Address("instance", "fidelity", 1)


@dataclass(frozen=True, slots=True)
class TimedInterrupt:
    """An interrupt of a prompt's step, `after_s` after it was sent; steps were `slowness` times as slow as profiled."""

    tokens: int
    after_s: float
    slowness: float


@dataclass(frozen=True, slots=True)
class TimedMove:
    """A copy of so many tokens, while copies were `slowness` times as slow as profiled."""

    kind: TransferKind
    tokens: int
    slowness: float


@dataclass(frozen=True, slots=True)
class EngineTrials:
    """What was asked of the live engine, for the modelled one."""

    interrupts: list[TimedInterrupt]
    moves: list[TimedMove]


@dataclass(slots=True)
class EngineTimes:
    """Seconds of responses and of copies, in the order of the trials."""

    interrupt_s: list[float] = field(default_factory=list)
    move_s: list[float] = field(default_factory=list)


def measured(
    probe: EngineProbe, timing: EngineTiming, interrupts: int = INTERRUPTS, moves: int = MOVES
) -> tuple[EngineTimes, EngineTrials]:
    """What the live engine took, and for what: of the interrupts those that came in time. Raises ProbeError."""
    found = interrupt_trials(probe, PROMPTS, interrupts, seed=1)
    trials = [
        TimedInterrupt(each.tokens, each.after_s, each.step_s / timing.step_s(_prompt(each.tokens))) for each in found
    ]
    timed = _measured_moves(probe, timing, moves)
    times = EngineTimes([each.took_s for each in found], [took_s for _, took_s in timed])
    return times, EngineTrials(trials, [move for move, _ in timed])


def _measured_moves(probe: EngineProbe, timing: EngineTiming, moves: int) -> list[tuple[TimedMove, float]]:
    """Each copy, and the seconds that it took."""
    limit = min(probe.ready.slots // 2, probe.ready.max_positions - 2)
    copies, reference = [each for each in COPIES if each <= limit], min(REFERENCE_COPY, limit)
    reference_bytes, timed = reference * probe.ready.kv_bytes_per_token, list[tuple[TimedMove, float]]()
    with closing(ProbeHostTier(max(*copies, reference) * probe.ready.kv_bytes_per_token)) as tier:
        probe.map_host_tier(tier)
        probe.move_times(max(*copies, reference), 1)  # the engine's first touch of a page of the tier costs more, once
        for tokens in copies:
            for _ in range(moves):
                now_s = probe.move_times(reference, REFERENCES)
                for kind, (took_s,) in probe.move_times(tokens, 1).items():
                    slowness = median(now_s[kind]) / timing.move_s(kind, reference_bytes)
                    timed.append((TimedMove(kind, tokens, slowness), took_s))
    return timed


def modelled(timing: EngineTiming, trials: EngineTrials, slots: int, max_positions: int) -> EngineTimes:
    """What the modelled engine takes for the same."""
    times = EngineTimes()
    for trial in trials.interrupts:
        engine = ModelledEngine(timing, trial.slowness, slots, max_positions)
        if (took_s := engine.interrupt_time(trial.tokens, trial.after_s)) is not None:
            times.interrupt_s.append(took_s)
    engine = ModelledEngine(timing, 1.0, slots, max_positions)
    times.move_s = [engine.move_time(move.kind, move.tokens) * move.slowness for move in trials.moves]
    return times


class ModelledEngine:
    """The modelled engine alone, in a time of its own."""

    def __init__(self, timing: EngineTiming, slowness: float, slots: int, max_positions: int) -> None:
        ready = engine_ready_of(timing, slots=slots, max_positions=max_positions)
        steady = UnsteadyTiming(_steady(timing), slowness)
        settings = SimulatedEngineSettings(
            ready=ready, timing=steady, audit=False, links=timing.links, interrupts=timing.interrupts
        )
        self._token_bytes = ready.kv_bytes_per_token
        self._layers = len(ready.layers)
        self._now_s = 0.0
        self._count = 0
        self._timers: list[tuple[float, int, Callable[[float], None]]] = []
        self._timer_count = 0
        self._said: list[tuple[float, Any]] = []
        self._checksum = 0
        ports = make_fabric(self._later).ports(ME.name, "", timing.links, self._tell)
        self._engine = SimulatedEngine(ME, settings, SimulatedHostMemory(), ports)
        self._tell(MapHost("/tier", slots * self._token_bytes, 1))

    def interrupt_time(self, tokens: int, after_s: float) -> float | None:
        """As `EngineProbe.interrupt_time`."""
        columns = (i64([1]), i64([0]), i64([tokens]), i8([1]), i32([0]), i64([0]), i64([tokens]))
        self._tell(Open(1, i32([5] * tokens), tokens, 8, SamplingParams(temperature=0.0)), Step(1, *columns))
        self._pass_until(self._now_s + after_s)
        began_s = self._now_s
        self._tell(Interrupt(Verdict.SUSPEND, ticket=1, up_to_step=1))
        at_s, answer = self._answer(lambda event: isinstance(event, Interrupted))
        self._tell(Close(1))
        return at_s - began_s if answer.sequence else None

    def move_time(self, kind: TransferKind, tokens: int) -> float:
        """Seconds of one copy of so many tokens."""
        self._count += 1
        began_s, size = self._now_s, tokens * self._token_bytes
        host = HostRegion(1, 1, 0, size, self._checksum)
        region = Region(0, self._layers, 0, tokens)
        self._tell(Transfer(self._count, kind, 0, region, i64([0]), i64([tokens]), host))
        at_s, done = self._answer(lambda event: isinstance(event, TransferDone) and event.ticket == self._count)
        self._checksum = done.checksum
        return at_s - began_s

    def _tell(self, *messages: Any) -> None:
        for message in messages:
            for effect in self._engine.receive(self._now_s, ME, message):
                if isinstance(effect, After):
                    self._later(effect.delay_s, partial(self._due, effect.message))
                self._said += [(self._now_s, send.message) for send in sends([effect])]

    def _due(self, message: Any, now_s: float) -> None:
        self._tell(message)

    def _later(self, delay_s: float, act: Callable[[float], None]) -> None:
        self._timer_count += 1
        heappush(self._timers, (self._now_s + delay_s, self._timer_count, act))

    def _pass_until(self, until_s: float) -> None:
        while self._timers and self._timers[0][0] <= until_s:
            self._pass()
        self._now_s = until_s

    def _pass(self) -> None:
        self._now_s, _, act = heappop(self._timers)
        act(self._now_s)

    def _answer(self, fits: Callable[[Any], bool]) -> tuple[float, Any]:
        while not (found := [each for each in self._said if fits(each[1])]):
            self._pass()
        return found[-1]


def engine_differences(live: EngineTimes, simulated: EngineTimes) -> list[Difference]:
    """Of interrupt responses and of moves, each at p50 and p99."""
    return [
        Difference(name, quantile, getattr(percentiles(of_live), quantile), getattr(percentiles(of_model), quantile))
        for name, of_live, of_model in (
            ("interrupt", live.interrupt_s, simulated.interrupt_s),
            ("move", live.move_s, simulated.move_s),
        )
        for quantile in QUANTILES
    ]


def _prompt(tokens: int) -> BatchCounts:
    batch = BatchCounts()
    batch.add_prefill(tokens, 0)
    return batch


def _steady(timing: EngineTiming) -> EngineTiming:
    """The timing without the machine's variation: each interrupt brings its own."""
    return replace(timing, unsteadiness=())
