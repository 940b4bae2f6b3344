"""Builds the parts of an instance's core and joins them. Takes no decision and handles no message."""

from typing import Any

from dunlin.effects import Address, Effect
from dunlin.messages.engine import EngineReady
from dunlin.messages.fleet import InstanceReport
from dunlin.policies.handoff import HANDOFF_POLICIES
from dunlin.policies.interrupt import ARRIVAL_POLICIES, INTERRUPT_POLICIES
from dunlin.policies.overtake import OVERTAKE_POLICIES
from dunlin.policies.preemption import PREEMPTION_MODES
from dunlin.policies.victim import VICTIM_POLICIES
from services.instance.admission import AttemptAdmission
from services.instance.adoption import SequenceAdoption
from services.instance.checkpoint.checkpointer import Checkpointer
from services.instance.checkpoint.claims import RegionClaims
from services.instance.config import InstanceConfig
from services.instance.engine.client import EngineClient
from services.instance.engine.layer_changes import LayerChanges
from services.instance.engine.met_engines import MetEngines
from services.instance.engine.recovery import EngineRecovery
from services.instance.group.guest_steps import GuestSteps
from services.instance.group.guests import GuestTable
from services.instance.group.leading.exchange_tokens import ExchangeTokens
from services.instance.group.leading.leader import GroupLeader
from services.instance.group.member import GroupMember
from services.instance.group.own_turns import OwnTurns
from services.instance.host_cache_events import HostCacheEvents
from services.instance.kv.host_cache import HostCacheClient
from services.instance.migration.router import MigrationRouter
from services.instance.objectives.misses import ObjectiveMisses
from services.instance.reports import build_report
from services.instance.scheduling.group_orders import GroupOrders
from services.instance.scheduling.interrupts import RowInterrupts
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.scheduling.overtakers import Overtakers
from services.instance.scheduling.scheduler import Scheduler
from services.instance.scheduling.sequence_rise import SequenceRise
from services.instance.scheduling.step_forecast import make_forecast
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.scheduling.step_times import KnownStepTimes
from services.instance.scheduling.steps import BatchComposer
from services.instance.sequence.finished_answers import FinishedAnswers
from services.instance.sequence.table import SequenceTable


class InstanceParts:
    """The parts of one core. `with_handlers` take messages themselves; each of `_fenced` has its own `stale_total`.

    `known`: as `InstanceCore`'s.
    """

    def __init__(self, address: Address, config: InstanceConfig, known: KnownStepTimes = None) -> None:
        self._engine = engine = Address("engine", address.name)
        self._config = config
        self.sequences = SequenceTable()
        self.host_cache = HostCacheClient(engine, config.host_tier.answer_timeout_s)
        self.steps = StepLedger(engine, self.sequences, make_forecast(config, known))
        mode, keeps = PREEMPTION_MODES[config.preemption.mode], config.checkpoint.engine_share > 0
        self.lifecycle = SequenceLifecycle(engine, self.sequences, self.host_cache, self.steps, mode, keeps=keeps)
        shared = (self.sequences, self.lifecycle, self.host_cache)
        parts = (self.sequences, self.lifecycle, self.steps, self.host_cache)
        self.checkpointer = Checkpointer(config.checkpoint, *shared)
        self.group_orders = GroupOrders(address, lambda: self.layer_changes.is_changing)
        self.met_engines = MetEngines(engine)
        self.recovery = EngineRecovery(engine, config.recovery, config.kv_cache, config.scheduler.max_running, *parts)
        self.layer_changes = self._make_layer_changes()
        self._misses = ObjectiveMisses(config.objectives, config.scheduler.max_running)
        keep = config.retention
        finished_answers = FinishedAnswers(keep.orphan_grace_s, keep.max_answers, keep.max_answer_tokens)
        self.engine_client = self._make_engine_client(finished_answers)
        handoff_policy = HANDOFF_POLICIES[config.kv_handoff.policy]
        self.migration = MigrationRouter(
            config.migration,
            config.kv_handoff,
            config.scheduler,
            *parts,
            self.engine_client,
            self.group_orders,
            handoff_policy,
            self.met_engines,
        )
        claims = RegionClaims(self.host_cache)
        migrates = (self.migration.migrate_in, self.migration.migrate_out)
        self.host_cache_events = HostCacheEvents(
            self.host_cache, self.lifecycle, self.checkpointer, claims, *migrates, self._restore
        )
        self.composer = self._make_composer()
        self.scheduler = self._make_scheduler()
        self.sequence_rise = SequenceRise(
            self.sequences,
            config.starvation,
            config.scheduler.max_running,
            lambda: self.lifecycle.slot_table.capacity,
        )
        self.group_leader = self._make_leader(address, finished_answers)
        engine_parts = (self.engine_client, self.group_orders, self.layer_changes)
        admission = AttemptAdmission(
            config.scheduler, *parts[:3], self.migration, claims, *engine_parts, self.group_leader
        )
        adoption = SequenceAdoption(self.sequences, self.lifecycle, finished_answers, self.group_leader.on_reassigned)
        self.member = self._make_member()
        self._fenced = (
            *engine_parts,
            admission,
            self.group_leader,
            self.host_cache_events,
            *self.migration.parts,
            self.member,
        )
        self.with_handlers: tuple[Any, ...] = (
            admission,
            adoption,
            self.host_cache_events,
            self.engine_client,
            self.layer_changes,
            self.recovery,
            self.group_leader,
            *self.migration.parts,
            self.met_engines,
            self.member,
        )

    def report(self, model: str, stale_total: int) -> InstanceReport:
        """The instance's report; `stale_total` are the stale messages that no part counted."""
        for part in self._fenced:
            stale_total += part.stale_total
        return build_report(
            model,
            self.engine_client,
            self.recovery,
            self.sequences,
            self.lifecycle,
            self.steps,
            self.host_cache,
            stale_total,
            {
                **self.group_orders.report_fields(),
                **self.group_leader.report_fields(),
                **self.migration.report_fields(),
                **self.checkpointer.report_fields(),
                **self.scheduler.report_fields(),
                **self.sequence_rise.report_fields(),
                **self.member.report_fields(),
            },
        )

    def _steady_engine(self) -> EngineReady | None:
        return None if self.layer_changes.is_changing else self.engine_client.ready

    def _restore(self) -> list[Effect]:
        return self.scheduler.admit_restorable() if self.layer_changes.may_compute else []

    def _make_engine_client(self, finished_answers: FinishedAnswers) -> EngineClient:
        return EngineClient(
            self._engine,
            self._config.engine_watch,
            self.sequences,
            self.lifecycle,
            self.steps,
            self.host_cache,
            finished_answers,
            self.recovery,
            self.layer_changes,
            self._misses,
            lambda answer: self.member.on_step_answer(answer),
        )

    def _make_layer_changes(self) -> LayerChanges:
        return LayerChanges(
            self._engine,
            self._config.remap,
            self.sequences,
            self.lifecycle,
            self.steps,
            lambda: self.group_orders.epoch,
            lambda: len(self.migration.migrate_in),
            lambda: self.met_engines.met,
            self._on_layers_changed,
        )

    def _make_leader(self, address: Address, finished_answers: FinishedAnswers) -> GroupLeader:
        tokens = ExchangeTokens(self.lifecycle, finished_answers, self._misses)
        leading = (self._config.groups, self.sequences, self.lifecycle, tokens)
        overtake = OVERTAKE_POLICIES[self._config.scheduler.overtake_policy]
        asked = (lambda: self.steps.forecast.times, lambda: self.migration.draining)
        return GroupLeader(address, *leading, *asked, overtake)

    def _make_member(self) -> GroupMember:
        guests = GuestTable(self.lifecycle, self.migration.headroom)
        guest_steps = GuestSteps(self._engine, self.steps, guests, OwnTurns(self._config.groups.own_share))
        return GroupMember(self._engine, self.group_orders, self.met_engines, guest_steps, self._steady_engine)

    def _make_composer(self) -> BatchComposer:
        preempts_steps = INTERRUPT_POLICIES[self._config.interrupts.policy] in ARRIVAL_POLICIES
        return BatchComposer(
            self._config.scheduler, self.steps, self._misses.objectives, self._misses.allowance, preempts_steps
        )

    def _make_scheduler(self) -> Scheduler:
        interrupts = INTERRUPT_POLICIES[self._config.interrupts.policy]
        return Scheduler(
            self._engine,
            self._config.scheduler,
            self.sequences,
            self.lifecycle,
            self.steps,
            self.composer,
            RowInterrupts(interrupts, self.sequences, self.steps, self._misses.objectives),
            VICTIM_POLICIES[self._config.preemption.victim_policy],
            Overtakers(OVERTAKE_POLICIES[self._config.scheduler.overtake_policy], self.sequences, self.lifecycle),
            self.migration.kv_handoffs.runnable,
            self.migration.taken_rows,
        )

    def _on_layers_changed(self, ready: EngineReady) -> None:
        self.engine_client.on_layers_changed(ready)
        self.host_cache.on_layers_changed(ready)
        self.migration.on_layers_changed(ready)
        self.composer.on_layers_changed(ready.layout)
