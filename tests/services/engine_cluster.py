"""A cluster of real cores in virtual time whose engines are real, too: an `EngineRunner` at each engine's address.

A piece of a step takes `PIECE_S`, so that a test can stop the world at any safepoint of a step.
"""

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dunlin.effects import Address, After, Effect, Gone, Joined, Message, Send
from dunlin.engine.decoder.loading.loader import LoadedModel, load_model
from dunlin.engine.decoder.numerics import deterministic_numerics
from dunlin.engine.execution.engine_transfers import OwnMemory
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.transfer.arena_slots import kv_file_runs, slab_of
from dunlin.engine.transfer.peer_access import PeerAccess
from dunlin.engine.transfer.peer_rooms import PeerRoomTable
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.engine import ClosePeerRoom, EngineReady, Interrupted, MapHost, OpenPeerRoom, StepDone, Unsupported
from dunlin.messages.types import i32
from services.instance.core import InstanceCore
from simulator.cluster.scripted import ScriptedCluster
from tests.engine.build import SteppingClock

PIECE_S = 0.01
TIER_BYTES = 1 << 20
LIMITS = RunnerLimits(response_s=0.0, piece_tokens=16)


@dataclass(frozen=True, slots=True)
class Turn:
    """Timer: the engine computes up to its next safepoint."""


@dataclass(slots=True)
class EngineMemory:
    """What engines of one name have in common: the model in its memory file. Made once, it serves many clusters."""

    model: LoadedModel
    arena_fd: int

    @classmethod
    def load(cls, checkpoint: Path) -> "EngineMemory":
        fd = os.memfd_create("test-arena")
        return cls(load_model(checkpoint, "float32", 1 << 20, deterministic_numerics(), fd), fd)

    def forget_kv(self) -> None:
        """No slot holds a number."""
        for layer in self.model.decoder.kv:
            layer[: self.model.slots].fill_(float("nan"))

    def ready(self, agent: bytes) -> EngineReady:
        model = self.model
        return EngineReady(
            layers=i32(model.layers),
            slots=model.slots,
            quantum=model.quantum,
            weights_digest=model.weights_digest,
            kv_dtype="float32",
            kv_bytes_per_token=model.config.layers * model.config.slot_bytes(4),
            max_positions=model.config.max_positions,
            vocabulary=model.config.vocab,
            deterministic=True,
            layout=model.arena.record.layout,
            agent=agent,
            arena=model.arena.identity,
        )


@dataclass(slots=True)
class RealEngine:
    """One engine in the world. `passed`: the safepoints passed since the running step began. `said`: its answers.

    `tier`: the file that stands for the host tier. `agent`: what lets peers write into its slots, or nothing; `rooms`:
    which of them, as its instance's host keeps it.
    """

    instance: Address
    memory: EngineMemory
    tier: Path
    runner: EngineRunner
    agent: bytes
    rooms: PeerRoomTable
    passed: int = 0
    said: list[Any] = field(default_factory=list)
    _is_awake: bool = False

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        if isinstance(message, Joined):
            return [Send(self.instance, self.memory.ready(self.agent))]
        if isinstance(message, Gone):
            return []
        if isinstance(message, Turn):
            self._is_awake = False
            events = self._work()
        else:
            events = self._obey(message)
        self.said += events
        refused = [event for event in events if isinstance(event, Unsupported)]
        assert not refused, f"a core that keeps the contract is refused: {refused}"
        effects: list[Effect] = [Send(self.instance, event) for event in events]
        if self.runner.busy and not self._is_awake:
            self._is_awake = True
            effects.append(After(PIECE_S, Turn()))
        return effects

    def _obey(self, message: Message) -> list[Any]:
        if isinstance(message, OpenPeerRoom):
            assert self.rooms.open(message.handle, message.extent_start, message.extent_length)
            return []
        if isinstance(message, ClosePeerRoom):
            self.rooms.close(message.handle)
        if isinstance(message, MapHost):
            message = replace(message, path=str(self.tier))
        return self.runner.receive(message)

    def answers(self, kind: type[Any]) -> list[Any]:
        """What it said of one kind."""
        return [event for event in self.said if isinstance(event, kind)]

    def _work(self) -> list[Any]:
        """One piece of the step, or a chunk of a transfer; the interrupts that arrived before."""
        if not self.runner.busy:
            return []
        events = self.runner.work(lambda: True)
        ended = any(isinstance(event, StepDone) for event in events)
        interrupted = any(isinstance(event, Interrupted) for event in events)
        self.passed = 0 if ended or not self.runner.steps.is_running else self.passed + (not interrupted)
        return events


class EngineCluster(ScriptedCluster):
    """Two instances with real engines over the two memories. `peers`: they may write into each other's slots."""

    def __init__(self, memories: list[EngineMemory], tier: Path, peers: bool, **settings: Any) -> None:
        self.engines: dict[str, RealEngine] = {}
        self._memories, self._tier, self._peers = iter(memories), tier, peers
        tier.write_bytes(bytes(TIER_BYTES))
        super().__init__(instances=len(memories), tier_bytes=TIER_BYTES, **settings)

    def _make_engine_supervisor(self, core: InstanceCore) -> Any:
        memory = next(self._memories)
        memory.forget_kv()
        rooms = TransitRooms()
        own, agent = OwnMemory(slab_of(memory.model.arena, memory.model.decoder.kv), rooms), b""
        page = os.memfd_create("page")
        if self._peers:
            access = PeerAccess(page, rooms)
            access.publish(memory.arena_fd, own.slab, kv_file_runs(memory.model.arena))
            own, agent = replace(own, access=access), access.agent
        runner = EngineRunner(memory.model.decoder, memory.model.slots, SteppingClock(), LIMITS, memory=own)
        engine = RealEngine(core.address, memory, self._tier, runner, agent, PeerRoomTable(page))
        self.engines[core.address.name] = engine
        self.world.add(core.engine, engine)
        self.world.connect(core.address, core.engine)
        return engine
