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
from services.instance.config import InstanceConfig
from services.instance.group.leading.led_group import LedGroup
from services.instance.group.loopback import Loopback
from services.instance.group.member import GroupMember
from services.instance.kv.slot_table import SlotTable
from services.instance.scheduling.step_times import KnownStepTimes
from services.instance.wiring import InstanceParts


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
        self.address = address
        self.engine = Address("engine", address.name)
        self._parts = parts = InstanceParts(address, config, known)
        self.sequences = parts.sequences
        self.host_cache = parts.host_cache
        self.steps = parts.steps
        self.lifecycle = parts.lifecycle
        self.checkpointer = parts.checkpointer
        self.recovery = parts.recovery
        self.layer_changes = parts.layer_changes
        self.migration = parts.migration
        self.stale_total = 0
        self._engine_client = parts.engine_client
        self._scheduler = parts.scheduler
        self._composer = parts.composer
        self._is_member = self._leads_group = False
        self._model = config.model
        self._orphan_grace_s = config.retention.orphan_grace_s
        self._heartbeat = PromptHeartbeat(self.report, config.reports.interval_s, config.reports.after_change_s)
        self._absent: dict[Address, int] = {}
        self._absences = 0
        self._handlers = handlers_of(self, *parts.with_handlers, self._heartbeat)
        self._unchanging = (EngineProgress, ReportDue)
        self._loopback = Loopback(address, self._take)

    def __repr__(self) -> str:
        return f"{self.lifecycle.slot_table!r} {self.sequences!r} [outstanding steps: {self.steps.outstanding}]"

    @property
    def slot_table(self) -> SlotTable:
        """The slot table of the KV cache: which of the current engine's slots are whose."""
        return self.lifecycle.slot_table

    @property
    def group_order(self) -> GroupOrder | None:
        """The global manager's order that the instance follows; None before the first."""
        return self._parts.group_orders.current

    @property
    def plan(self) -> tuple[int, int]:
        """(epoch, plan version) of that order; zeros before the first."""
        return self._parts.group_orders.version

    @property
    def led_group(self) -> LedGroup | None:
        """The elastic group that the instance leads; None: it leads none."""
        return self._parts.group_leader.led

    @property
    def group_member(self) -> GroupMember:
        """The instance as a member of its elastic group, also of one that it leads."""
        return self._parts.member

    def receive(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        """See `dunlin.effects.Core`. What this core has no use for is ignored."""
        if self._leads_group or isinstance(message, GroupOrder):
            return self._loopback.receive(now_s, sender, message)
        return self._take(now_s, sender, message)

    def _take(self, now_s: float, sender: Address, message: Message) -> list[Effect]:
        handler = self._handlers.get(type(message))
        if handler is None or (sender.role == "engine" and self._engine_client.is_stale(sender)):
            return []
        self.sequences.now_s = now_s
        effects = handler(now_s, sender, message)
        if isinstance(message, self._unchanging):
            return effects
        effects += self.migration.advance()
        if self._is_member:
            effects += self._parts.member.advance(now_s)
        effects += self.layer_changes.advance()
        if self._leads_group:
            effects += self._parts.group_leader.settle(now_s)
        if self._engine_client.ready is not None:  # what rises now goes before others in its group, too
            effects += self._parts.sequence_rise.raise_starved(now_s)
        if self._leads_group:
            effects += self._parts.group_leader.advance(now_s)
        if self._engine_client.ready is not None:
            effects += self._scheduler.schedule(now_s) if self.layer_changes.may_compute else []
            if self.checkpointer.is_on:
                effects += self.checkpointer.schedule_copy(now_s)
        effects += self.migration.start_handoffs()
        return effects + self._heartbeat.changed(now_s)

    def report(self) -> InstanceReport:
        """The report of this instance."""
        return self._parts.report(self._model, self.stale_total)

    # --- the manager, the engine and the host tier ---

    @handles
    def _on_order(self, now_s: float, sender: Address, order: GroupOrder) -> list[Effect]:
        effects = self._parts.group_orders.apply(sender, order)
        if self._parts.group_orders.current is order:
            effects += self._parts.member.on_order(order) + self._parts.group_leader.on_order(sender, order)
            self._is_member = self._parts.member.has_leader
            self._leads_group = self._parts.group_leader.led is not None
        return effects + self._heartbeat.report_now(now_s)

    @handles
    def _on_engine_ready(self, now_s: float, sender: Address, ready: EngineReady) -> list[Effect]:
        self._parts.met_engines.on_engine_ready(ready)
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
        self._parts.met_engines.on_engine_lost()
        return [
            *self._parts.member.on_engine_lost(self.recovery.may_blame_requests),
            *self.migration.on_engine_lost(),
            *self._engine_client.on_engine_lost(reason),
            *self._heartbeat.report_now(now_s),
        ]

    @handles
    def _on_unsupported(self, now_s: float, sender: Address, message: Unsupported) -> list[Effect]:
        if message.what == "MapHost":
            return self._parts.host_cache_events.on_memory_unmapped(now_s)
        if message.what != "Interrupt" and self.host_cache.is_pending_move(message.ticket):
            failed = TransferDone(message.ticket, TransferStatus.FAILED, detail=message.detail)
            return self._parts.host_cache_events.on_move_done(now_s, sender, failed)
        return self._engine_client.on_unsupported(now_s, sender, message)

    # --- streams and timers ---

    @handles
    def _on_joined(self, now_s: float, sender: Address, message: Joined) -> list[Effect]:
        self._absent.pop(sender, None)
        if sender.role == "monitor":
            return self._heartbeat.joined(now_s, sender)
        if sender.role == "instance":
            return [*self._parts.group_leader.on_joined(sender), *self.migration.on_peer_joined(sender)]
        return self.migration.on_peer_joined(sender)

    @handles
    def _on_gone(self, now_s: float, sender: Address, message: Gone) -> list[Effect]:
        self._heartbeat.gone(sender)
        effects = [*self._parts.member.on_gone(sender), *self.migration.on_peer_gone(sender)]
        if sender.role == "instance":
            effects += self._parts.group_leader.on_gone(sender)
        if sender.role == "engine":
            self._engine_client.on_stream_ended()
            return self._engine_lost(now_s, f"engine gone: {message.reason}")
        if sender.role == "kvstore":
            return [*effects, *self._parts.host_cache_events.on_kvstore_lost(now_s, sender)]
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
