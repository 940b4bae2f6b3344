"""Outgoing migrations: sequences that move to another instance while they run.

One small state machine per sequence: slots are reserved at the target; regions of the host tier are restored there
while the sequence decodes here; at a token boundary its row stops, the tail is copied and filled, and its dispatcher
gets `Ready`. A failure before that keeps the sequence here; afterwards the dispatcher's next attempt decides. Knows no
engine, no slot table, no other instance's load and no reason why a sequence was chosen.
"""

from collections.abc import Callable

from dunlin.cores.handlers import handles
from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.dispatch import Ready
from dunlin.messages.engine import TransferDone
from dunlin.messages.group import (
    DIALING,
    DialPeer,
    Fill,
    Filled,
    Release,
    ReservationLost,
    Reserve,
    Reserved,
    ReserveRefused,
    Written,
)
from dunlin.messages.pool import RegionsSent
from dunlin.messages.types import Figure, TransferStatus, Why
from services.instance.kv.tickets import PeerCopy
from services.instance.kv.whole_regions import all_layers
from services.instance.migration.kv_transfer import KvExport, KvTransfer
from services.instance.migration.outgoing import (
    MigrateOutTimeout,
    MigrationLimits,
    MigrationSource,
    MigrationStage,
    OnMigrationEnd,
    OutgoingMigration,
)
from services.instance.migration.peer_copies import PeerCopies
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable

SWITCHABLE_STATES = (SequenceState.RUNNING, SequenceState.PARKED, SequenceState.WAITING)
"""The states from which the row of a sequence can stop for good."""
NOT_COPIED = "its KV cannot be copied"


class MigrateOut:
    """Owns the outgoing migrations. The totals only grow; `stale_total` counts answers of ended migrations."""

    def __init__(
        self,
        sequences: SequenceTable,
        lifecycle: SequenceLifecycle,
        copies: KvExport,
        peer_copies: PeerCopies,
        patience: MigrationLimits,
        sender: Callable[[], MigrationSource | None],
    ) -> None:
        self.moved_total = 0
        self.failed_total = 0
        self.moved_tokens_total = 0
        self.stale_total = 0
        self._sequences = sequences
        self._lifecycle = lifecycle
        self._peer_copies = peer_copies
        self._kv_transfer = KvTransfer(copies, peer_copies, patience.tail_tokens)
        self._limits = patience
        self._source = sender
        self._migrations: dict[int, OutgoingMigration] = {}
        self._closing: dict[int, OutgoingMigration] = {}
        """Ended ones whose last copy the engine has not answered, by its ticket: the room is not released before."""
        self._reachable: dict[Address, None] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._migrations)

    def is_migrating(self, sequence: Sequence) -> bool:
        """Whether the sequence has an outgoing migration."""
        return any(migration.sequence is sequence for migration in self._migrations.values())

    def start(
        self,
        sequence: Sequence,
        target: Address,
        why: Why | None,
        ended: OnMigrationEnd,
        *,
        needs_kv: bool = False,
        pushes: bool = False,
    ) -> list[Effect]:
        """Start to migrate `sequence` to `target`; `needs_kv`: never without its KV, which `pushes` copies layer by
        layer while a step computes it.
        """
        self._numbers += 1
        migration = self._migrations[self._numbers] = OutgoingMigration(
            self._numbers, sequence, target, why, ended, needs_kv, pushes
        )
        if target in self._reachable:
            return self._reserve(migration)
        return [Send(DIALING, DialPeer(target)), *self._enter_stage(migration, MigrationStage.REACHING)]

    def advance(self) -> list[Effect]:
        """Advance each migration as far as the last change allows."""
        effects: list[Effect] = []
        for migration in list(self._migrations.values()):
            effects += self._advance_one(migration)
        return effects

    # --- messages of the target ---

    @handles
    def on_reserved(self, now_s: float, sender: Address, message: Reserved) -> list[Effect]:
        """The target reserved slots."""
        migration = self._find(sender, message.sequence)
        if migration is not None and migration.handle == message.handle:
            return []  # it is kept for longer, as it was asked for again
        if migration is None or migration.stage is not MigrationStage.RESERVING:
            self.stale_total += 1
            return [Send(sender, Release(message.handle))]
        migration.handle, migration.target_kvstore, migration.room = message.handle, message.keeper, message.room
        return self._enter_stage(migration, MigrationStage.COPYING)

    @handles
    def on_refused(self, now_s: float, sender: Address, message: ReserveRefused) -> list[Effect]:
        """The target refused the reservation."""
        migration = self._find(sender, message.sequence)
        if migration is None or migration.stage is not MigrationStage.RESERVING:
            self.stale_total += 1
            return []
        reason = message.why.rejected[0].reason if message.why and message.why.rejected else "no reason given"
        return self._abort(migration, f"{sender.name} refuses: {reason}")

    @handles
    def on_filled(self, now_s: float, sender: Address, message: Filled) -> list[Effect]:
        """The target filled KV up to a token."""
        migration = self._find_by_handle(sender, message.handle)
        if migration is None or migration.stage not in (MigrationStage.COPYING, MigrationStage.SWITCHING):
            self.stale_total += 1
            return []
        migration.filled = message.tokens
        migration.copying_stopped |= bool(message.detail)
        return self._enter_stage(migration, migration.stage)

    @handles
    def on_reservation_lost(self, now_s: float, sender: Address, message: ReservationLost) -> list[Effect]:
        """The target lost the reservation."""
        if any((one.target, one.handle) == (sender, message.handle) for one in self._closing.values()):
            return []  # `Release` follows the last copy
        migration = self._find_by_handle(sender, message.handle)
        if migration is None or migration.stage is MigrationStage.HANDED:
            self.stale_total += 1
            return [Send(sender, Release(message.handle))]  # nothing is copied into it: its slots are out of use
        migration.handle = migration.handle if migration.room is not None else 0
        return self._abort(migration, f"{sender.name} lost the room")

    def on_peer_copied(self, ticket: int, copy: PeerCopy, done: TransferDone) -> list[Effect]:
        """The engine has written a span into the target's slots, or could not."""
        ended = self._closing.pop(ticket, None)
        if ended is not None:
            ended.copy_ticket = 0
            return self._release(ended)
        migration = self._migrations.get(copy.migration)
        if migration is None or migration.copy_ticket != ticket:
            self.stale_total += 1
            return []
        migration.copy_ticket = 0
        push = migration.push
        if push is not None and push.ticket == ticket and (push.is_void or done.status is not TransferStatus.OK):
            return []  # what the row computes in the end is copied then
        if done.status is not TransferStatus.OK:
            if migration.offered:
                migration.copying_stopped = True
            else:
                migration.by_host_tier = True
            return []
        migration.offered = copy.region.stop
        written = Written(migration.handle, copy.region, done.checksum, copy.chain)
        return [Send(migration.target, written), *self._enter_stage(migration, migration.stage)]

    def on_engine_lost(self) -> list[Effect]:
        """No copy is answered any more; the engine that wrote is gone."""
        effects: list[Effect] = []
        for migration in self._closing.values():
            migration.copy_ticket = 0
            effects += self._release(migration)
        self._closing.clear()
        for migration in self._migrations.values():
            if migration.copy_ticket:
                migration.copy_ticket = 0
                migration.copying_stopped = True
        return effects

    def on_regions_sent(self, number: int, message: RegionsSent) -> list[Effect]:
        """The kvstore of the target's node has the regions up to a token."""
        migration = self._migrations.get(number)
        if migration is None or migration.stage not in (MigrationStage.COPYING, MigrationStage.SWITCHING):
            self.stale_total += 1
            return []
        migration.is_between_nodes = False
        if message.tokens <= migration.offered:
            migration.copying_stopped = True
            return []
        migration.offer_by_host_tier(message.tokens)
        return [Send(migration.target, Fill(migration.handle, migration.offered, (), migration.target_kvstore))]

    # --- streams and timers ---

    def on_peer_joined(self, peer: Address) -> list[Effect]:
        """A stream to another instance is open."""
        self._reachable[peer] = None
        effects: list[Effect] = []
        for migration in self._with_target(peer):
            if migration.stage is MigrationStage.REACHING:
                effects += self._reserve(migration)
        return effects

    def on_peer_gone(self, peer: Address) -> list[Effect]:
        """A target or a dispatcher is gone. A migration that the dispatcher knows of waits for its next attempt."""
        self._reachable.pop(peer, None)
        effects: list[Effect] = []
        for migration in self._with_target(peer):
            migration.handle = 0
            if migration.stage is not MigrationStage.HANDED:
                effects += self._abort(migration, f"{peer.name} is gone")
        for migration in list(self._migrations.values()):
            if migration.sequence.dispatcher == peer and migration.stage in (
                MigrationStage.SWITCHING,
                MigrationStage.HANDED,
            ):
                effects += self._abort(migration, f"its dispatcher {peer.name} is gone")
        return effects

    @handles
    def on_timeout(self, now_s: float, sender: Address, message: MigrateOutTimeout) -> list[Effect]:
        """A stage lasts too long."""
        migration = self._migrations.get(message.number)
        if migration is None or migration.counter != message.counter:
            return []
        has_room = migration.stage in (MigrationStage.COPYING, MigrationStage.SWITCHING)
        if has_room and migration.awaits_prompt:
            return self._keep_room(migration)
        if has_room and not migration.copying_stopped:
            migration.copying_stopped = True  # it migrates all the same: the target recomputes what is missing
            return self._enter_stage(migration, migration.stage)
        migration.is_target_silent = migration.stage in (MigrationStage.REACHING, MigrationStage.RESERVING)
        return self._abort(migration, f"{migration.stage.value} after {self._limits.stage_s:g} s")

    def cancel(self, sequence: Sequence) -> list[Effect]:
        """The dispatcher placed the sequence here again: abort its migration."""
        for migration in list(self._migrations.values()):
            if migration.sequence is sequence:
                return self._abort(migration, "its dispatcher placed it here again")
        return []

    # --- the state machine ---

    def _reserve(self, migration: OutgoingMigration) -> list[Effect]:
        source = self._source()
        if source is None:
            return self._abort(migration, "no engine runs here")
        reserve = Send(migration.target, self._reservation(migration, source))
        return [reserve, *self._enter_stage(migration, MigrationStage.RESERVING)]

    def _keep_room(self, migration: OutgoingMigration) -> list[Effect]:
        """The prompt takes longer than a stage may: ask for the same room again, so that the target keeps it."""
        source = self._source()
        if source is None:
            return self._abort(migration, "no engine runs here")
        reserve = Send(migration.target, self._reservation(migration, source))
        return [reserve, *self._enter_stage(migration, migration.stage)]

    def _reservation(self, migration: OutgoingMigration, sender: MigrationSource) -> Reserve:
        sequence = migration.sequence
        place = sequence.place
        return Reserve(
            migration.number,
            len(sequence.tokens) + self._limits.tail_tokens,
            0,
            len(all_layers(sender.ready)),
            sender.epoch,
            sender.plan_version,
            migration.why,
            sequence.public_key,
            sequence.dispatcher,
            place.request,
            place.attempt,
            sequence.max_length,
            sender.ready.weights_digest,
            sender.ready.kv_dtype,
        )

    def _advance_one(self, migration: OutgoingMigration) -> list[Effect]:
        sequence = migration.sequence
        if sequence.state in (SequenceState.ENDING, SequenceState.ENDED):
            return self._complete(migration)
        if migration.stage is MigrationStage.HANDED and sequence.dispatcher != migration.notified:
            return self._abort(migration, f"{sequence.dispatcher.name} goes on with it here")
        effects = self._peer_copies.withdraw_push(migration)
        if migration.stage is MigrationStage.COPYING:
            return effects + self._copy(migration)
        if migration.stage is MigrationStage.SWITCHING and sequence.in_steps == 0:
            return effects + self._announce_ready(migration)
        if migration.stage is MigrationStage.SWITCHING:
            return effects + self._kv_transfer.push(migration)
        return effects

    def _copy(self, migration: OutgoingMigration) -> list[Effect]:
        """Copy beside the steps of the sequence; stop its row once little is missing at the target."""
        effects = self._kv_transfer.transfer(migration)
        sequence = migration.sequence
        if sequence.state not in SWITCHABLE_STATES or self._kv_transfer.is_behind(migration):
            return effects
        effects += self._lifecycle.unpark(sequence)
        self._sequences.transition(sequence, SequenceState.LEAVING)
        effects += self._enter_stage(migration, MigrationStage.SWITCHING)
        return effects + (self._announce_ready(migration) if sequence.in_steps == 0 else [])

    def _announce_ready(self, migration: OutgoingMigration) -> list[Effect]:
        """No step names the sequence: once the rest is copied, send `Ready` for the dispatcher's next attempt."""
        effects = self._kv_transfer.transfer(migration)
        if migration.copy_ticket:
            return effects  # it would write into slots that the next attempt computes into
        if self._kv_transfer.must_keep_here(migration):
            return effects + self._abort(migration, NOT_COPIED)
        if self._kv_transfer.can_copy(migration) and migration.filled < migration.wanted_tokens:
            return effects
        sequence, tokens = migration.sequence, migration.filled
        figures = (
            Figure("tokens", tokens),
            Figure("length", len(sequence.tokens)),
            Figure("recomputed_tokens", max(0, migration.wanted_tokens - tokens)),
        )
        rejected = migration.why.rejected if migration.why is not None else ()
        policy = migration.why.policy if migration.why is not None else "migration"
        why = Why(policy, f"move to {migration.target.name}", figures, rejected)
        place = sequence.place
        ready = Ready(place.request, place.attempt, migration.target, migration.handle, tokens, why)
        migration.notified = sequence.dispatcher
        return [*effects, Send(sequence.dispatcher, ready), *self._enter_stage(migration, MigrationStage.HANDED)]

    # --- how it ends ---

    def _complete(self, migration: OutgoingMigration) -> list[Effect]:
        """End the migration with its sequence: the next attempt runs elsewhere, or the request is over."""
        del self._migrations[migration.number]
        moved = migration.stage is MigrationStage.HANDED
        self.moved_total += moved
        self.moved_tokens_total += migration.filled if moved else 0
        migration.on_end(migration, "" if moved else "it ended first")
        return self._release(migration)

    def _abort(self, migration: OutgoingMigration, reason: str) -> list[Effect]:
        """End the migration; the sequence continues here."""
        del self._migrations[migration.number]
        self.failed_total += 1
        effects: list[Effect] = []
        if migration.sequence.state is SequenceState.LEAVING:
            self._lifecycle.resume(migration.sequence)
        migration.on_end(migration, reason)
        return effects + self._release(migration)

    def _release(self, migration: OutgoingMigration) -> list[Effect]:
        """Release the target's reservation, once no copy writes there; if the next attempt took it over, the target
        ignores the old handle.
        """
        if migration.copy_ticket:
            ticket = migration.copy_ticket
            self._closing[ticket] = migration
            return [self._peer_copies.cancel(ticket)]
        return [Send(migration.target, Release(migration.handle))] if migration.handle else []

    def _enter_stage(self, migration: OutgoingMigration, stage: MigrationStage) -> list[Effect]:
        migration.stage = stage
        migration.counter += 1
        return [After(self._limits.stage_s, MigrateOutTimeout(migration.number, migration.counter))]

    def _find(self, target: Address, number: int) -> OutgoingMigration | None:
        migration = self._migrations.get(number)
        return migration if migration is not None and migration.target == target else None

    def _find_by_handle(self, target: Address, handle: int) -> OutgoingMigration | None:
        for migration in self._with_target(target):
            if migration.handle == handle:
                return migration
        return None

    def _with_target(self, target: Address) -> list[OutgoingMigration]:
        return [migration for migration in self._migrations.values() if migration.target == target]
