"""The engine's side of `Remap`: answers it, works on a change beside steps, and lets what depends on it follow.

A change is worked on in pieces of about a MiB: one before each step, one now and then at its safepoints, and one after
the other while the engine rests. Layers and slots change between two steps only.
"""

import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dunlin.effects import Address
from dunlin.engine.decoder.loading.weight_sources import (
    HostSource,
    PeerSource,
    SourceByLayer,
    WeightSource,
    WeightSourceError,
)
from dunlin.engine.decoder.loading.weights import WeightRoom, Weights
from dunlin.engine.decoder.memory.layer_arena import LayerArena
from dunlin.engine.execution.engine_transfers import EngineTransfers, OwnMemory
from dunlin.engine.execution.remap import LayerRemapper, RemapError
from dunlin.engine.execution.sequence import EngineSequence
from dunlin.engine.execution.step_batch import EngineShape
from dunlin.engine.execution.step_runner import StepRunner
from dunlin.engine.transfer.arena_slots import kv_file_runs, slots_by_layer, weight_file_runs
from dunlin.engine.transfer.errors import TransferError
from dunlin.messages.engine import LayerSource, Remap, Unsupported
from dunlin.messages.types import RemapPhase

Event = Any
SAFEPOINT_SHARE = 0.2
"""Part of a step's time that pieces of a change may take at its safepoints."""


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """The arena of the layers that can change, their weights, and where they are loaded from unless a command says."""

    arena: LayerArena
    weights: Weights
    checkpoint: WeightSource


class EngineLayers:
    """Owns the change of layers. `sequences` are the open ones."""

    def __init__(
        self,
        memory: LayerMemory,
        own: OwnMemory,
        sequences: Mapping[int, EngineSequence],
        steps: StepRunner,
        transfers: EngineTransfers,
        clock: Callable[[], float],
        beat: Callable[[], object],
    ) -> None:
        self._memory = memory
        self._own = own
        self._sequences = sequences
        self._steps = steps
        self._transfers = transfers
        self._clock = clock
        self._beat = beat
        self._remapper = LayerRemapper(memory.arena, memory.weights, memory.checkpoint, self)
        self._ended: list[Event] = []
        self._not_before_s = 0.0
        self.follow()

    @property
    def busy(self) -> bool:
        """Whether a piece of a change can be worked on."""
        return self._remapper.busy

    def on_remap(self, message: Remap) -> list[Event]:
        """Begin a phase, or refuse it. What an ABORT ends is answered first."""
        unanswered = self._remapper.answering
        try:
            if message.phase is RemapPhase.DROP_WEIGHTS and self._steps.has_parked:
                raise RemapError(f"DROP_WEIGHTS of layout {message.layout}: rows are parked in its layers")
            self._remapper.begin(message, self._source(message))
        except RemapError as error:
            return [_refused(message.layout, str(error))]
        if unanswered is None:
            return []
        return [_refused(message.layout, f"{unanswered.name} of layout {message.layout}: aborted")]

    def work(self) -> list[Event]:
        """Work on one piece, if no step is in the midst of what it changes."""
        remapper = self._remapper
        if not remapper.busy or (remapper.needs_rest and self._steps.is_running):
            return []
        began_s = self._clock()
        layout = remapper.under_way
        try:
            done = remapper.advance()
        except RemapError as error:
            return [*self._take_ended(), _refused(layout, str(error))]
        self._beat()
        ended_s = self._clock()
        self._not_before_s = ended_s + (ended_s - began_s) / SAFEPOINT_SHARE
        return [*self._take_ended(), *([] if done is None else [done])]

    def work_at_safepoint(self) -> list[Event]:
        """Work on one piece, unless the last one was too short a while ago."""
        return self.work() if self.busy and self._clock() >= self._not_before_s else []

    # --- what depends on the layers held, and on where their slots lie ---

    def withdraw(self) -> None:
        """Slots are about to move: no peer writes until `follow`. :raises TimeoutError: one is in midst of a chunk."""
        if self._own.access is not None:
            self._own.access.withdraw()

    def follow(self) -> None:
        """The arena's record is in force: steps, transfers, sequences and peers see what it says."""
        arena, slots = self._memory.arena, slots_by_layer(self._memory.arena)
        record = arena.record
        self._own.slab.change_layout(record.layout, slots)
        self._steps.change_shape(EngineShape(arena.slots, len(slots), record.layout, record.held))
        for sequence in self._sequences.values():
            sequence.keep_kv_within(slots)
        self._ended += self._transfers.on_layout_changed()
        if self._own.access is not None:
            self._own.access.publish(arena.fd, self._own.slab, kv_file_runs(arena), weight_file_runs(arena))

    def _take_ended(self) -> list[Event]:
        ended, self._ended = self._ended, []
        return ended

    # --- where weights come from ---

    def _source(self, message: Remap) -> WeightSource | None:
        """:raises RemapError: a source is named that is not there."""
        if message.phase is not RemapPhase.LOAD or not message.sources:
            return None
        try:
            named = {source.layer: self._source_of(source) for source in message.sources}
        except (OSError, ValueError) as error:
            raise RemapError(f"LOAD of layout {message.layout}: {error}") from None
        return SourceByLayer(named, self._memory.checkpoint)

    def _source_of(self, source: LayerSource) -> WeightSource:
        if source.peer is not None:
            return self._peer_source(source.peer)
        if source.path:
            return MappedSource(source.path, source.offset_bytes)
        return self._memory.checkpoint

    def _peer_source(self, peer: Address) -> WeightSource:
        def receive(layer: int, offset: int, out: Tensor) -> int:
            received = out.cpu()  # itself, unless it lies on a device
            try:
                count = self._transfers.peers.of(peer).read_weights(layer, offset, received.numpy())
            except TransferError as error:
                raise WeightSourceError(f"{peer}: {error}") from None
            if received is not out:
                out.copy_(received)
            return count

        return PeerSource(receive, str(peer))


class MappedSource:
    """A layer's weights in a file of shared memory, from a byte offset on, as they lie in an arena."""

    def __init__(self, path: str, offset_bytes: int) -> None:
        """:raises OSError, ValueError: it is not there, or is empty."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._bytes = torch.frombuffer(mmap.mmap(fd, 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)
        finally:
            os.close(fd)
        self._path, self._offset = path, offset_bytes

    def __repr__(self) -> str:
        return self._path

    def fill(self, layer: int, room: WeightRoom) -> Iterator[int]:
        content = self._bytes[self._offset : self._offset + len(room.content)]
        return HostSource({layer: content}).fill(layer, room)


def _refused(layout: int, detail: str) -> Event:
    return Unsupported("Remap", detail, layout=layout)
