"""Runs sequences: takes what dispatchers place here, owns the token slots, composes the engine's steps.

A router over the sequence table, the KV cache, the scheduler, the host cache client, the engine client, migrations and
reports. Knows no socket, no tensor and no other instance.
"""

from dataclasses import dataclass

from dunlin.cores.handlers import handlers_of, handles
from dunlin.cores.reporting import PromptHeartbeat, ReportDue
from dunlin.effects import Address, After, Effect, Gone, Joined, Message
from dunlin.messages.engine import EngineProgress, EngineReady, TransferDone, Unsupported
from dunlin.messages.fleet import InstanceReport
from dunlin.messages.plan import GroupOrder
from dunlin.messages.pool import TierReady
from dunlin.messages.types import TransferStatus
from dunlin.policies.handoff import HANDOFF_POLICIES
from dunlin.policies.interrupt import ARRIVAL_POLICIES, INTERRUPT_POLICIES
from dunlin.policies.preemption import PREEMPTION_MODES
from dunlin.policies.victim import VICTIM_POLICIES
from services.instance.admission import AttemptAdmission
from services.instance.adoption import SequenceAdoption
from services.instance.checkpoint.checkpointer import Checkpointer
from services.instance.checkpoint.claims import RegionClaims
from services.instance.config import InstanceConfig
from services.instance.engine.client import EngineClient
from services.instance.engine.layer_changes import LayerChanges
from services.instance.engine.recovery import EngineRecovery
from services.instance.host_cache_events import HostCacheEvents
from services.instance.kv.host_cache import HostCacheClient
from services.instance.kv.slot_table import SlotTable
from services.instance.migration.router import MigrationRouter
from services.instance.objectives.misses import ObjectiveMisses
from services.instance.reports import build_report
from services.instance.scheduling.group_orders import GroupOrders
from services.instance.scheduling.interrupts import RowInterrupts
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.scheduling.scheduler import Scheduler
from services.instance.scheduling.sequence_rise import SequenceRise
from services.instance.scheduling.step_forecast import make_forecast
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.scheduling.step_times import KnownStepTimes
from services.instance.scheduling.steps import BatchComposer
from services.instance.sequence.finished_answers import FinishedAnswers
from services.instance.sequence.table import SequenceTable


@dataclass(frozen=True, slots=True)
class DispatcherGraceOver:
    """A dispatcher's grace is over, unless it came back meanwhile."""

    dispatcher: Address
    absence: int


class InstanceCore:
    """The decisions of one instance. `stale_total` counts replaced kvstores; a report adds the counts of its parts.

    `known`: the step times of its engine, for policies that aim at objectives; None: it learns them.
    """

    def __init__(self, address: Address, config: InstanceConfig, known: KnownStepTimes = None) -> None:
        keep = config.retention
        self.address = address
        self.engine = Address("engine", address.name)
        self.sequences = SequenceTable()
        self.host_cache = HostCacheClient(self.engine, config.host_tier.answer_timeout_s)
        self.steps = StepLedger(self.engine, self.sequences, make_forecast(config, known))
        mode, keeps = PREEMPTION_MODES[config.preemption.mode], config.checkpoint.engine_share > 0
        self.lifecycle = SequenceLifecycle(self.engine, self.sequences, self.host_cache, self.steps, mode, keeps=keeps)
        shared = (self.sequences, self.lifecycle, self.host_cache)
        self.checkpointer = Checkpointer(config.checkpoint, *shared)
        claims = RegionClaims(self.host_cache)
        self._misses = ObjectiveMisses(config.objectives)
        self._composer = self._make_composer(config)
        self.stale_total = 0
        self._model = config.model
        self._orphan_grace_s = keep.orphan_grace_s
        finished_answers = FinishedAnswers(keep.orphan_grace_s, keep.max_answers, keep.max_answer_tokens)
        parts = (self.sequences, self.lifecycle, self.steps, self.host_cache)
        self.recovery = recovery = EngineRecovery(self.engine, config.recovery, config.kv_cache, *parts)
        self._group_orders = group_orders = GroupOrders(address)
        self.layer_changes = layer_changes = self._make_layer_changes(config)
        self._engine_client = engine_client = EngineClient(
            self.engine, config.engine_watch, *parts, finished_answers, recovery, layer_changes, self._misses
        )
        handoff_policy = HANDOFF_POLICIES[config.kv_handoff.policy]
        moving = (config.migration, config.kv_handoff, config.scheduler)
        self.migration = MigrationRouter(*moving, *shared, engine_client, group_orders, handoff_policy)
        self._host_cache_events = HostCacheEvents(
            self.host_cache,
            self.lifecycle,
            self.checkpointer,
            claims,
            self.migration.migrate_in,
            self.migration.migrate_out,
            self._restore,
        )
        engine_parts = (engine_client, group_orders, layer_changes)
        admission = AttemptAdmission(config.scheduler, *parts[:3], self.migration, claims, *engine_parts)
        self._scheduler = self._make_scheduler(config)
        self._sequence_rise = SequenceRise(
            self.sequences, config.starvation, config.scheduler.max_running, lambda: self.slot_table.capacity
        )
        self._heartbeat = PromptHeartbeat(self.report, config.reports.interval_s, config.reports.after_change_s)
        self._absent: dict[Address, int] = {}
        self._absences = 0
        self._fenced = (self, *engine_parts, admission, self._host_cache_events, *self.migration.parts)
        adoption = SequenceAdoption(self.sequences, self.lifecycle, finished_answers)
        self._handlers = handlers_of(
            self,
            admission,
            adoption,
            self._host_cache_events,
            engine_client,
            layer_changes,
            recovery,
            *self.migration.parts,
            self.migration.peer_copies,
            self._heartbeat,
        )
        self._unchanging = (EngineProgress, ReportDue)

    def __repr__(self) -> str:
        return f"{self.lifecycle.slot_table!r} {self.sequences!r} [outstanding steps: {self.steps.outstanding}]"

    @property
    def slot_table(self) -> SlotTable:
        """The slot table of the KV cache: which of the current engine's slots are whose."""
        return self.lifecycle.slot_table

    @property
    def group_order(self) -> GroupOrder | None:
        """The global manager's order that the instance follows; None before the first."""
        return self._group_orders.current

    @property
    def plan(self) -> tuple[int, int]:
        """(epoch, plan version) of that order; zeros before the first."""
        return self._group_orders.version

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """See `dunlin.effects.Core`. What this core has no use for is ignored."""
        handler = self._handlers.get(type(message))
        if handler is None or (sender.role == "engine" and self._engine_client.is_stale(sender)):
            return []
        self.sequences.now_s = now_s
        effects = handler(now_s, sender, message)
        if isinstance(message, self._unchanging):
            return effects
        effects += self.migration.advance()
        effects += self.layer_changes.advance()
        if self._engine_client.ready is not None:
            effects += self._sequence_rise.raise_starved(now_s)
            effects += self._scheduler.schedule(now_s) if self.layer_changes.may_compute else []
            if self.checkpointer.is_on:
                effects += self.checkpointer.schedule_copy(now_s)
        return effects + self._heartbeat.changed(now_s)

    def report(self) -> InstanceReport:
        """The report of this instance."""
        return build_report(
            self._model,
            self._engine_client,
            self.recovery,
            self.sequences,
            self.lifecycle,
            self.steps,
            self.host_cache,
            self._count_stale(),
            {
                **self._group_orders.report_fields(),
                **self.migration.report_fields(),
                **self.checkpointer.report_fields(),
                **self._scheduler.report_fields(),
                **self._sequence_rise.report_fields(),
            },
        )

    def _count_stale(self) -> int:
        total = 0
        for part in self._fenced:
            total += part.stale_total
        return total

    # --- the manager, the engine and the host tier ---

    @handles
    def _on_order(self, now_s: float, sender: Address, order: GroupOrder) -> list[Effect]:
        return [*self._group_orders.apply(sender, order), *self._heartbeat.report_now(now_s)]

    @handles
    def _on_engine_ready(self, now_s: float, sender: Address, ready: EngineReady) -> list[Effect]:
        self.migration.on_engine_ready(ready)
        self._composer.on_layers_changed(ready.layout)
        return [*self._engine_client.on_engine_ready(ready), *self._heartbeat.report_now(now_s)]

    @handles
    def _on_tier(self, now_s: float, sender: Address, ready: TierReady) -> list[Effect]:
        if self.host_cache.is_superseded(sender):
            self.stale_total += 1
            return []
        known = self.host_cache.kvstore
        # A new kvstore may speak before the end of the old one's stream is seen.
        lost = self._on_gone(now_s, known, Gone("another kvstore")) if known not in (None, sender) else []
        return [*lost, *self.host_cache.connect(sender, ready)]

    def _engine_lost(self, now_s: float, reason: str) -> list[Effect]:
        if self._engine_client.ready is None:
            return []
        self._composer.clear()
        return [
            *self.migration.on_engine_lost(),
            *self._engine_client.on_engine_lost(reason),
            *self._heartbeat.report_now(now_s),
        ]

    def _restore(self) -> list[Effect]:
        return self._scheduler.admit_restorable() if self.layer_changes.may_compute else []

    def _make_layer_changes(self, config: InstanceConfig) -> LayerChanges:
        return LayerChanges(
            self.engine,
            config.remap,
            self.sequences,
            self.lifecycle,
            self.steps,
            lambda: self._group_orders.epoch,
            lambda: len(self.migration.migrate_in),
            lambda: self.migration.peer_copies.met,
            self._on_layers_changed,
        )

    def _make_composer(self, config: InstanceConfig) -> BatchComposer:
        preempts_steps = INTERRUPT_POLICIES[config.interrupts.policy] in ARRIVAL_POLICIES
        return BatchComposer(config.scheduler, self.steps, self._misses.objectives, preempts_steps)

    def _make_scheduler(self, config: InstanceConfig) -> Scheduler:
        interrupts = INTERRUPT_POLICIES[config.interrupts.policy]
        return Scheduler(
            self.engine,
            config.scheduler,
            self.sequences,
            self.lifecycle,
            self.steps,
            self._composer,
            RowInterrupts(interrupts, self.sequences, self.steps, self._misses.objectives),
            VICTIM_POLICIES[config.preemption.victim_policy],
            self.migration.kv_handoffs.runnable,
        )

    def _on_layers_changed(self, ready: EngineReady) -> None:
        self._engine_client.on_layers_changed(ready)
        self.host_cache.on_layers_changed(ready)
        self.migration.on_layers_changed(ready)
        self._composer.on_layers_changed(ready.layout)

    @handles
    def _on_unsupported(self, now_s: float, sender: Address, message: Unsupported) -> list[Effect]:
        if message.what == "MapHost":
            return self._host_cache_events.on_memory_unmapped(now_s)
        if message.what != "Interrupt" and self.host_cache.is_pending_move(message.ticket):
            failed = TransferDone(message.ticket, TransferStatus.FAILED, detail=message.detail)
            return self._host_cache_events.on_move_done(now_s, sender, failed)
        return self._engine_client.on_unsupported(now_s, sender, message)

    # --- streams and timers ---

    @handles
    def _on_joined(self, now_s: float, sender: Address, message: Joined) -> list[Effect]:
        self._absent.pop(sender, None)
        if sender.role == "monitor":
            return self._heartbeat.joined(now_s, sender)
        return self.migration.on_peer_joined(sender)

    @handles
    def _on_gone(self, now_s: float, sender: Address, message: Gone) -> list[Effect]:
        self._heartbeat.gone(sender)
        effects = self.migration.on_peer_gone(sender)
        if sender.role == "engine":
            self._engine_client.on_stream_ended()
            return self._engine_lost(now_s, f"engine gone: {message.reason}")
        if sender.role == "kvstore":
            return [*effects, *self._host_cache_events.on_kvstore_lost(now_s, sender)]
        if sender.role == "dispatcher" and self.sequences.by_dispatcher(sender):
            self._absences += 1
            self._absent[sender] = self._absences
            effects.append(After(self._orphan_grace_s, DispatcherGraceOver(sender, self._absences)))
        return effects

    @handles
    def _on_dispatcher_grace_over(self, now_s: float, sender: Address, due: DispatcherGraceOver) -> list[Effect]:
        if self._absent.get(due.dispatcher) != due.absence:
            return []
        del self._absent[due.dispatcher]
        effects: list[Effect] = []
        for sequence in self.sequences.by_dispatcher(due.dispatcher):
            effects += self.lifecycle.stop(sequence)
        return effects
