"""Changes the layers that a running engine holds, phase by phase and piece by piece, between iterations of steps.

Fewer layers: PREPARE maps the weights' granules at the tails of the KV that stays, DROP_WEIGHTS gives them over,
RELEASE_KV does the same with the KV of the layers that went. More layers: PREPARE takes tails of KV, whose slots the
core has evacuated, as room for weights, LOAD fills it, COMMIT holds the layers. ABORT ends a change where it stands,
without loss of KV. Owns the change under way; the arena carries it out. Knows no step.
"""

from collections.abc import Generator, Sequence
from typing import Protocol

import xxhash

from dunlin.engine.decoder.loading.weight_sources import WeightSource, WeightSourceError
from dunlin.engine.decoder.loading.weights import Weights, digest_pieces
from dunlin.engine.decoder.memory import layer_layout
from dunlin.engine.decoder.memory.granule_ledger import LedgerPhase, LedgerRecord
from dunlin.engine.decoder.memory.layer_arena import LayerArena
from dunlin.engine.decoder.memory.layer_layout import LayoutError, slot_capacity
from dunlin.messages.engine import Remap, RemapDone
from dunlin.messages.types import RemapPhase, i32
from dunlin.model.errors import ModelError


class RemapError(Exception):
    """A phase that is refused or failed; the text says why. The engine is as it was before that phase."""


_Work = Generator[RemapDone | None, None, None]


class LayoutFollower(Protocol):
    """What depends on which layers are held, and where their slots lie."""

    def withdraw(self) -> None:
        """Slots are about to move: no peer may write them until `follow`. :raises OSError: one still does."""
        ...

    def follow(self) -> None:
        """The arena's new record is in force."""
        ...


class LayerRemapper:
    """One engine's change of layers. Feed `begin`, then call `advance` beside steps while `busy`.

    `weights.layers` always has just the layers held. `needs_rest`: what `advance` does next changes layers or slots, so
    no step may be in its midst. `use` is told of each such change.
    """

    def __init__(
        self, arena: LayerArena, weights: Weights, checkpoint: WeightSource, use: LayoutFollower | None = None
    ) -> None:
        self.waiting = False
        self.needs_rest = False
        self._use = use
        self._arena = arena
        self._weights = weights
        self._checkpoint = checkpoint
        self._work: _Work | None = None
        self._answering: RemapPhase | None = None
        self._change: Remap | None = None
        self._planned: LedgerRecord | None = None
        self._next = RemapPhase.PREPARE
        if arena.record.phase is LedgerPhase.DROPPED:
            self._change = Remap(arena.record.layout, RemapPhase.DROP_WEIGHTS, i32(arena.record.held))
            self._next = RemapPhase.RELEASE_KV

    def __repr__(self) -> str:
        return f"[layers: {self.layers} | layout: {self.layout} | next: {self._next.name}]"

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers held."""
        return self._arena.record.held

    @property
    def layout(self) -> int:
        """The version of the layers held."""
        return self._arena.record.layout

    @property
    def slots(self) -> int:
        """Slots that every layer held has."""
        return self._arena.slots

    @property
    def under_way(self) -> int:
        """The layout that the change under way will put in force; the one in force without a change."""
        return self.layout if self._change is None else self._change.layout

    @property
    def answering(self) -> RemapPhase | None:
        """The phase that has begun and has not been answered."""
        return self._answering

    @property
    def busy(self) -> bool:
        """Whether `advance` has something to do; `waiting` says that the last call found nothing."""
        return self._work is not None

    def coming_slots(self, layers: Sequence[int]) -> int:
        """Slots that every layer held would have from PREPARE with more `layers` on.

        :raises RemapError: they leave none.
        """
        try:
            return slot_capacity(self._arena.plan, layer_layout.with_room(self._arena.plan, self._arena.record, layers))
        except LayoutError as error:
            raise RemapError(str(error)) from None

    def begin(self, order: Remap, source: WeightSource | None = None) -> None:
        """Take an order; `advance` carries it out and answers it once. LOAD reads from `source`, or the checkpoint.

        An ABORT ends a phase that has not answered, which then never does.

        :raises RemapError: it is out of order, or cannot be done: nothing of it was.
        """
        self._check(order)
        if self._work is not None and order.phase is RemapPhase.ABORT:
            self._work.close()
        work = {
            RemapPhase.PREPARE: self._prepare,
            RemapPhase.DROP_WEIGHTS: self._drop_weights,
            RemapPhase.RELEASE_KV: self._release_kv,
            RemapPhase.LOAD: lambda order: self._load(order, source or self._checkpoint),
            RemapPhase.COMMIT: self._commit,
            RemapPhase.ABORT: self._abort,
        }[order.phase]
        try:
            self._work = work(order)
        except LayoutError as error:
            raise RemapError(f"{order.phase.name} of layout {order.layout}: {error}") from None
        self._answering, self.needs_rest = order.phase, False

    def advance(self) -> RemapDone | None:
        """Do the next piece, of about a MiB; returns the answer when the phase ends with it.

        :raises RemapError: the phase failed. A failed PREPARE ends the change; another phase may be ordered again.
        """
        if self._work is None:
            return None
        try:
            outcome = next(self._work, _OVER)
        except (WeightSourceError, ModelError, MemoryError, OSError) as error:
            raise self._failed(error) from error
        if outcome is _OVER:
            self._work = None
            return None
        if outcome is not None:
            self._answering = None
        return outcome

    def _check(self, order: Remap) -> None:
        what = f"{order.phase.name} of layout {order.layout}"
        abort = order.phase is RemapPhase.ABORT
        if self._answering is not None and not abort:
            raise RemapError(f"{what}: {self._answering.name} is under way")
        if order.phase is RemapPhase.PREPARE:
            self._check_first(order, what)
        elif self._change is None:
            raise RemapError(f"{what}: no change of layers is under way")
        elif order.layout != self._change.layout or (order.layers != self._change.layers and not abort):
            raise RemapError(f"{what} and layers {list(order.layers)}: {self._under_way}")
        if order.phase is not self._next and not abort:
            raise RemapError(f"{what}: the next phase is {self._next.name}")

    def _check_first(self, order: Remap, what: str) -> None:
        if self._change is not None:
            raise RemapError(f"{what}: {self._under_way}")
        if order.layout <= self.layout:
            raise RemapError(f"{what}: layout {self.layout} is in force")
        known = range(len(self._arena.plan.weights))
        if not order.layers or list(order.layers) != sorted({*order.layers} & {*known}):
            raise RemapError(f"{what}: {list(order.layers)} are not layers of {len(known)}, ascending")
        held, wanted = set(self.layers), set(order.layers)
        if not (wanted < held or held < wanted or (wanted == held and self._arena.record.retained)):
            neither = f"{list(order.layers)} are neither fewer nor more than the layers held, {list(self.layers)}"
            raise RemapError(f"{what}: {neither}")

    @property
    def _under_way(self) -> str:
        change = self._change
        return f"under way is layout {change.layout} with layers {list(change.layers)}" if change is not None else ""

    def _prepare(self, order: Remap) -> _Work:
        arena = self._arena
        fewer = set(order.layers) <= set(self.layers)
        if fewer:
            planned = layer_layout.without_weights(arena.plan, arena.record, order.layers, order.layout)
        else:
            planned = layer_layout.with_room(arena.plan, arena.record, order.layers)
        self._change, self._planned = order, planned
        return self._prepare_pieces(order, planned, fewer)

    def _prepare_pieces(self, order: Remap, planned: LedgerRecord, fewer: bool) -> _Work:
        yield from self._trim()
        for _ in self._arena.extend_to(planned):
            yield None
        if not fewer:
            yield from self._commit_record(planned)
        yield self._done(order, RemapPhase.DROP_WEIGHTS if fewer else RemapPhase.LOAD)
        if not fewer:
            yield from self._trim()

    def _drop_weights(self, order: Remap) -> _Work:
        planned = self._planned
        assert planned is not None, "PREPARE planned it"
        yield from self._commit_record(planned)
        yield self._done(order, RemapPhase.RELEASE_KV)
        yield from self._trim()

    def _release_kv(self, order: Remap) -> _Work:
        planned = layer_layout.without_kv(self._arena.plan, self._arena.record)
        return self._release_pieces(order, planned)

    def _release_pieces(self, order: Remap, planned: LedgerRecord) -> _Work:
        yield from self._trim()
        for _ in self._arena.extend_to(planned):
            yield None
        yield from self._commit_record(planned)
        yield self._done(order, RemapPhase.PREPARE)
        yield from self._trim()

    def _load(self, order: Remap, source: WeightSource) -> _Work:
        yield from self._trim()
        record = self._arena.record
        for layer in record.coming:
            if not record.layers[layer].loaded:
                yield from self._load_layer(layer, source)
                self._arena.commit(self._arena.record.with_layer(layer, loaded=True))
        yield self._done(order, RemapPhase.COMMIT)

    def _load_layer(self, layer: int, source: WeightSource) -> _Work:
        room = self._arena.layer_room(layer)
        for written in source.fill(layer, room):
            self.waiting = written == 0
            yield None
        hasher = xxhash.xxh3_128()
        for _ in digest_pieces(room, hasher):
            yield None
        wanted = self._arena.record.layers[layer].digest
        if hasher.digest() != wanted:
            raise WeightSourceError(f"layer {layer} from {source!r} is {hasher.hexdigest()}, not {wanted.hex()}")

    def _commit(self, order: Remap) -> _Work:
        yield from self._commit_record(layer_layout.with_layers(self._arena.record, order.layout))
        yield self._done(order, RemapPhase.PREPARE)

    def _abort(self, order: Remap) -> _Work:
        return self._abort_pieces(order, layer_layout.aborted(self._arena.plan, self._arena.record))

    def _abort_pieces(self, order: Remap, back: LedgerRecord) -> _Work:
        self.waiting = False
        yield from self._trim()
        for _ in self._arena.extend_to(back):
            yield None
        if self._arena.record.phase is not LedgerPhase.SETTLED:
            yield from self._commit_record(back)
        yield self._done(order, RemapPhase.PREPARE)
        yield from self._trim()

    def _commit_record(self, record: LedgerRecord) -> _Work:
        """Put other layers or slots in force, once no step is in its midst."""
        self.needs_rest = True
        yield None
        if self._use is not None:
            self._use.withdraw()
        self._arena.commit(record)
        self.needs_rest = False
        self._publish()
        if self._use is not None:
            self._use.follow()

    def _trim(self) -> _Work:
        for _ in self._arena.trim():
            yield None

    def _publish(self) -> None:
        """Let steps see the layers held, and no others, in ascending order."""
        before = dict(self._weights.layers)
        self._weights.layers.clear()
        for layer in self.layers:
            self._weights.layers[layer] = before.get(layer) or self._arena.layer_room(layer).views

    def _done(self, order: Remap, following: RemapPhase) -> RemapDone:
        self._next = following
        if following is RemapPhase.PREPARE:
            self._change = self._planned = None
        return RemapDone(order.layout, order.phase, i32(self.layers), self.slots, self._arena.plan.quantum)

    def _failed(self, error: Exception) -> RemapError:
        stage, self._answering, self.waiting, self.needs_rest = self._answering, None, False, False
        self._work = self._trim()
        if self._next is RemapPhase.PREPARE:
            self._change = self._planned = None
        return RemapError(f"{stage.name if stage is not None else 'unmapping'}: {error}")


_OVER = RemapDone(0, RemapPhase.ABORT, i32(), 0, 0)
