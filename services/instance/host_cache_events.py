"""Routes each answer of the kvstore, and each end of an engine's move, to the part of the core that waits for it.

Knows which part waits for which answer, and no reason.
"""

from collections.abc import Callable

from dunlin.cores.handlers import handles
from dunlin.effects import Address, Effect
from dunlin.messages.engine import TransferDone
from dunlin.messages.pool import RegionRefused, RegionReserved, RegionsFound, RegionsRevoked, RegionsSent
from services.instance.checkpoint.checkpointer import Checkpointer
from services.instance.checkpoint.claims import RegionClaims
from services.instance.kv.host_cache import HostCacheClient, HostCacheTimeout
from services.instance.kv.tickets import (
    ArrivalCheck,
    ArrivalClaim,
    ArrivalTransfer,
    HostReservation,
    PeerCopy,
    Question,
    TransferPurpose,
)
from services.instance.migration.migrate_in import MigrateIn
from services.instance.migration.migrate_out import MigrateOut
from services.instance.scheduling.lifecycle import SequenceLifecycle


class HostCacheEvents:
    """A router. `stale_total` counts answers of a kvstore whose memory is no more.

    `restore` lets sequences start from regions that were found for them.
    """

    def __init__(
        self,
        host_cache: HostCacheClient,
        lifecycle: SequenceLifecycle,
        checkpointer: Checkpointer,
        claims: RegionClaims,
        migrate_in: MigrateIn,
        migrate_out: MigrateOut,
        restore: Callable[[], list[Effect]],
    ) -> None:
        self.stale_total = 0
        self._host_cache = host_cache
        self._lifecycle = lifecycle
        self._checkpointer = checkpointer
        self._claims = claims
        self._migrate_in = migrate_in
        self._migrate_out = migrate_out
        self._restore = restore

    @handles
    def on_region_reserved(self, now_s: float, sender: Address, message: RegionReserved) -> list[Effect]:
        """The kvstore reserved room: the part that asked starts its copy."""
        if not self._is_current(sender):
            return []
        reservation = self._host_cache.reserved_or_refused(message.ticket)
        if reservation is None:
            return self._host_cache.release(message.host)
        waiter = self._checkpointer if reservation.purpose is TransferPurpose.CHECKPOINT else self._lifecycle
        return waiter.start_copy_out(reservation, message.host)

    @handles
    def on_region_refused(self, now_s: float, sender: Address, message: RegionRefused) -> list[Effect]:
        """The kvstore has no room. For a preempted sequence checkpoints are released and the request is repeated."""
        reservation = self._host_cache.reserved_or_refused(message.ticket) if self._is_current(sender) else None
        if reservation is None:
            return []
        if reservation.purpose is TransferPurpose.CHECKPOINT:
            return self._checkpointer.on_room_refused(now_s)
        made = self._checkpointer.release_checkpoints(
            now_s, self._host_cache.size_bytes(reservation.region.stop - reservation.region.start)
        )
        return (
            [*made, *self._lifecycle.retry_spill(reservation)] if made else self._lifecycle.spill_refused(reservation)
        )

    @handles
    def on_regions_found(self, now_s: float, sender: Address, message: RegionsFound) -> list[Effect]:
        """Regions of earlier attempts, or regions that were sent here for an incoming migration."""
        if not self._is_current(sender):
            return self._restore()
        claim = self._host_cache.found(message.ticket)
        if isinstance(claim, ArrivalClaim):
            return self._migrate_in.on_regions_found(claim.handle, message.regions)
        if claim is None:
            return self._host_cache.release_all(message.regions) + self._restore()
        return self._claims.on_regions_found(claim.sequence, message.regions) + self._restore()

    @handles
    def on_regions_revoked(self, now_s: float, sender: Address, message: RegionsRevoked) -> list[Effect]:
        """Another attempt claimed these regions."""
        names = list(zip(message.handle, message.generation, strict=False))
        return self._lifecycle.on_regions_revoked(names) if self._is_current(sender) else []

    @handles
    def sent(self, now_s: float, sender: Address, message: RegionsSent) -> list[Effect]:
        """The transfer of an outgoing migration's regions to another kvstore ended."""
        transfer = self._host_cache.resolve_send(message.ticket)
        return [] if transfer is None else self._migrate_out.on_regions_sent(transfer.migration, message)

    @handles
    def on_timeout(self, now_s: float, sender: Address, message: HostCacheTimeout) -> list[Effect]:
        """The kvstore did not answer in time: continue without an answer."""
        question = self._host_cache.time_out(message.ticket)
        return [] if question is None else self._unanswered(now_s, question)

    @handles
    def on_move_done(self, now_s: float, sender: Address, message: TransferDone) -> list[Effect]:
        """A region copy or check of the engine ended."""
        move = self._host_cache.resolve_move(message.ticket)
        if move is None:
            return []
        if isinstance(move, PeerCopy):
            return self._migrate_out.on_peer_copied(message.ticket, move, message)
        if isinstance(move, ArrivalCheck):
            return self._migrate_in.on_checked(move.handle, message)
        if isinstance(move, ArrivalTransfer):
            return self._migrate_in.on_move_done(move.handle, message) + self._host_cache.map_memory()
        if move.purpose is TransferPurpose.CHECKPOINT:
            return self._checkpointer.on_move_done(now_s, move, message) + self._host_cache.map_memory()
        return self._lifecycle.on_move_done(move, message) + self._host_cache.map_memory()

    def on_kvstore_lost(self, now_s: float, kvstore: Address) -> list[Effect]:
        """The kvstore is gone: open requests get no answer, and its regions are lost."""
        return self._memory_lost(now_s, kvstore, self._host_cache.disconnect(kvstore))

    def on_memory_unmapped(self, now_s: float) -> list[Effect]:
        """The engine cannot map the host tier."""
        return self._memory_lost(now_s, self._host_cache.kvstore, self._host_cache.on_memory_unmapped())

    def _memory_lost(self, now_s: float, kvstore: Address | None, questions: list[Question]) -> list[Effect]:
        effects = self._lifecycle.on_host_cache_lost(kvstore)
        for question in questions:
            effects += self._unanswered(now_s, question)
        return effects

    def _unanswered(self, now_s: float, question: Question) -> list[Effect]:
        if not isinstance(question, HostReservation):
            return self._claims.on_timeout(question.sequence)
        is_checkpoint = question.purpose is TransferPurpose.CHECKPOINT
        return self._checkpointer.on_room_refused(now_s) if is_checkpoint else self._lifecycle.spill_refused(question)

    def _is_current(self, kvstore: Address) -> bool:
        """Whether this kvstore's memory is in use; an older one's answer names room that does not exist any more."""
        self.stale_total += kvstore != self._host_cache.kvstore
        return kvstore == self._host_cache.kvstore
