"""What each layer of a step with peers takes, told apart: computing, attention, and waiting for what peers send."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from dunlin.engine.decoder.iteration import Iteration, Phase
from dunlin.engine.execution import step_iterations
from dunlin.engine.execution.peers.exchange import StepExchange


@dataclass(slots=True)
class LayerTimes:
    """Seconds in one layer: linear layers; attention over own keys and for others, copies included; waits. `exchange_s`
    is from the first message queued to the last one taken in.
    """

    layer: int
    linear_s: float = 0.0
    attend_s: float = 0.0
    wait_s: float = 0.0
    exchange_s: float = 0.0

    @property
    def whole_s(self) -> float:
        """All of it."""
        return self.linear_s + self.attend_s + self.wait_s


class RoundClock:
    """Owns the layers of the running step. `layers`: those of the last one."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.layers: list[LayerTimes] = []
        self._clock = clock
        self._last_s = clock()
        self._sent_s = 0.0
        self._is_awaited = self._was_waiting = False

    def begin(self) -> None:
        """A step begins."""
        self.layers = []
        self._last_s, self._was_waiting = self._clock(), False

    def resumed(self) -> None:
        """The step goes on: time since a piece that found nothing to do was a wait."""
        if self._was_waiting:
            now_s = self._clock()
            self.layers[-1].wait_s += now_s - self._last_s
            self._last_s = now_s

    def spent(self, layer: int, phase: Phase, is_waiting: bool, exchange: StepExchange | None) -> None:
        """Since the last call time went by, the last of it in a layer's phase."""
        if not self.layers or self.layers[-1].layer != layer:
            self.layers.append(LayerTimes(layer))
        now_s, times = self._clock(), self.layers[-1]
        passed_s, self._last_s, self._was_waiting = now_s - self._last_s, now_s, is_waiting
        if is_waiting:
            times.wait_s += passed_s
        elif phase is Phase.ATTEND:
            times.attend_s += passed_s
        else:
            times.linear_s += passed_s
        if exchange is None or phase is not Phase.ATTEND:
            return
        if exchange.layer == layer and not times.exchange_s:
            self._sent_s, self._is_awaited = now_s - passed_s, True
        if self._is_awaited:
            times.exchange_s = now_s - self._sent_s
            self._is_awaited = bool(exchange.is_awaiting)


class TimedIteration(Iteration):
    """An iteration that tells `clock` of each piece."""

    clock: RoundClock

    def advance(self) -> None:
        """See `Iteration`."""
        layer, phase, exchange = self.layer, self.phase, self._exchange
        self.clock.resumed()
        super().advance()
        self.clock.spent(layer, phase, self.is_waiting, exchange if isinstance(exchange, StepExchange) else None)


@contextmanager
def timed_iterations(clock: RoundClock) -> Iterator[None]:
    """Have the steps of this process make such iterations."""
    module: Any = step_iterations
    TimedIteration.clock, before = clock, module.Iteration
    module.Iteration = TimedIteration
    try:
        yield
    finally:
        module.Iteration = before
