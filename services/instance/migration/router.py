"""Sequences that move between instances: joins those who know of it, on both sides of a move.

Owns nothing but its parts: who leaves (`departures.py`), who arrives (`arrivals.py`), what the manager has this
instance give away (`sheds.py`), and who leaves because others decode (`handovers.py`).
"""

from typing import Any

from dunlin.effects import Address, Effect
from dunlin.messages.dispatch import Place
from dunlin.messages.types import GroupRole
from dunlin.policies.handoff import HandoffPolicy
from services.instance.config import KvHandoffConfig, MigrationConfig, SchedulerConfig
from services.instance.engine.client import EngineClient
from services.instance.kv.host_cache import HostCacheClient
from services.instance.migration.evacuation import Evacuations
from services.instance.migration.kv_handoff import HandoffLimits, KvHandoffs
from services.instance.migration.kv_transfer import KvExport
from services.instance.migration.migrate_in import MigrateIn, TargetState
from services.instance.migration.migrate_out import MigrateOut
from services.instance.migration.outgoing import MigrationLimits, MigrationSource
from services.instance.scheduling.group_orders import GroupOrders
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.sequence.table import Sequence, SequenceState, SequenceTable


class MigrationRouter:
    """This instance's part in moves."""

    def __init__(
        self,
        config: MigrationConfig,
        kv_handoff: KvHandoffConfig,
        scheduler: SchedulerConfig,
        sequences: SequenceTable,
        lives: SequenceLifecycle,
        tier: HostCacheClient,
        engine_side: EngineClient,
        orders: GroupOrders,
        handover: HandoffPolicy,
    ) -> None:
        patience = MigrationLimits(config.stage_timeout_s, config.tail_tokens)
        self.migrate_out = MigrateOut(sequences, lives, KvExport(tier), patience, self._source)
        self.migrate_in = MigrateIn(lives, tier, self._target_state, config.max_incoming, config.reservation_s)
        self.evacuations = Evacuations(sequences, self.migrate_out, orders, config.max_outgoing)
        limits = HandoffLimits(
            kv_handoff.max_concurrent, kv_handoff.max_hold_s, kv_handoff.refusal_pause_s, config.tail_tokens
        )
        self.kv_handoffs = KvHandoffs(sequences, self.migrate_out, handover, limits, orders, lambda: tier.usable)
        self._scheduler = scheduler
        self._sequences = sequences
        self._engine_client = engine_side
        self._lifecycle = lives
        self._group_orders = orders
        self._host_cache = tier

    @property
    def parts(self) -> tuple[MigrateOut, MigrateIn, Evacuations, KvHandoffs]:
        """Those who know, each with its own handlers and its own count of what came too late."""
        return self.migrate_out, self.migrate_in, self.evacuations, self.kv_handoffs

    @property
    def draining(self) -> bool:
        """Whether this instance takes nothing new."""
        return self.evacuations.draining

    def is_recall(self, older: Sequence, place: Place) -> bool:
        """Whether this attempt only says that one that was about to leave should go on here."""
        return older.state is SequenceState.LEAVING and older.in_steps == 0 and list(place.tokens) == older.tokens

    def advance(self) -> list[Effect]:
        """After every change: go on with those who leave, then begin with others."""
        effects = self.migrate_out.advance() if len(self.migrate_out) else []
        return effects + self.evacuations.advance() + self.kv_handoffs.start_handoffs()

    def on_peer_joined(self, peer: Address) -> list[Effect]:
        """A stream is open."""
        return self.migrate_out.on_peer_joined(peer) if peer.role == "instance" else []

    def on_peer_gone(self, peer: Address) -> list[Effect]:
        """A stream ended."""
        if peer == self._host_cache.kvstore:
            self.migrate_in.on_host_cache_lost()
        return self.migrate_out.on_peer_gone(peer)

    def on_engine_lost(self) -> list[Effect]:
        """The slab is lost, and with it the rooms in it."""
        return self.migrate_in.on_engine_lost()

    def report_fields(self) -> dict[str, Any]:
        """What a report says of what moves."""
        return {
            "draining": self.evacuations.draining,
            "leaving": len(self.migrate_out) + self.evacuations.waiting,
            "arriving": len(self.migrate_in),
            "migrations_total": self.migrate_out.moved_total,
            "migrations_failed_total": self.migrate_out.failed_total,
            "migrated_tokens_total": self.migrate_out.moved_tokens_total,
            "arrivals_total": self.migrate_in.completed_total,
        }

    def _source(self) -> MigrationSource | None:
        ready = self._engine_client.ready
        return None if ready is None else MigrationSource(ready, *self._group_orders.version)

    def _target_state(self) -> TargetState:
        refuses = "it is being emptied" if self.evacuations.draining else ""
        if self._group_orders.current is None:
            refuses = "no order of the global manager has come"
        if self._group_orders.role is not GroupRole.DECODE:
            return TargetState(self._engine_client.ready, self._group_orders.epoch, refuses)
        return TargetState(
            self._engine_client.ready, self._group_orders.epoch, refuses or self._full_reason(), self._headroom()
        )

    def _full_reason(self) -> str:
        """Why a decode instance takes nothing over now; it is asked all the time, and must stay able to go on."""
        if self._sequences.waiting_count:
            return "others wait for slots"
        running = len(self._sequences) + len(self.migrate_in)
        return f"{running} sequences are enough" if running >= self._scheduler.max_running else ""

    def _headroom(self) -> int:
        """Slots that those that run will need soon."""
        ahead = len(self._sequences) * self._scheduler.allocate_ahead_tokens
        return min(ahead // 2, self._lifecycle.slot_table.capacity // 8)
