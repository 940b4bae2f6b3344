"""A runner whose layers change, over an arena of its own, and the commands of a change."""

import os
from pathlib import Path
from typing import Any

from dunlin.effects import Address
from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.loading.loader import load_model
from dunlin.engine.decoder.loading.weight_sources import CheckpointSource
from dunlin.engine.execution.engine_layers import LayerMemory
from dunlin.engine.execution.engine_transfers import OwnMemory
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.transfer.arena_slots import slab_of
from dunlin.engine.transfer.peer_access import PeerAccess
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.engine import Meet, Remap
from dunlin.messages.types import RemapPhase, i32
from tests.engine.build import SteppingClock, nothing
from tests.engine.execution.remap_engine import ALL, COMMIT, DROP_WEIGHTS, FEWER, KV_BYTES, LOAD, PREPARE, RELEASE_KV


class LayeredRunner:
    """An `EngineRunner` as its process has it, without the process."""

    def __init__(self, directory: Path, name: str = "a", fd: int | None = None, kv_bytes: int = KV_BYTES) -> None:
        self.address = Address("engine", name)
        self.fd = os.memfd_create("arena") if fd is None else fd
        self.model = load_model(directory, "float32", kv_bytes, numerics.deterministic_numerics(), self.fd)
        self.rooms = TransitRooms(16, 1 << 16)
        self.access = PeerAccess(os.memfd_create("page"), self.rooms)
        memory = OwnMemory(slab_of(self.model.arena, self.model.decoder.kv), self.rooms, self.access)
        layers = LayerMemory(self.model.arena, self.model.weights, CheckpointSource(directory))
        limits, clock = RunnerLimits(), SteppingClock()
        self.runner = EngineRunner(self.model.decoder, self.model.slots, clock, limits, memory=memory, layers=layers)

    @property
    def slots(self) -> int:
        return self.model.arena.slots

    def tell(self, *messages: Any) -> list[Any]:
        """Feed the messages; what is answered at once."""
        return [event for message in messages for event in self.runner.receive(message)]

    def run(self, *messages: Any) -> list[Any]:
        """Feed the messages, then work until nothing is left."""
        events = self.tell(*messages)
        while self.runner.busy:
            events += self.runner.work(nothing)
        return events

    def meet(self, other: "LayeredRunner") -> None:
        self.run(Meet(other.address, other.access.agent))

    def phase(self, phase: RemapPhase, layers: tuple[int, ...], layout: int, **options: Any) -> Any:
        """Carry one phase out; its one answer."""
        (answer,) = self.run(remap(phase, layers, layout, **options))
        return answer

    def drop(self, layout: int = 1) -> None:
        for phase in (PREPARE, DROP_WEIGHTS, RELEASE_KV):
            self.phase(phase, FEWER, layout)

    def restore(self, layout: int = 2, **options: Any) -> None:
        for phase in (PREPARE, LOAD, COMMIT):
            self.phase(phase, ALL, layout, **(options if phase is LOAD else {}))

    def close(self) -> None:
        self.model.arena.close()
        os.close(self.fd)


def remap(phase: RemapPhase, layers: tuple[int, ...], layout: int = 1, **options: Any) -> Remap:
    return Remap(layout, phase, i32(layers), **options)
