"""Runs sequences: takes what dispatchers place here, owns the token slots, composes the engine's steps.

A router over slots, sequences and their lives, steps, the host tier, the engine's watch and the reports. Knows no
socket, no tensor and no other instance.
"""

from dataclasses import dataclass

from dunlin.effects import Address, After, Effect, Gone, Joined, Message
from dunlin.handlers import handlers_of, handles
from dunlin.messages.engine import EngineReady, MoveDone, Progress, Unsupported
from dunlin.messages.fleet import InstanceReport
from dunlin.messages.plan import Order
from dunlin.messages.pool import Tier
from dunlin.messages.types import MoveStatus
from dunlin.policies.batch import BATCH_POLICIES
from dunlin.policies.evict import EVICT_POLICIES
from dunlin.policies.handover import HANDOVER_POLICIES
from dunlin.policies.pressure import PRESSURE_POLICIES
from dunlin.reporting import PromptHeartbeat, ReportDue
from services.instance.admission import Admission
from services.instance.adoption import Adoption
from services.instance.batcher import Batcher
from services.instance.checkpointer import Checkpointer
from services.instance.claims import Claims
from services.instance.config import InstanceConfig
from services.instance.engine_side import EngineSide
from services.instance.lives import Lives
from services.instance.migration import Migration
from services.instance.orders import Orders
from services.instance.pool_side import PoolSide
from services.instance.reports import build_report
from services.instance.retained import Retained
from services.instance.revival import Revival
from services.instance.sequences import Sequences
from services.instance.slots import SlotTable
from services.instance.steps import Steps
from services.instance.tier import HostTier


@dataclass(frozen=True, slots=True)
class OrphansDue:
    """A dispatcher's grace is over, unless it came back meanwhile."""

    dispatcher: Address
    absence: int


class InstanceCore:
    """The decisions of one instance. `stale_total` counts kvstores that were outlived; a report has the parts' too."""

    def __init__(self, address: Address, config: InstanceConfig) -> None:
        scheduler, keep = config.scheduler, config.retention
        self.address = address
        self.engine = Address("engine", address.name)
        self.sequences = Sequences()
        self.tier = HostTier(self.engine, config.host_tier.answer_timeout_s)
        pressure = PRESSURE_POLICIES[config.preemption.mode]
        self.lives = Lives(self.engine, self.sequences, self.tier, pressure, keeps=config.checkpoint.engine_share > 0)
        shared = (self.sequences, self.lives, self.tier)
        self.checkpointer = Checkpointer(config.checkpoint, *shared)
        claims = Claims(self.tier)
        self.steps = Steps(BATCH_POLICIES[scheduler.policy], scheduler.policy, scheduler.budget_tokens)
        self.stale_total = 0
        self._model = config.model
        self._orphan_grace_s = keep.orphan_grace_s
        retained = Retained(keep.orphan_grace_s, keep.max_answers, keep.max_answer_tokens)
        parts = (self.sequences, self.lives, self.steps, self.tier)
        self.revival = revival = Revival(self.engine, config.recovery, config.kv_cache, *parts)
        self._engine_side = engine_side = EngineSide(self.engine, config.engine_watch, *parts, retained, revival)
        self._orders = orders = Orders(address)
        handover = HANDOVER_POLICIES[config.kv_handoff.policy]
        moving = (config.migration, config.kv_handoff, scheduler)
        self.migration = Migration(*moving, *shared, engine_side, orders, handover)
        self._pool = PoolSide(
            self.tier,
            self.lives,
            self.checkpointer,
            claims,
            self.migration.arrivals,
            self.migration.departures,
            self._restore,
        )
        admission = Admission(
            scheduler, self.sequences, self.lives, self.steps, self.migration, claims, engine_side, orders
        )
        self._batcher = Batcher(
            self.engine,
            scheduler,
            self.sequences,
            self.lives,
            self.steps,
            EVICT_POLICIES[config.preemption.victim_policy],
            self.migration.handovers.may_run,
        )
        self._heartbeat = PromptHeartbeat(self.report, config.reports.interval_s, config.reports.after_change_s)
        self._absent: dict[Address, int] = {}
        self._absences = 0
        self._fenced = (self, engine_side, orders, admission, self._pool, *self.migration.parts)
        adoption = Adoption(self.sequences, self.lives, retained)
        self._handlers = handlers_of(
            self, admission, adoption, self._pool, engine_side, revival, *self.migration.parts, self._heartbeat
        )
        self._unchanging = (Progress, ReportDue)

    def __repr__(self) -> str:
        return f"{self.lives.slots!r} {self.sequences!r} [outstanding steps: {self.steps.outstanding}]"

    @property
    def slots(self) -> SlotTable:
        """The slab."""
        return self.lives.slots

    @property
    def followed(self) -> Order | None:
        """The order of the global manager's that it follows."""
        return self._orders.followed

    @property
    def plan(self) -> tuple[int, int]:
        """(epoch, plan version) of that order; zeros before the first."""
        return self._orders.version

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """See `dunlin.effects.Core`. What this core has no use for is ignored."""
        handler = self._handlers.get(type(message))
        if handler is None:
            return []
        effects = handler(now_s, sender, message)
        if isinstance(message, self._unchanging):
            return effects
        effects += self.migration.settle()
        if self._engine_side.ready is not None:
            effects += self._batcher.settle()
            if self.checkpointer.is_on:
                effects += self.checkpointer.settle(now_s)
        return effects + self._heartbeat.changed(now_s)

    def report(self) -> InstanceReport:
        """What this instance says of itself."""
        return build_report(
            self._model,
            self._engine_side,
            self.revival,
            self.sequences,
            self.lives,
            self.steps,
            self.tier,
            self._count_stale(),
            {**self._orders.reported(), **self.migration.reported(), **self.checkpointer.reported()},
        )

    def _count_stale(self) -> int:
        total = 0
        for part in self._fenced:
            total += part.stale_total
        return total

    # --- the manager, the engine and the host tier ---

    @handles
    def _on_order(self, now_s: float, sender: Address, order: Order) -> list[Effect]:
        return [*self._orders.take(sender, order), *self._heartbeat.report_now(now_s)]

    @handles
    def _on_engine_ready(self, now_s: float, sender: Address, ready: EngineReady) -> list[Effect]:
        return [*self._engine_side.becomes_ready(ready), *self._heartbeat.report_now(now_s)]

    @handles
    def _on_tier(self, now_s: float, sender: Address, tier: Tier) -> list[Effect]:
        if self.tier.is_outlived(sender):
            self.stale_total += 1
            return []
        known = self.tier.kvstore
        # A new kvstore may speak before the end of the old one's stream is seen.
        lost = self._on_gone(now_s, known, Gone("another kvstore")) if known not in (None, sender) else []
        return [*lost, *self.tier.open(sender, tier)]

    def _engine_lost(self, now_s: float, reason: str) -> list[Effect]:
        if self._engine_side.ready is None:
            return []
        return [*self.migration.engine_gone(), *self._engine_side.lost(reason), *self._heartbeat.report_now(now_s)]

    def _restore(self) -> list[Effect]:
        return self._batcher.restore() if self._engine_side.ready is not None else []

    @handles
    def _on_unsupported(self, now_s: float, sender: Address, message: Unsupported) -> list[Effect]:
        if message.what == "MapHost":
            return self._pool.unmapped(now_s)
        if message.move:
            failed = MoveDone(message.move, MoveStatus.FAILED, detail=message.detail)
            return self._pool.landed(now_s, sender, failed)
        return self._engine_side.refuses(message)

    # --- streams and timers ---

    @handles
    def _on_joined(self, now_s: float, sender: Address, message: Joined) -> list[Effect]:
        self._absent.pop(sender, None)
        if sender.role == "monitor":
            return self._heartbeat.joined(now_s, sender)
        return self.migration.joined(sender)

    @handles
    def _on_gone(self, now_s: float, sender: Address, message: Gone) -> list[Effect]:
        self._heartbeat.gone(sender)
        effects = self.migration.gone(sender)
        if sender == self.engine:
            return self._engine_lost(now_s, f"engine gone: {message.reason}")
        if sender.role == "kvstore":
            return [*effects, *self._pool.gone(now_s, sender)]
        if sender.role == "dispatcher" and self.sequences.of_dispatcher(sender):
            self._absences += 1
            self._absent[sender] = self._absences
            effects.append(After(self._orphan_grace_s, OrphansDue(sender, self._absences)))
        return effects

    @handles
    def _on_orphans_due(self, now_s: float, sender: Address, due: OrphansDue) -> list[Effect]:
        if self._absent.get(due.dispatcher) != due.absence:
            return []
        del self._absent[due.dispatcher]
        effects: list[Effect] = []
        for sequence in self.sequences.of_dispatcher(due.dispatcher):
            effects += self.lives.stop(sequence)
        return effects
