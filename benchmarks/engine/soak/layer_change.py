"""The phases of a change of layers that a soak orders, one after the other. Pure, but for what it draws."""

import random
from collections.abc import Callable
from typing import Any

from benchmarks.engine.soak.engine_child import SoakError
from dunlin.messages.engine import LayerSource, Remap, RemapDone, Unsupported
from dunlin.messages.types import RemapPhase, i32

PREPARE, DROP_WEIGHTS, RELEASE_KV = RemapPhase.PREPARE, RemapPhase.DROP_WEIGHTS, RemapPhase.RELEASE_KV
LOAD, COMMIT, ABORT = RemapPhase.LOAD, RemapPhase.COMMIT, RemapPhase.ABORT
ABORTED = 0.15
"""Share of the changes that are aborted after, or beside, their first phase."""
RELEASED = 0.5
"""Share of the drops whose KV is released; the others are aborted there, so that it is retained."""
Sources = Callable[[random.Random, int], LayerSource]
"""Where a layer is loaded from."""


class LayerChangeOrders:
    """Owns the change under way: `layout` is in force, `held` of `total` layers are. `released`: KV was given up."""

    def __init__(self, engine: str, total: int, layout: int, slots: int) -> None:
        self.total = self.held = total
        self.layout = layout
        self.slots = self.whole_slots = slots
        self.choose_source: Sources | None = None
        self._engine = engine
        self._layouts = layout
        self._next: RemapPhase | None = None
        self._layers: tuple[int, ...] = ()
        self._is_aborted = False
        self._retains = False

    @property
    def is_settled(self) -> bool:
        """Whether all layers are held, and no change is under way."""
        return self.held == self.total and self._next is None

    @property
    def may_compute(self) -> bool:
        """Whether steps and transfers may be composed."""
        return self.held == self.total and self._next is not DROP_WEIGHTS

    @property
    def wants_rest(self) -> bool:
        """Whether no step, transfer or parked row may be left when the next phase is ordered."""
        return self._next is DROP_WEIGHTS or self._next is RELEASE_KV

    @property
    def wants_empty(self) -> bool:
        """Whether no sequence may be open when the next phase is ordered."""
        return self._next is RELEASE_KV and not self._retains

    def next_phase(self, draw: random.Random, *, is_answered: bool) -> list[Remap]:
        """The next command; several where an ABORT follows at once. Nothing while one is unanswered."""
        if not is_answered:
            return []
        if self._next is None:
            return self._begin(draw)
        if self._next is RELEASE_KV and self._retains:
            return [self._command(ABORT)]
        if self._next in (DROP_WEIGHTS, LOAD) and draw.random() < ABORTED:
            return [self._command(ABORT)]
        sources: tuple[LayerSource, ...] = ()
        if self._next is LOAD and self.choose_source is not None:
            sources = tuple(self.choose_source(draw, layer) for layer in self._layers)
        return [self._command(self._next, sources)]

    def _begin(self, draw: random.Random) -> list[Remap]:
        self._layouts += 1
        self._next, self._retains = PREPARE, draw.random() >= RELEASED
        count = draw.randint(1, self.total - 1)
        some = tuple(sorted(draw.sample(range(self.total), count)))
        self._layers = some if self.held == self.total else tuple(range(self.total))
        prepare = self._command(PREPARE)
        return [prepare, self._command(ABORT)] if draw.random() < ABORTED else [prepare]

    def _command(self, phase: RemapPhase, sources: tuple[LayerSource, ...] = ()) -> Remap:
        self._is_aborted |= phase is ABORT
        return Remap(self._layouts, phase, i32(self._layers), sources=sources)

    def on_answer(self, event: Any) -> None:
        """A phase ended. :raises SoakError: it was refused, and nothing had been aborted."""
        if isinstance(event, Unsupported):
            if not self._is_aborted:
                raise SoakError(f"{self._engine} refuses {event}")
            return
        assert isinstance(event, RemapDone)
        self.held, self.slots = len(event.layers), event.slots
        if event.phase in (DROP_WEIGHTS, COMMIT):
            self.layout = event.layout
        if event.phase is PREPARE:
            self._next = DROP_WEIGHTS if len(self._layers) < self.held else LOAD
        else:
            self._next = {DROP_WEIGHTS: RELEASE_KV, LOAD: COMMIT}.get(event.phase)
        if event.phase is ABORT:
            self._next, self._is_aborted = None, False
