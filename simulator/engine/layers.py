"""Which layers a modelled engine holds, and how many slots that leaves (`Remap`, one phase at a time).

Memory is one arena of weights and KV. A dropped layer's weights become KV of the layers kept: at once beside the
dropped layers' KV, which others may still fetch, and all of it once that is released.
"""

from dataclasses import dataclass

from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.engine import EngineReady, Remap, RemapDone
from dunlin.messages.types import MoveKind, RemapPhase
from simulator.engine.errors import ContractBroken
from simulator.engine.timing import Timing

_ORDER = (RemapPhase.PREPARE, RemapPhase.DROP_WEIGHTS, RemapPhase.RELEASE_KV)


@dataclass(frozen=True, slots=True)
class RemapDue:
    """A phase's time is up."""

    message: Remap


class LayerSet:
    """Owns the layers held and the phase of a change. `weights_bytes` is one layer's."""

    def __init__(self, instance: Address, ready: EngineReady, timing: Timing, weights_bytes: int) -> None:
        self.slots = ready.slots
        self._instance = instance
        self._ready = ready
        self._timing = timing
        self._weights_bytes = weights_bytes
        self._all = len(ready.layers)
        self._held = ready.layers
        self._changing: Remap | None = None

    def remap(self, now_s: float, message: Remap) -> list[Effect]:
        """Begin a phase; the weights of layers that come are loaded while they are prepared."""
        self._check(message)
        coming = len([layer for layer in message.layers if layer not in self._held])
        loads = message.phase is RemapPhase.PREPARE and coming
        took_s = self._timing.move_s(MoveKind.HOST_TO_SLAB, coming * self._weights_bytes) if loads else 0.0
        return [After(took_s, RemapDue(message))]

    def over(self, now_s: float, due: RemapDue) -> list[Effect]:
        """A phase ended."""
        message = due.message
        self._changing = message
        if message.phase is RemapPhase.DROP_WEIGHTS:
            self.slots = self._room(message, released=False)
        elif message.phase is RemapPhase.RELEASE_KV:
            self.slots = self._room(message, released=True)
            self._held = message.layers
        if message.phase in (RemapPhase.RELEASE_KV, RemapPhase.ABORT):
            self._changing = None
        done = RemapDone(message.layout, message.phase, self._held, self.slots, self._ready.quantum)
        return [Send(self._instance, done)]

    def _check(self, message: Remap) -> None:
        before = self._changing
        if message.phase is RemapPhase.ABORT:
            allowed = before is not None and before.phase is RemapPhase.PREPARE
        elif message.phase is RemapPhase.PREPARE:
            allowed = before is None
        else:
            place = _ORDER.index(message.phase)
            allowed = before is not None and before.layout == message.layout and before.phase is _ORDER[place - 1]
        if not allowed or not message.layers:
            raise ContractBroken(f"layout {message.layout}: {message.phase.name} after {before}")

    def _room(self, message: Remap, released: bool) -> int:
        """Slots when the layers of `message` are held, in whole quanta."""
        kv_bytes = self._ready.kv_bytes_per_token / self._all
        held, kept = len(message.layers), len(self._held)
        arena_bytes = self._ready.slots * kv_bytes * self._all + self._all * self._weights_bytes
        free_bytes = arena_bytes - held * self._weights_bytes
        if not released:
            free_bytes -= max(0, kept - held) * self.slots * kv_bytes
        slots = int(free_bytes / (held * kv_bytes))
        return slots - slots % self._ready.quantum
