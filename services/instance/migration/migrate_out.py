"""The source's side of migrations: sequences that leave for another instance while they run.

One small machine per sequence: room is reserved at the target; what the host tier keeps of it is restored there while
it decodes here; at a token boundary its row stops, the tail is copied and filled, and its dispatcher is told `Ready`.
Until then whatever goes wrong means that it stays; afterwards the dispatcher's next attempt decides. Knows no engine,
no slot table, no other instance's load and no reason why a sequence was chosen.
"""

from collections.abc import Callable

from dunlin.cores.handlers import handles
from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.dispatch import Ready
from dunlin.messages.group import DialPeer, Fill, Filled, Release, ReservationLost, Reserve, Reserved, ReserveRefused
from dunlin.messages.pool import RegionsSent
from dunlin.messages.types import Figure, Why
from services.instance.migration.kv_transfer import KvExport, KvTransfer
from services.instance.migration.outgoing import (
    MigrateOutTimeout,
    MigrationLimits,
    MigrationSource,
    MigrationStage,
    OnMigrationEnd,
    OutgoingMigration,
)
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.sequence.table import Sequence, SequenceState, SequenceTable

DIALING = Address("dialing", "")
NOT_COPIED = "its KV cannot be copied"


class MigrateOut:
    """Owns who leaves. The totals only grow; `stale_total` counts answers that nobody waits for."""

    def __init__(
        self,
        sequences: SequenceTable,
        lives: SequenceLifecycle,
        copies: KvExport,
        patience: MigrationLimits,
        sender: Callable[[], MigrationSource | None],
    ) -> None:
        self.moved_total = 0
        self.failed_total = 0
        self.moved_tokens_total = 0
        self.stale_total = 0
        self._sequences = sequences
        self._lifecycle = lives
        self._kv_transfer = KvTransfer(copies, patience.tail_tokens)
        self._limits = patience
        self._source = sender
        self._migrations: dict[int, OutgoingMigration] = {}
        self._reachable: dict[Address, None] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._migrations)

    def is_migrating(self, sequence: Sequence) -> bool:
        """Whether it is on its way."""
        return any(departure.sequence is sequence for departure in self._migrations.values())

    def start(
        self, sequence: Sequence, target: Address, why: Why | None, ended: OnMigrationEnd, needs_kv: bool = False
    ) -> list[Effect]:
        """Begin to move `sequence` to `target`; `needs_kv`: not without its KV."""
        self._numbers += 1
        departure = self._migrations[self._numbers] = OutgoingMigration(
            self._numbers, sequence, target, why, ended, needs_kv
        )
        if target in self._reachable:
            return self._reserve(departure)
        return [Send(DIALING, DialPeer(target)), *self._enter_stage(departure, MigrationStage.REACHING)]

    def advance(self) -> list[Effect]:
        """Go on with whatever the last change made possible."""
        effects: list[Effect] = []
        for departure in list(self._migrations.values()):
            effects += self._advance_one(departure)
        return effects

    # --- what the target says ---

    @handles
    def on_reserved(self, now_s: float, sender: Address, message: Reserved) -> list[Effect]:
        """There is room at the target."""
        departure = self._find(sender, message.sequence)
        if departure is None or departure.stage is not MigrationStage.RESERVING:
            self.stale_total += 1
            known = departure is not None and departure.handle == message.handle
            return [] if known else [Send(sender, Release(message.handle))]
        departure.handle, departure.target_kvstore = message.handle, message.keeper
        return self._enter_stage(departure, MigrationStage.COPYING)

    @handles
    def on_refused(self, now_s: float, sender: Address, message: ReserveRefused) -> list[Effect]:
        """There is none."""
        departure = self._find(sender, message.sequence)
        if departure is None or departure.stage is not MigrationStage.RESERVING:
            self.stale_total += 1
            return []
        reason = message.why.rejected[0].reason if message.why and message.why.rejected else "no reason given"
        return self._abort(departure, f"{sender.name} refuses: {reason}")

    @handles
    def on_filled(self, now_s: float, sender: Address, message: Filled) -> list[Effect]:
        """So much lies in the room."""
        departure = self._find_by_handle(sender, message.handle)
        if departure is None or departure.stage not in (MigrationStage.COPYING, MigrationStage.SWITCHING):
            self.stale_total += 1
            return []
        departure.filled = message.tokens
        departure.copying_stopped |= bool(message.detail)
        return self._enter_stage(departure, departure.stage)

    @handles
    def on_reservation_lost(self, now_s: float, sender: Address, message: ReservationLost) -> list[Effect]:
        """The room is lost."""
        departure = self._find_by_handle(sender, message.handle)
        if departure is None or departure.stage is MigrationStage.HANDED:
            self.stale_total += 1
            return []
        departure.handle = 0
        return self._abort(departure, f"{sender.name} lost the room")

    def on_regions_sent(self, number: int, message: RegionsSent) -> list[Effect]:
        """So much of it lies at the target's node."""
        departure = self._migrations.get(number)
        if departure is None or departure.stage not in (MigrationStage.COPYING, MigrationStage.SWITCHING):
            self.stale_total += 1
            return []
        departure.is_between_nodes = False
        if message.tokens <= departure.offered:
            departure.copying_stopped = True
            return []
        departure.offered = message.tokens
        return [Send(departure.target, Fill(departure.handle, departure.offered, (), departure.target_kvstore))]

    # --- streams and timers ---

    def on_peer_joined(self, peer: Address) -> list[Effect]:
        """A stream to another instance is open."""
        self._reachable[peer] = None
        effects: list[Effect] = []
        for departure in self._with_target(peer):
            if departure.stage is MigrationStage.REACHING:
                effects += self._reserve(departure)
        return effects

    def on_peer_gone(self, peer: Address) -> list[Effect]:
        """A target or a dispatcher is away. Whom the dispatcher was told of stays ready for its next attempt."""
        self._reachable.pop(peer, None)
        effects: list[Effect] = []
        for departure in self._with_target(peer):
            departure.handle = 0
            if departure.stage is not MigrationStage.HANDED:
                effects += self._abort(departure, f"{peer.name} is gone")
        for departure in list(self._migrations.values()):
            if departure.sequence.dispatcher == peer and departure.stage in (
                MigrationStage.SWITCHING,
                MigrationStage.HANDED,
            ):
                effects += self._abort(departure, f"its dispatcher {peer.name} is gone")
        return effects

    @handles
    def on_timeout(self, now_s: float, sender: Address, message: MigrateOutTimeout) -> list[Effect]:
        """A stage lasts too long."""
        departure = self._migrations.get(message.number)
        if departure is None or departure.counter != message.counter:
            return []
        if departure.stage in (MigrationStage.COPYING, MigrationStage.SWITCHING) and not departure.copying_stopped:
            departure.copying_stopped = True  # it leaves all the same: what is not there is computed there
            return self._enter_stage(departure, departure.stage)
        return self._abort(departure, f"{departure.stage.value} after {self._limits.stage_s:g} s")

    def cancel(self, sequence: Sequence) -> list[Effect]:
        """Its dispatcher wants it to go on here after all."""
        for departure in list(self._migrations.values()):
            if departure.sequence is sequence:
                return self._abort(departure, "its dispatcher placed it here again")
        return []

    # --- the machine ---

    def _reserve(self, departure: OutgoingMigration) -> list[Effect]:
        sender, sequence = self._source(), departure.sequence
        if sender is None:
            return self._abort(departure, "no engine runs here")
        place = sequence.place
        reserve = Reserve(
            departure.number,
            len(sequence.tokens) + self._limits.tail_tokens,
            0,
            len(sender.ready.layers),
            sender.epoch,
            sender.plan_version,
            departure.why,
            sequence.public_key,
            sequence.dispatcher,
            place.request,
            place.attempt,
            sequence.max_length,
            sender.ready.weights_digest,
            sender.ready.kv_dtype,
        )
        return [Send(departure.target, reserve), *self._enter_stage(departure, MigrationStage.RESERVING)]

    def _advance_one(self, departure: OutgoingMigration) -> list[Effect]:
        sequence = departure.sequence
        if sequence.state in (SequenceState.ENDING, SequenceState.ENDED):
            return self._complete(departure)
        if departure.stage is MigrationStage.HANDED and sequence.dispatcher != departure.notified:
            return self._abort(departure, f"{sequence.dispatcher.name} goes on with it here")
        if departure.stage is MigrationStage.COPYING:
            return self._copy(departure)
        if departure.stage is MigrationStage.SWITCHING and sequence.in_steps == 0:
            return self._announce_ready(departure)
        return []

    def _copy(self, departure: OutgoingMigration) -> list[Effect]:
        """Copy beside its steps; stop its row once little is missing at the target."""
        effects = self._kv_transfer.transfer(departure)
        sequence = departure.sequence
        if sequence.state not in (SequenceState.RUNNING, SequenceState.WAITING) or self._kv_transfer.is_behind(
            departure
        ):
            return effects
        self._sequences.transition(sequence, SequenceState.LEAVING)
        effects += self._enter_stage(departure, MigrationStage.SWITCHING)
        return effects + (self._announce_ready(departure) if sequence.in_steps == 0 else [])

    def _announce_ready(self, departure: OutgoingMigration) -> list[Effect]:
        """No step names it any more: once the rest is copied too, its dispatcher hands out the next attempt."""
        effects = self._kv_transfer.transfer(departure)
        if self._kv_transfer.must_keep_here(departure):
            return effects + self._abort(departure, NOT_COPIED)
        if self._kv_transfer.can_copy(departure) and departure.filled < departure.wanted_tokens:
            return effects
        sequence, tokens = departure.sequence, departure.filled
        figures = (
            Figure("tokens", tokens),
            Figure("length", len(sequence.tokens)),
            Figure("recomputed_tokens", max(0, departure.wanted_tokens - tokens)),
        )
        rejected = departure.why.rejected if departure.why is not None else ()
        policy = departure.why.policy if departure.why is not None else "migration"
        why = Why(policy, f"move to {departure.target.name}", figures, rejected)
        place = sequence.place
        ready = Ready(place.request, place.attempt, departure.target, departure.handle, tokens, why)
        departure.notified = sequence.dispatcher
        return [*effects, Send(sequence.dispatcher, ready), *self._enter_stage(departure, MigrationStage.HANDED)]

    # --- how it ends ---

    def _complete(self, departure: OutgoingMigration) -> list[Effect]:
        """It ended here: because the next attempt runs, or because nobody wants more of it."""
        del self._migrations[departure.number]
        moved = departure.stage is MigrationStage.HANDED
        self.moved_total += moved
        self.moved_tokens_total += departure.filled if moved else 0
        departure.on_end(departure, "" if moved else "it ended first")
        return self._release(departure)

    def _abort(self, departure: OutgoingMigration, reason: str) -> list[Effect]:
        """It goes on here."""
        del self._migrations[departure.number]
        self.failed_total += 1
        effects: list[Effect] = []
        if departure.sequence.state is SequenceState.LEAVING:
            self._lifecycle.resume(departure.sequence)
        departure.on_end(departure, reason)
        return effects + self._release(departure)

    def _release(self, departure: OutgoingMigration) -> list[Effect]:
        """Room that nobody will use; where the next attempt took it, the handle is unknown by now."""
        return [Send(departure.target, Release(departure.handle))] if departure.handle else []

    def _enter_stage(self, departure: OutgoingMigration, stage: MigrationStage) -> list[Effect]:
        departure.stage = stage
        departure.counter += 1
        return [After(self._limits.stage_s, MigrateOutTimeout(departure.number, departure.counter))]

    def _find(self, target: Address, number: int) -> OutgoingMigration | None:
        departure = self._migrations.get(number)
        return departure if departure is not None and departure.target == target else None

    def _find_by_handle(self, target: Address, handle: int) -> OutgoingMigration | None:
        for departure in self._with_target(target):
            if departure.handle == handle:
                return departure
        return None

    def _with_target(self, target: Address) -> list[OutgoingMigration]:
        return [departure for departure in self._migrations.values() if departure.target == target]
