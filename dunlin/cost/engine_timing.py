"""All that a simulated engine needs to know of the times of one model on one device."""

from dataclasses import dataclass, field

from dunlin.cost.group_steps import ExchangeBytes, GroupWork, group_step_s
from dunlin.cost.interrupts import InterruptTimes
from dunlin.cost.links import EngineLinks, NodeLinks, TransferModels
from dunlin.cost.models import BatchCounts, GroupStepTimes
from dunlin.cost.processes import ProcessCosts
from dunlin.cost.profile_quality import ProfileQuality
from dunlin.messages.types import TransferKind


@dataclass(frozen=True, slots=True)
class EngineTiming:
    """All timings that a simulated engine needs of one model on one device under one parallelism.

    `slots` is the tokens of KV its memory holds, `load_s` the time from the process's start to ready. `unsteadiness` is
    how the measured machine went: every `UNSTEADINESS_PIECE_S` of predicted time took so many times as long; empty:
    always once.
    `host`: what the processes around the engine take; None: nothing, or not measured. `layers` are the model's: a step
    passes a safepoint after each, which is how it shows that it is alive. `quality`: how well it was measured; None: a
    device that ships, or not known. `links`, `node`: what its copies share with those of others. `interrupts`: how
    rows leave steps. `exchange`: the bytes that steps of a group exchange; None: a query is half a token's KV, as with
    one query head per kv head in KV of two bytes an element.
    """

    step: GroupStepTimes
    moves: TransferModels
    load_s: float
    slots: int
    kv_bytes_per_token: int
    unsteadiness: tuple[float, ...] = ()
    host: ProcessCosts | None = None
    layers: int = 2
    quality: ProfileQuality | None = None
    links: EngineLinks = field(default_factory=EngineLinks)
    node: NodeLinks = field(default_factory=NodeLinks)
    interrupts: InterruptTimes = field(default_factory=InterruptTimes)
    exchange: ExchangeBytes | None = None

    def step_s(self, batch: BatchCounts) -> float:
        """Seconds the step takes."""
        return self.step.step_s(batch)

    def group_s(self, work: GroupWork) -> float:
        """Seconds of a step that computes with those of other engines, without waiting for one that began later."""
        return group_step_s(self.step, work, self.exchange or self._exchange(), self.links, self.layers)

    def _exchange(self) -> ExchangeBytes:
        kv = self.kv_bytes_per_token / self.layers
        return ExchangeBytes(query=kv / 2, result=kv, kv=kv)

    def move_s(self, kind: TransferKind, byte_count: int) -> float:
        """Seconds to move `byte_count` bytes that way."""
        return self.moves.move_s(kind, byte_count)
