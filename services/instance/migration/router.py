"""Migrations of sequences between instances: builds and joins the parts for both directions.

Owns only its parts: outgoing migrations (`migrate_out.py`), incoming ones (`migrate_in.py`), the evacuations that the
manager orders (`evacuation.py`), and the hand-offs from prefill to decode instances (`kv_handoff.py`).
"""

from typing import Any

from dunlin.effects import Address, Effect
from dunlin.messages.dispatch import Place
from dunlin.messages.engine import EngineReady
from dunlin.messages.types import GroupRole
from dunlin.policies.handoff import HandoffPolicy
from services.instance.config import SchedulerConfig
from services.instance.engine.client import EngineClient
from services.instance.engine.met_engines import MetEngines
from services.instance.kv.config import KvHandoffConfig, MigrationConfig
from services.instance.kv.host_cache import HostCacheClient
from services.instance.migration.evacuation import Evacuations
from services.instance.migration.kv_handoff import HandoffLimits, KvHandoffs
from services.instance.migration.kv_transfer import KvExport
from services.instance.migration.migrate_in import MigrateIn, TargetState
from services.instance.migration.migrate_out import MigrateOut
from services.instance.migration.outgoing import MigrationLimits, MigrationSource
from services.instance.migration.peer_copies import PeerCopies
from services.instance.scheduling.group_orders import GroupOrders
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable


class MigrationRouter:
    """Routes events to the parts, and joins their effects and report fields."""

    def __init__(
        self,
        config: MigrationConfig,
        kv_handoff: KvHandoffConfig,
        scheduler: SchedulerConfig,
        sequences: SequenceTable,
        lifecycle: SequenceLifecycle,
        steps: StepLedger,
        host_cache: HostCacheClient,
        engine_client: EngineClient,
        group_orders: GroupOrders,
        handoff_policy: HandoffPolicy,
        met_engines: MetEngines,
    ) -> None:
        patience = MigrationLimits(config.stage_timeout_s, config.tail_tokens)
        self.peer_copies = PeerCopies(host_cache.engine, lifecycle, host_cache, met_engines, steps)
        export = KvExport(host_cache)
        self.migrate_out = MigrateOut(sequences, lifecycle, export, self.peer_copies, patience, self._source)
        self.migrate_in = MigrateIn(
            lifecycle, host_cache, self.peer_copies, self._target_state, config.max_incoming, config.reservation_s
        )
        self.evacuations = Evacuations(sequences, self.migrate_out, group_orders, config.max_outgoing)
        limits = HandoffLimits(
            kv_handoff.max_concurrent,
            kv_handoff.max_hold_s,
            kv_handoff.refusal_pause_s,
            config.tail_tokens,
            kv_handoff.layer_by_layer,
        )
        self.kv_handoffs = KvHandoffs(
            sequences,
            self.migrate_out,
            handoff_policy,
            limits,
            group_orders,
            lambda: host_cache.usable or self.peer_copies.is_on,
        )
        self._scheduler = scheduler
        self._sequences = sequences
        self._engine_client = engine_client
        self._lifecycle = lifecycle
        self._group_orders = group_orders
        self._host_cache = host_cache

    @property
    def parts(self) -> tuple[MigrateOut, MigrateIn, Evacuations, KvHandoffs]:
        """The parts, each with its own handlers and its own `stale_total`."""
        return self.migrate_out, self.migrate_in, self.evacuations, self.kv_handoffs

    @property
    def draining(self) -> bool:
        """Whether this instance accepts no new attempts."""
        return self.evacuations.draining

    def taken_rows(self) -> int:
        """How many sequences have rows, will have them again, or were promised one when they arrive: `max_running`
        bounds them.
        """
        return self._sequences.taken_rows + self.migrate_in.promised_rows

    def is_recall(self, older: Sequence, place: Place) -> bool:
        """Whether this attempt only asks to abort the outgoing migration of its request."""
        return older.state is SequenceState.LEAVING and older.in_steps == 0 and list(place.tokens) == older.tokens

    def advance(self) -> list[Effect]:
        """After every change: advance the outgoing migrations, then start what the manager ordered."""
        effects = self.migrate_out.advance() if len(self.migrate_out) else []
        return effects + self.evacuations.advance()

    def start_handoffs(self) -> list[Effect]:
        """After every change, once steps are composed: room is asked for as soon as a step computes a prompt's end."""
        return self.kv_handoffs.start_handoffs()

    def on_peer_joined(self, peer: Address) -> list[Effect]:
        """A stream is open."""
        return self.migrate_out.on_peer_joined(peer) if peer.role == "instance" else []

    def on_peer_gone(self, peer: Address) -> list[Effect]:
        """A stream ended."""
        if peer == self._host_cache.kvstore:
            self.migrate_in.on_host_cache_lost()
        return self.migrate_out.on_peer_gone(peer) + self.migrate_in.on_source_gone(peer)

    def on_engine_ready(self, ready: EngineReady) -> None:
        """A new engine can take steps."""
        self.peer_copies.on_engine_ready(ready)

    def on_layers_changed(self, ready: EngineReady) -> None:
        """The engine has other layers or slots."""
        self.peer_copies.on_engine_ready(ready)

    def on_engine_lost(self) -> list[Effect]:
        """The KV cache is lost, and with it the reserved slots and the copies under way."""
        effects = self.migrate_out.on_engine_lost() + self.migrate_in.on_engine_lost()
        self.peer_copies.on_engine_lost()
        return effects

    def report_fields(self) -> dict[str, Any]:
        """The migration fields of a report."""
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
        headroom = 0
        if self._group_orders.role is GroupRole.DECODE:  # its running sequences need room to continue
            refuses = refuses or ("others wait for slots" if self._sequences.waiting_count else "")
            headroom = self.headroom()
        refuses = refuses or self._full_reason()
        return TargetState(self._engine_client.ready, self._group_orders.epoch, refuses, headroom)

    def _full_reason(self) -> str:
        """Why no other sequence may run here now, or the empty text."""
        running = self.taken_rows()
        return f"{running} sequences are enough" if running >= self._scheduler.max_running else ""

    def headroom(self) -> int:
        """Slots that the running sequences will need soon."""
        ahead = self._sequences.own_count * self._scheduler.allocate_ahead_tokens
        return min(ahead // 2, self._lifecycle.slot_table.capacity // 8)
