"""Which layers the engine holds: carries orders to hold others out, phase by phase, and restores what is missing.

Fewer layers: PREPARE beside steps; then no step is composed, and once none is outstanding and no row is parked
DROP_WEIGHTS follows; RELEASE_KV when no sequence has slots, for their KV is that of all layers. More layers: what lies
beyond the capacity with all layers is evacuated, then PREPARE, LOAD, COMMIT. Knows no token and no other instance.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dunlin.cores.handlers import handles
from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.engine import EngineReady, Remap, RemapDone, Unsupported
from dunlin.messages.plan import RemapLayers, RemapLayersDone
from dunlin.messages.types import Figure, RejectedOption, RemapPhase, Why, i32
from services.instance.engine.layer_sources import LayerSources
from services.instance.kv.config import RemapConfig
from services.instance.kv.whole_regions import Layers, all_layers
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable

FOLLOWING = {
    RemapPhase.DROP_WEIGHTS: RemapPhase.RELEASE_KV,
    RemapPhase.LOAD: RemapPhase.COMMIT,
}
"""The phase after one; PREPARE's depends on the direction, and any other ends the change."""
TAKES_EFFECT = (RemapPhase.DROP_WEIGHTS, RemapPhase.COMMIT)
"""The phases whose answers put the new layout in force."""


@dataclass(frozen=True, slots=True)
class RestoreDue:
    """Layers have been missing for long enough, unless an order came since."""

    counter: int


@dataclass(slots=True)
class LayerChange:
    """The engine's change under way: `layers` will be held, as `layout`; `next` is the phase to order next."""

    layout: int
    layers: Layers
    next: RemapPhase


class LayerChanges:
    """Owns the order that is followed and the engine's change. `stale_total` counts fenced orders and late answers.

    `on_change` is told what the engine is after each change of layers or slots. `epoch`, `arrivals` and `peers` ask for
    the manager's term, the migrations that arrive, and the engines whose memory this one can read.
    """

    def __init__(
        self,
        engine: Address,
        config: RemapConfig,
        sequences: SequenceTable,
        lifecycle: SequenceLifecycle,
        steps: StepLedger,
        epoch: Callable[[], int],
        arrivals: Callable[[], int],
        peers: Callable[[], Sequence[Address]],
        on_change: Callable[[EngineReady], None],
    ) -> None:
        self.stale_total = 0
        self._engine = engine
        self._config = config
        self._sequences = sequences
        self._lifecycle = lifecycle
        self._steps = steps
        self._epoch = epoch
        self._arrivals = arrivals
        self._sources = LayerSources(config.load_from, peers)
        self._on_change = on_change
        self._ready: EngineReady | None = None
        self._held: Layers = ()
        self.is_whole = False
        self._wanted: Layers | None = None
        self._order: tuple[Address, RemapLayers] | None = None
        self._newest = (0, 0)
        self._change: LayerChange | None = None
        self._unanswered: RemapPhase | None = None
        self._layout = 0
        self._whole_slots = 0
        self._counter = 0

    def __repr__(self) -> str:
        return f"[held: {self._held} | wanted: {self._wanted} | change: {self._change}]"

    @property
    def may_compute(self) -> bool:
        """Whether steps may be composed: all layers are held, and none is about to go."""
        is_going = self._change is not None and self._change.next is RemapPhase.DROP_WEIGHTS
        return self.is_whole and not is_going

    @property
    def is_changing(self) -> bool:
        """Whether an engine lacks layers, or its layers are about to change."""
        is_wanted = self._wanted not in (None, self._held)
        return self._ready is not None and (not self.is_whole or self._change is not None or is_wanted)

    @property
    def outstanding(self) -> int:
        """Phases that the engine has not answered."""
        return int(self._unanswered is not None)

    # --- orders ---

    @handles
    def on_order(self, now_s: float, sender: Address, order: RemapLayers) -> list[Effect]:
        """Follow the order, or refuse it with the reason; the answer comes when the layers are held."""
        name, newest = (order.epoch, order.ticket), max(self._newest, (self._epoch(), 0))
        if name < newest:
            self.stale_total += 1
            return [self._answer(sender, order, f"stale: this instance has heard of epoch {newest[0]}")]
        if (refusal := self._refusal(order)) is not None:
            return [self._answer(sender, order, refusal)]
        overtaken = [] if self._order is None else [self._answer(*self._order, "a newer order came")]
        self._newest, self._order = name, (sender, order)
        self._wanted = tuple(order.layers) or None
        if self._wanted is None and self._ready is not None:
            self._wanted = all_layers(self._ready)
        self._counter += 1
        return overtaken

    def _refusal(self, order: RemapLayers) -> str | None:
        if self._ready is None:
            return "no engine runs"
        layers, known = list(order.layers), all_layers(self._ready)
        is_set = layers == sorted(set(layers) & set(known))
        return None if is_set else f"{layers} are not layers of {len(known)}, ascending"

    @handles
    def on_restore_due(self, now_s: float, sender: Address, due: RestoreDue) -> list[Effect]:
        """No group computes with the layers that are held: restore the others."""
        if due.counter == self._counter and self._wanted is None and self._ready is not None and not self.is_whole:
            self._wanted = all_layers(self._ready)
        return []

    # --- the engine ---

    def on_engine_ready(self, ready: EngineReady) -> list[Effect]:
        """The next engine maps what the last one had: a drop may wait for RELEASE_KV, a load was undone."""
        self._note_ready(ready)
        self._unanswered = self._change = None
        self._layout = max(self._layout, ready.layout)
        self._note_capacity(ready)
        if self.is_whole:
            return []
        self._change = LayerChange(ready.layout, self._held, RemapPhase.RELEASE_KV)
        return self._restore_later()

    def on_engine_lost(self) -> None:
        """No phase will be answered."""
        self._note_ready(None)
        self._change = self._unanswered = None

    @handles
    def on_remap_done(self, now_s: float, sender: Address, done: RemapDone) -> list[Effect]:
        """A phase ended: the layers and slots that the engine has from now on."""
        change, ready = self._change, self._ready
        is_expected = change is not None and (done.layout, done.phase) == (change.layout, self._unanswered)
        if change is None or ready is None or not is_expected:
            self.stale_total += 1
            return []
        self._unanswered = None
        is_fewer = set(change.layers) <= set(self._held)
        layout = done.layout if done.phase in TAKES_EFFECT else ready.layout
        self._apply(replace(ready, layers=done.layers, slots=done.slots, quantum=done.quantum, layout=layout))
        if done.phase is RemapPhase.PREPARE:
            change.next = RemapPhase.DROP_WEIGHTS if is_fewer else RemapPhase.LOAD
            self._sources.begin()
        elif done.phase in FOLLOWING:
            change.next = FOLLOWING[done.phase]
        else:
            self._change = None
        return []

    def on_unsupported(self, message: Unsupported) -> list[Effect]:
        """The engine refused a phase, or could not carry it out, and is as it was before."""
        phase, change = self._unanswered, self._change
        if change is None or phase is None or message.layout != change.layout:
            self.stale_total += 1
            return []
        self._unanswered = None
        if phase is RemapPhase.LOAD and self._sources.fail(message.detail):
            return []  # the phase is ordered again, with the next source
        if phase in (RemapPhase.ABORT, RemapPhase.RELEASE_KV):  # nothing is under way (any more)
            self._change = None
            return []
        if phase is RemapPhase.PREPARE:
            self._change = None
            self._apply(self._ready)
        else:
            change.next = RemapPhase.ABORT
        returned = self._return_all(message) if phase is RemapPhase.LOAD else []
        return [*returned, *self._finish(f"{phase.name}: {message.detail}")]

    def advance(self) -> list[Effect]:
        """After every event: answer an order that is done, and order the next phase if it is time for it."""
        if self._ready is None or self._unanswered is not None or (self._wanted is None and self._change is None):
            return []
        change, held = self._change, self._held
        is_done = self._wanted == held and (change is None or change.layers == held)
        done = self._finish("") if is_done else []
        return done + (self._begin() if change is None else self._go_on(change))

    # --- phases ---

    def _begin(self) -> list[Effect]:
        """Begin the change to what is wanted: what is to go and what is to come are two changes."""
        if self._wanted is None:
            return []
        layers = self._target()
        effects: list[Effect] = []
        if not set(layers) <= set(self._held):
            effects = self._clear_tail()
            if self._lifecycle.slot_table.owners_beyond(self._whole_slots):
                return effects
        self._layout += 1
        self._change = LayerChange(self._layout, layers, RemapPhase.PREPARE)
        return [*effects, self._send(self._change)]

    def _go_on(self, change: LayerChange) -> list[Effect]:
        if self._wanted is not None and change.layers != self._target():
            change.next = RemapPhase.ABORT
        if change.next is RemapPhase.DROP_WEIGHTS:
            if self._steps.unanswered:
                return []
            return [*self._steps.discard(self._sequences.parked()), self._send(change)]
        if change.next is RemapPhase.RELEASE_KV and not self._give_up_kv():
            return []
        return [self._send(change)]

    def _send(self, change: LayerChange) -> Effect:
        self._unanswered = change.next
        command = Remap(change.layout, change.next, i32(change.layers))
        if change.next is RemapPhase.PREPARE:
            figures = (Figure("layers", len(change.layers)), Figure("layers_held", len(self._held)))
            command = replace(command, why=Why("remap", "prepare", figures))
        elif change.next is RemapPhase.LOAD:
            coming = [layer for layer in change.layers if layer not in self._held]
            command = replace(command, why=self._sources.why(coming), sources=self._sources.named(coming))
        return Send(self._engine, command)

    def _target(self) -> Layers:
        """What is wanted, if that is fewer or more than what is held; else both together, from which some go later."""
        held, wanted = set(self._held), set(self._wanted or ())
        return tuple(sorted(wanted if wanted <= held else wanted | held))

    def _clear_tail(self) -> list[Effect]:
        """Withhold the slots that only fewer layers leave, and take them from their owners."""
        kv_cache = self._lifecycle.kv_cache
        kv_cache.withhold_beyond(self._whole_slots)
        why = Why("remap", "free the slots of coming layers", (Figure("capacity_slots", self._whole_slots),))
        effects: list[Effect] = []
        for number in kv_cache.sequences_beyond(self._whole_slots):
            sequence = self._sequences.by_number(number)
            if sequence is not None and sequence.state in (SequenceState.RUNNING, SequenceState.PARKED):
                effects += self._lifecycle.preempt(sequence, why)
        return effects

    def _give_up_kv(self) -> bool:
        """Whether no sequence needs the KV of the layers that went; prefixes are given up for it."""
        kv_cache = self._lifecycle.kv_cache
        if self._arrivals() or kv_cache.available_slots < kv_cache.slot_table.capacity:
            return False
        return kv_cache.evict_prefixes(kv_cache.slot_table.capacity)

    # --- what is in force ---

    def _apply(self, ready: EngineReady | None) -> None:
        assert ready is not None, "an engine answered"
        self._note_ready(ready)
        self._note_capacity(ready)
        self._on_change(ready)

    def _note_ready(self, ready: EngineReady | None) -> None:
        """What the engine holds from now on; asked for after every message, so it is not read out of its word again."""
        self._ready = ready
        self._held = () if ready is None else tuple(ready.layers)
        self.is_whole = ready is not None and self._held == all_layers(ready)

    def _note_capacity(self, ready: EngineReady) -> None:
        if self.is_whole:
            self._whole_slots = ready.slots

    def _finish(self, detail: str) -> list[Effect]:
        """What was wanted is held, or cannot be: answer the order, and restore later what is missing."""
        order, self._order, self._wanted = self._order, None, None
        answers = [] if order is None else [self._answer(*order, detail)]
        return answers + self._restore_later()

    def _restore_later(self) -> list[Effect]:
        if self.is_whole or self._wanted is not None:
            return []
        self._counter += 1
        return [After(self._config.restore_after_s, RestoreDue(self._counter))]

    def _answer(self, manager: Address, order: RemapLayers, detail: str) -> Effect:
        ready = self._ready
        layout, layers, slots = (ready.layout, ready.layers, ready.slots) if ready is not None else (0, i32(), 0)
        return Send(manager, RemapLayersDone(order.epoch, order.ticket, layout, layers, slots, detail))

    def _return_all(self, message: Unsupported) -> list[Effect]:
        """Layers do not come back: nothing can go on here."""
        why = Why("remap", "layers are missing", (), (RejectedOption("wait for them", message.detail),))
        effects: list[Effect] = []
        for sequence in self._sequences.by_arrival():
            if sequence.state is not SequenceState.ENDING:
                effects += self._lifecycle.return_to_dispatcher(sequence, why)
        return effects
