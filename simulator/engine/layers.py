"""The layers that a modelled engine holds and the slots that they leave (`Remap`, one phase at a time).

Weights and KV share one arena. The memory of a dropped layer's weights becomes KV of the layers kept; the memory of the
dropped layers' KV follows when it is released, because other instances may fetch it until then.
"""

from dataclasses import dataclass

from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.engine import EngineReady, Remap, RemapDone
from dunlin.messages.types import RemapPhase, TransferKind
from simulator.engine.errors import ContractBroken
from simulator.engine.timing import Timing

_ORDER = (RemapPhase.PREPARE, RemapPhase.DROP_WEIGHTS, RemapPhase.RELEASE_KV)


@dataclass(frozen=True, slots=True)
class RemapDue:
    """Timer: the phase of `message` ends."""

    message: Remap


class LayerSet:
    """Owns the layers held and the phase of a change.

    `weights_bytes`: bytes of one layer's weights. `slots`: the slots that the layers held leave.
    """

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
        """Begin a phase; PREPARE takes the time of loading the weights of the layers to come.

        Raises:
            ContractBroken: the phase is out of order, or no layer would be held.
        """
        self._check(message)
        coming = len([layer for layer in message.layers if layer not in self._held])
        loads = message.phase is RemapPhase.PREPARE and coming
        took_s = self._timing.move_s(TransferKind.HOST_TO_SLAB, coming * self._weights_bytes) if loads else 0.0
        return [After(took_s, RemapDue(message))]

    def over(self, now_s: float, due: RemapDue) -> list[Effect]:
        """End a phase: answer with the layers held and the slots that they leave."""
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
        """Slots, in whole quanta, when the layers of `message` are held; `released`: the KV of the others is too."""
        kv_bytes = self._ready.kv_bytes_per_token / self._all
        held, kept = len(message.layers), len(self._held)
        arena_bytes = self._ready.slots * kv_bytes * self._all + self._all * self._weights_bytes
        free_bytes = arena_bytes - held * self._weights_bytes
        if not released:
            free_bytes -= max(0, kept - held) * self.slots * kv_bytes
        slots = int(free_bytes / (held * kv_bytes))
        return slots - slots % self._ready.quantum
