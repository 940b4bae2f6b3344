"""The layers that a modelled engine holds and the slots that they leave (`Remap`, one phase at a time).

Weights and KV share one arena, which outlives the engine's process. The memory of a dropped layer's weights becomes KV
of the layers kept; the dropped layers' own KV is retained, because other instances may fetch it, until it is released.
The phases and their order are those of the engine's own remapper: PREPARE, DROP_WEIGHTS and RELEASE_KV for fewer
layers, PREPARE, LOAD and COMMIT for more.
"""

from collections.abc import Collection
from dataclasses import dataclass

from dunlin.messages.engine import EngineReady, Remap, Step
from dunlin.messages.types import I32, RemapPhase, i32

_NEXT = {
    (True, RemapPhase.PREPARE): RemapPhase.DROP_WEIGHTS,
    (True, RemapPhase.DROP_WEIGHTS): RemapPhase.RELEASE_KV,
    (False, RemapPhase.PREPARE): RemapPhase.LOAD,
    (False, RemapPhase.LOAD): RemapPhase.COMMIT,
}
"""The phase after one, for fewer layers (True) or more; any other ends the change."""
_SLACK = 1e-6
"""Slots by which rounding may err."""


@dataclass(frozen=True, slots=True)
class RemapDue:
    """Timer: the phase of `message` ends."""

    message: Remap


class LayerSet:
    """Owns the layers held, the KV retained of others, and the phase of a change; it outlives engines.

    `slots`: those that every layer held has. `retained`: slots of each layer that is not held and whose KV is there.
    `weights_bytes`: bytes of one layer's weights. `layout`: the version of the layers held.
    """

    def __init__(self, ready: EngineReady, weights_bytes: int) -> None:
        self.weights_bytes = weights_bytes
        self.held = tuple(ready.layers)
        self.slots = ready.slots
        self.layout = ready.layout
        self.retained: dict[int, int] = {}
        self.all = len(ready.layers)
        self._ready = ready
        self._change: Remap | None = None
        self._next = RemapPhase.PREPARE
        self._answering: RemapPhase | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all layers of the model are held."""
        return len(self.held) == self.all

    @property
    def held_column(self) -> I32:
        """The layers held, ascending."""
        return i32(self.held)

    def range_of(self, step: Step) -> range:
        """The layers that a step computes."""
        return range(step.layer_start, step.layer_stop or self.held[-1] + 1)

    def refusal(self, step: Step) -> str:
        """Why a step cannot be computed with the layers held; empty if it can."""
        if step.layout != self.layout:
            return f"composed for layout {step.layout}, and layout {self.layout} is in force"
        layers = self.range_of(step)
        if not layers or not set(layers) <= set(self.held):
            return f"layers {layers.start} to {layers.stop} are not held, but {list(self.held)}"
        if (layers.start > 0 and not step.hidden_in) or (layers.stop < self.all and not step.hidden_out):
            return f"layers {layers.start} to {layers.stop} with hidden rooms {step.hidden_in} and {step.hidden_out}"
        return "it samples before the last layer" if layers.stop < self.all and any(step.sample) else ""

    def begin(self, message: Remap) -> str:
        """Take a phase; returns why it is refused, empty if it is not. An ABORT ends a phase that has not answered."""
        if wrong := self._wrong(message):
            return f"{message.phase.name} of layout {message.layout}: {wrong}"
        if message.phase is RemapPhase.PREPARE:
            self._change = message
        self._answering = message.phase
        return ""

    def is_due(self, message: Remap) -> bool:
        """Whether the phase of `message` is under way: an ABORT may have ended it."""
        change = self._change
        return self._answering is message.phase and change is not None and change.layout == message.layout

    def is_fewer(self, message: Remap) -> bool:
        """Whether the change to `message.layers` drops layers, or brings none."""
        return set(message.layers) <= set(self.held)

    def coming(self, message: Remap) -> list[int]:
        """The layers that a change to `message.layers` has to load."""
        return [layer for layer in message.layers if layer not in self.held]

    def end(self, message: Remap) -> None:
        """End the phase of `message`: the layers held, what is retained and `slots` are those after it."""
        change, phase = self._change, message.phase
        if change is None:
            return
        is_fewer = self.is_fewer(change)
        if phase is RemapPhase.PREPARE and not is_fewer:
            self._make_room(change)
        elif phase is RemapPhase.DROP_WEIGHTS:
            self._drop(change)
        elif phase is RemapPhase.RELEASE_KV:
            self.retained = {}
        elif phase is RemapPhase.COMMIT:
            self._hold(change)
        if phase in (RemapPhase.RELEASE_KV, RemapPhase.DROP_WEIGHTS, RemapPhase.ABORT):
            self.slots = self._room(len(self.held), self.retained.values())
        self._answering = None
        self._next = _NEXT.get((is_fewer, phase), RemapPhase.PREPARE)
        if self._next is RemapPhase.PREPARE:
            self._change = None

    def engine_replaced(self) -> None:
        """The next engine maps what its predecessor had: a drop goes on, a load that was not committed is undone."""
        self._answering = None
        if self._change is not None and self._next is not RemapPhase.RELEASE_KV:
            self._change, self._next = None, RemapPhase.PREPARE
            self.slots = self._room(len(self.held), self.retained.values())

    def coming_slots(self, layers: Collection[int]) -> int:
        """Slots that every layer has from PREPARE of more `layers` on: beside the KV that is retained of others."""
        return self._room(len(layers), [slots for layer, slots in self.retained.items() if layer not in layers])

    def _wrong(self, message: Remap) -> str:
        """Why a phase cannot begin now; empty if it can."""
        change, is_abort = self._change, message.phase is RemapPhase.ABORT
        if self._answering is not None and not is_abort:
            return f"{self._answering.name} is under way"
        if message.phase is RemapPhase.PREPARE:
            return self._wrong_start(message)
        if change is None:
            return "no change of layers is under way"
        if message.layout != change.layout or (not is_abort and list(message.layers) != list(change.layers)):
            return f"under way is layout {change.layout} with layers {list(change.layers)}"
        return "" if is_abort or message.phase is self._next else f"the next phase is {self._next.name}"

    def _wrong_start(self, message: Remap) -> str:
        if self._change is not None:
            return f"under way is layout {self._change.layout}"
        if message.layout <= self.layout:
            return f"layout {self.layout} is in force"
        wanted, held = set(message.layers), set(self.held)
        if not wanted or list(message.layers) != sorted(wanted & set(range(self.all))):
            return f"{list(message.layers)} are not layers of {self.all}, ascending"
        if wanted < held or wanted > held or (wanted == held and self.retained):
            return ""
        return f"{list(message.layers)} are neither fewer nor more than the layers held, {list(self.held)}"

    def _drop(self, change: Remap) -> None:
        kept = set(change.layers)
        for layer in self.held:
            if layer not in kept:
                self.retained[layer] = self.slots
        self.held, self.layout = tuple(change.layers), change.layout

    def _make_room(self, change: Remap) -> None:
        self.slots = self.coming_slots(change.layers)
        for layer in change.layers:
            if layer in self.retained:
                self.retained[layer] = min(self.retained[layer], self.slots)

    def _hold(self, change: Remap) -> None:
        self.held, self.layout = tuple(change.layers), change.layout
        self.retained = {layer: slots for layer, slots in self.retained.items() if layer not in self.held}

    def _room(self, layers: int, retained: Collection[int]) -> int:
        """Slots of `layers` layers beside so many slots that are retained of others."""
        return self._fit(self._free_bytes(layers) - sum(retained) * self._kv_bytes, layers)

    @property
    def _kv_bytes(self) -> float:
        return self._ready.kv_bytes_per_token / self.all

    def _free_bytes(self, layers: int) -> float:
        """Bytes beside the weights of `layers` layers."""
        arena = self._ready.slots * self._ready.kv_bytes_per_token + self.all * self.weights_bytes
        return arena - layers * self.weights_bytes

    def _fit(self, free_bytes: float, layers: int) -> int:
        slots = int(free_bytes / (layers * self._kv_bytes) + _SLACK)
        return slots - slots % self._ready.quantum
