"""The two engines under comparison: the real runner, stepped piece by piece, and the model, which follows it in time.

The model takes its own time for a step, so it is told when a transfer lands and up to where a step has come; what it
answers is its own. It begins a step when that comes; the runner when it works, after the chunks of transfers that wait.
So the model lands transfers before it ends a step, and before it begins one ahead of another that waits for them: the
order of steps' answers is that of the runner, and the answers of transfers are compared by ticket.
"""

from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from dunlin.cost.links import EngineLinks
from dunlin.effects import Address, After, Send
from dunlin.engine.decoder.loading.loader import LoadedModel
from dunlin.engine.decoder.loading.weight_sources import CheckpointSource
from dunlin.engine.decoder.memory.layer_layout import GRANULE_BYTES
from dunlin.engine.execution.engine_layers import LayerMemory
from dunlin.engine.execution.engine_transfers import OwnMemory
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.transfer.arena_slots import slab_of
from dunlin.messages.engine import MapHost, TransferDone
from dunlin.messages.types import i32
from simulator.engine.errors import ContractBroken
from simulator.engine.host_memory import SimulatedHostMemory
from simulator.engine.kv_audit import KvCacheAudit
from simulator.engine.model import SimulatedEngine, SimulatedEngineSettings, engine_settings
from simulator.links.ports import EnginePorts, make_fabric
from tests.engine.build import SteppingClock

ME = Address("instance", "i", 1)
PARKED_ROWS = 3
MAX_QUEUED = 16
STEP_S = 0.08


class RunnerSide:
    """The real runner over a tiny checkpoint. `inside`: it has paused within a step."""

    def __init__(self, loaded: LoadedModel, directory: Path, tier: Path, tier_bytes: int) -> None:
        limits = RunnerLimits(steps=MAX_QUEUED, parked_rows=PARKED_ROWS)
        memory = OwnMemory(slab_of(loaded.arena, loaded.decoder.kv))
        layers = LayerMemory(loaded.arena, loaded.weights, CheckpointSource(directory))
        clock = SteppingClock()
        self.runner = EngineRunner(loaded.decoder, loaded.slots, clock, limits, memory=memory, layers=layers)
        self.runner.receive(MapHost(str(tier), tier_bytes, 1))
        self.events: list[Any] = []

    @property
    def inside(self) -> bool:
        return self.runner.steps.is_running

    def tell(self, message: Any) -> None:
        self.events += self.runner.receive(message)

    def advance(self, pieces: int) -> None:
        """Compute until a step pauses after so many pieces, or until nothing can be computed."""
        left = pieces

        def safepoint() -> bool:
            nonlocal left
            left -= 1
            return left <= 0

        while self.runner.busy:
            before = len(self.events)
            self.events += self.runner.work(safepoint)
            if self.inside and left <= 0:
                return
            is_changing = self.runner.layers is not None and self.runner.layers.busy
            if len(self.events) == before and not self.inside and not is_changing:
                return  # all that is queued waits

    def take_interrupts(self) -> None:
        """Let interrupts take effect at the safepoint where the step has paused."""
        if self.inside:
            self.events += self.runner.work(lambda: True)


class TwinSide:
    """The modelled engine in a world of its own, with an audit. `broken` says what it takes for a breach, if any."""

    def __init__(self, loaded: LoadedModel, tier_bytes: int) -> None:
        settings = modelled_settings(loaded)
        audit = KvCacheAudit(loaded.slots, layers=len(loaded.decoder.kv))
        self.events: list[Any] = []
        self.landed: dict[int, TransferDone] = {}
        self.broken: str = ""
        self._now_s = 0.0
        self._timers: list[tuple[float, int, Any]] = []
        self._landing: list[Any] = []
        self._number = 0
        self.engine = SimulatedEngine(ME, settings, SimulatedHostMemory(), self._ports(settings.links), audit)
        self.tell(MapHost("/tier", tier_bytes, 1))

    def _ports(self, links: EngineLinks) -> EnginePorts:
        """Links on which a copy is through at once, and answered when `land` says so."""
        fabric = make_fabric(lambda delay_s, act: act(self._now_s + delay_s))
        return fabric.ports(ME.name, "", links, lambda due: self._landing.append(due))

    def tell(self, message: Any) -> None:
        """Deliver a command or a timer, unless the contract was broken before."""
        if self.broken:
            return
        try:
            effects = self.engine.receive(self._now_s, ME, message)
        except ContractBroken as error:
            self.broken = str(error)
            return
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, TransferDone):
                self.landed[effect.message.ticket] = effect.message
            elif isinstance(effect, Send):
                self.events.append(effect.message)
            elif isinstance(effect, After):
                self._number += 1
                heappush(self._timers, (self._now_s + effect.delay_s, self._number, effect.message))

    def land(self) -> None:
        """Let all transfers under way land."""
        while self._landing:
            self.tell(self._landing.pop(0))

    @property
    def waits(self) -> bool:
        """Whether no step runs, and one waits for transfers."""
        return self.engine.runner.running is None and len(self.engine.runner.queue) > 0

    def answer_to(self, expected: TransferDone) -> Any:
        """The answer of the transfer that the runner has answered. None: there is none."""
        self.land()
        return self.landed.get(expected.ticket)

    def next_event(self, at: int) -> Any:
        """Event number `at` but for answers of transfers; time passes until it comes. None: it never does."""
        while len(self.events) <= at and not self.broken:
            self.land()
            if not self._timers:
                return None
            self._pass()
        return None if self.broken else self.events[at]

    def advance_into(self) -> bool:
        """Let time pass until a part of the running step is computed; False: no step runs."""
        running = self.engine.runner.running
        if running is None:
            return False
        until_s = self._now_s + 0.25 * (running.since_s + running.end_in_s - self._now_s)
        while self._timers and self._timers[0][0] <= until_s:
            self._pass()
        self._now_s = until_s
        return True

    def _pass(self) -> None:
        self._now_s, _, message = heappop(self._timers)
        self.tell(message)


def modelled_settings(loaded: LoadedModel) -> SimulatedEngineSettings:
    """The settings of a model of the real engine, whose steps and transfers take a fixed time."""
    return engine_settings(
        layers=i32(range(len(loaded.decoder.kv))), slots=loaded.slots, step_s=STEP_S,
        kv_bytes_per_token=_kv_bytes(loaded), parked_rows=PARKED_ROWS, move_s=1e-6, move_busy_s=0.0,
        vocabulary=loaded.decoder.config.vocab, max_positions=loaded.decoder.config.max_positions,
        quantum=loaded.quantum, weights_bytes=loaded.arena.plan.weights[0] * GRANULE_BYTES,
    )  # fmt: skip


def _kv_bytes(loaded: LoadedModel) -> int:
    return sum(layer[:1].numel() * layer.element_size() for layer in loaded.decoder.kv)
