"""The `Remap` messages of a modelled engine: each phase takes its time, and takes effect between two steps."""

from collections.abc import Callable

from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.engine import EngineReady, Remap, RemapDone, Unsupported
from dunlin.messages.types import RemapPhase, TransferKind
from simulator.engine.errors import ContractBroken
from simulator.engine.kv_audit import KvAudit
from simulator.engine.layers import LayerSet, RemapDue
from simulator.engine.timing import Timing

PIECE_S = 0.005
"""Seconds of one piece of a phase, after which the real engine counts progress."""


class SimulatedRemapper:
    """Answers `Remap` by the changes of `layers`. `is_computing()`: a step runs. `has_parked()`: rows are parked.
    `lacks(peer, layer)`: why a peer is no source of a layer; empty if it is one.
    """

    def __init__(
        self,
        instance: Address,
        ready: EngineReady,
        layers: LayerSet,
        timing: Timing,
        audit: KvAudit | None,
        is_computing: Callable[[], bool],
        has_parked: Callable[[], bool],
        lacks: Callable[[Address, int], str],
    ) -> None:
        self._instance = instance
        self._ready = ready
        self._layers = layers
        self._timing = timing
        self._audit = audit
        self._is_computing = is_computing
        self._has_parked = has_parked
        self._lacks = lacks
        self._ended: Remap | None = None
        self._begun: tuple[float, Remap] | None = None
        self._passed = 0

    def progress(self, now_s: float) -> int:
        """Pieces of changes that are done by now, also of the phase that takes its time."""
        return self._passed + (int((now_s - self._begun[0]) / PIECE_S) if self._begun is not None else 0)

    def remap(self, now_s: float, message: Remap) -> list[Effect]:
        """Begin a phase, or refuse it; LOAD takes the time of loading the weights of the layers to come.

        Raises:
            ContractBroken: rows are parked inside layers that go.
        """
        if refusal := self._no_source(message) or self._layers.begin(message):
            return [Send(self._instance, Unsupported("Remap", refusal, layout=message.layout))]
        aborted = self._end_unanswered(now_s)
        self._begun = (now_s, message)
        if message.phase is RemapPhase.DROP_WEIGHTS and self._has_parked():
            raise ContractBroken(f"layout {message.layout} drops layers in which rows are parked")
        took_s = 0.0
        if message.phase is RemapPhase.LOAD:
            size = len(self._layers.coming(message)) * self._layers.weights_bytes
            took_s = self._timing.move_s(TransferKind.HOST_TO_SLAB, size)
        return [*aborted, After(took_s, RemapDue(message))]

    def _no_source(self, message: Remap) -> str:
        """Why LOAD has no source for one of its layers; empty if it has them all."""
        named = ((source.peer, source.layer) for source in message.sources if source.peer is not None)
        return next((text for peer, layer in named if (text := self._lacks(peer, layer))), "")

    def over(self, now_s: float, due: RemapDue) -> list[Effect]:
        """The time of a phase is up: it ends now, or with the running step."""
        if not self._layers.is_due(due.message):
            return []
        self._ended = due.message
        return [] if self._is_computing() else self.between_steps(now_s)

    def between_steps(self, now_s: float) -> list[Effect]:
        """End the phase whose time is up, if there is one: answer with the layers held and their slots."""
        message, self._ended = self._ended, None
        if message is None or not self._layers.is_due(message):
            return []
        layers = self._layers
        layers.end(message)
        self._count(now_s)
        if self._audit is not None:
            self._audit.remapped(frozenset(layers.held), frozenset(layers.retained), layers.slots)
        done = RemapDone(message.layout, message.phase, layers.held_column, layers.slots, self._ready.quantum)
        return [Send(self._instance, done)]

    def _end_unanswered(self, now_s: float) -> list[Effect]:
        """An ABORT came: the phase that has not answered never takes effect, and its answer says so."""
        if self._begun is None:
            return []
        message = self._begun[1]
        self._ended = None
        self._count(now_s)
        detail = f"{message.phase.name} of layout {message.layout}: aborted"
        return [Send(self._instance, Unsupported("Remap", detail, layout=message.layout))]

    def _count(self, now_s: float) -> None:
        """The phase under way is over."""
        self._passed, self._begun = self.progress(now_s) + 1, None
