"""Incoming migrations: slots reserved for a sequence that still runs elsewhere, and filled with KV ahead of it.

Slots are reserved under a handle, and the `IncomingMigration` owns them; regions are restored into them one by one; the
next attempt that names the handle takes them over. A handle without messages for too long is cancelled, and its slots
are free again. Knows no batch, no dispatcher's reasons, and of the source only its messages.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dunlin.cores.handlers import handles
from dunlin.effects import Address, After, Effect, Send
from dunlin.kv import prefix_hash
from dunlin.messages.dispatch import Place
from dunlin.messages.engine import EngineReady, TransferDone
from dunlin.messages.group import Fill, Filled, Release, ReservationLost, Reserve, Reserved, ReserveRefused, Written
from dunlin.messages.types import Figure, KeptRegion, RejectedOption, TransferStatus, Why
from services.instance.kv.host_cache import HostCacheClient
from services.instance.kv.residency import SlotUse
from services.instance.migration.peer_copies import PeerCopies
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.sequence.sequence import request_name


@dataclass(frozen=True, slots=True)
class MigrateInTimeout:
    """No message named the handle for too long, unless a newer timer runs."""

    handle: int
    counter: int


@dataclass(frozen=True, slots=True)
class TargetState:
    """The state of this instance; `ready` None: no engine runs. `refusal` says why it accepts no migration at all;
    `headroom_slots` must stay free.
    """

    ready: EngineReady | None
    epoch: int
    refusal: str = ""
    headroom_slots: int = 0


@dataclass(slots=True, eq=False)
class IncomingMigration:
    """Slots reserved under a handle: `filled` tokens have KV there, `queue` follows; `chain` names the filled tokens.
    `claimed` are regions of this node's host tier that belong to it.

    `written` were written into the slots by the source's engine; the first of them is being checked, if `is_checking`.
    `may_write`: the source was told of the slots and has not released them. `is_open`: the own engine lets peers write
    them. `is_cancelled`: only an outstanding region copy or check, or the source's engine, still uses the slots.
    """

    handle: int
    source: Address
    request: Reserve
    counter: int = 0
    filled: int = 0
    chain: bytes = b""
    claimed: tuple[KeptRegion, ...] = ()
    queue: deque[KeptRegion] = field(default_factory=deque)
    moving: KeptRegion | None = None
    written: deque[Written] = field(default_factory=deque)
    is_checking: bool = False
    may_write: bool = False
    is_open: bool = False
    is_cancelled: bool = False

    @property
    def is_in_use(self) -> bool:
        """Whether the engine, or the source's, may read or write the slots."""
        return self.moving is not None or self.is_checking or self.may_write


class MigrateIn:
    """Owns the reservations. `completed_total` counts those taken over, `stale_total` messages with unknown handles."""

    def __init__(
        self,
        lifecycle: SequenceLifecycle,
        host_cache: HostCacheClient,
        peer_copies: PeerCopies,
        here: Callable[[], TargetState],
        most: int,
        patience_s: float,
    ) -> None:
        self.completed_total = 0
        self.stale_total = 0
        self._lifecycle = lifecycle
        self._host_cache = host_cache
        self._peer_copies = peer_copies
        self._target_state = here
        self._max_count = most
        self._timeout_s = patience_s
        self._migrations: dict[int, IncomingMigration] = {}
        self._handles = 0

    def __len__(self) -> int:
        return len(self._migrations)

    @property
    def promised_rows(self) -> int:
        """How many may run here as soon as an attempt names them."""
        return sum(not migration.is_cancelled for migration in self._migrations.values())

    @handles
    def reserve(self, now_s: float, sender: Address, message: Reserve) -> list[Effect]:
        """Reserve slots for a sequence, or refuse with the reason; asked again, keep what is reserved for longer."""
        for migration in self._migrations.values():
            if migration.source == sender and migration.request.sequence == message.sequence:
                return [] if migration.is_cancelled else [*self._reserved(migration), self._start_timer(migration)]
        refusal = self._refusal(message)
        if refusal is not None:
            figures = (Figure("tokens", message.tokens), Figure("free_slots", self._lifecycle.kv_cache.available_slots))
            why = Why("arrivals", "refuse", figures, (RejectedOption("reserve", refusal),))
            return [Send(sender, ReserveRefused(message.sequence, why))]
        self._handles += 1
        migration = self._migrations[self._handles] = IncomingMigration(self._handles, sender, message)
        granted = self._lifecycle.kv_cache.reserve(migration, message.tokens)
        assert granted, f"{message.tokens} slots of {self._lifecycle.slot_table!r}"
        return [*self._reserved(migration), self._start_timer(migration)]

    @handles
    def fill(self, now_s: float, sender: Address, message: Fill) -> list[Effect]:
        """Restore these regions into the reserved slots, one after the other."""
        migration = self._find(sender, message.handle)
        if migration is None:
            return [Send(sender, ReservationLost(message.handle))]
        if message.keeper not in (None, self._host_cache.kvstore):
            return self._stop_filling(
                migration, f"what was sent lies in {message.keeper}, which is not this node's any more"
            )
        if not message.regions:
            return [*self._claim_from_kvstore(migration), self._start_timer(migration)]
        migration.queue.extend(message.regions)
        return [*self._restore_next(migration), self._start_timer(migration)]

    def on_regions_found(self, handle: int, regions: tuple[KeptRegion, ...]) -> list[Effect]:
        """Regions that were copied to this node belong to this instance, even if the reservation is cancelled."""
        migration = self._migrations.get(handle)
        if migration is None or migration.is_cancelled:
            return self._host_cache.release_all(regions)
        migration.claimed = regions
        stop = migration.queue[-1].region.stop if migration.queue else migration.filled
        stop = migration.moving.region.stop if migration.moving is not None and not migration.queue else stop
        for region in regions:
            if region.region.start == stop:
                migration.queue.append(region)
                stop = region.region.stop
        if not migration.queue and migration.moving is None:
            return self._stop_filling(migration, "what was sent was not found here")
        return self._restore_next(migration)

    @handles
    def release(self, now_s: float, sender: Address, message: Release) -> list[Effect]:
        """The source does not need the reservation: cancel it."""
        migration = self._migrations.get(message.handle)
        if migration is None or migration.source != sender:
            return []  # an attempt has taken it over
        migration.may_write = False
        return self._cancel(migration)

    @handles
    def on_written(self, now_s: float, sender: Address, message: Written) -> list[Effect]:
        """The source's engine wrote a region into the slots: have it checked."""
        migration = self._find(sender, message.handle)
        if migration is None:
            return [Send(sender, ReservationLost(message.handle))]
        migration.written.append(message)
        return [*self._check_next(migration), self._start_timer(migration)]

    def on_checked(self, handle: int, done: TransferDone) -> list[Effect]:
        """The check of one region ended."""
        migration = self._migrations.get(handle)
        if migration is None or not migration.is_checking:
            self.stale_total += 1
            return []
        written, migration.is_checking = migration.written.popleft(), False
        if migration.is_cancelled:
            return self._cancel(migration)
        region = written.region
        if done.status is not TransferStatus.OK:
            migration.written.clear()
            return self._stop_filling(
                migration, f"written tokens from {region.start} on: {done.status.name} {done.detail}".strip()
            )
        migration.filled, migration.chain = region.stop, written.chain
        filled = Send(migration.source, Filled(handle, migration.filled))
        return [filled, *self._check_next(migration), self._start_timer(migration)]

    def on_source_gone(self, source: Address) -> list[Effect]:
        """The source is gone, and says nothing of its engine: let no engine of it write here any more."""
        trusted = [one for one in self._migrations.values() if one.source == source and one.may_write]
        if not trusted:
            return []
        effects = [self._peer_copies.fence(source)]
        for migration in trusted:
            migration.may_write = False
            if migration.is_cancelled:
                effects += self._cancel(migration)
        return effects

    def on_move_done(self, handle: int, done: TransferDone) -> list[Effect]:
        """The copy of one region ended."""
        migration = self._migrations.get(handle)
        if migration is None or migration.moving is None:
            self.stale_total += 1
            return []
        region, migration.moving = migration.moving, None
        if migration.is_cancelled:
            return self._cancel(migration)
        if done.status is not TransferStatus.OK:
            return self._stop_filling(
                migration, f"tokens from {region.region.start} on: {done.status.name} {done.detail}".strip()
            )
        migration.filled, migration.chain = region.region.stop, region.chain
        filled = Send(migration.source, Filled(handle, migration.filled))
        return [filled, *self._restore_next(migration), self._start_timer(migration)]

    def take_over(self, sender: Address, place: Place) -> IncomingMigration | None:
        """Remove and return the reservation that this attempt names, if it is of that request and no copy runs."""
        migration = self._migrations.get(place.handle)
        if migration is None or migration.is_cancelled or migration.moving is not None or migration.is_checking:
            return None
        reserve = migration.request
        is_older = reserve.dispatcher == sender and reserve.attempt >= place.attempt
        if reserve.key != request_name(sender, place) or is_older:
            self.stale_total += 1
            return None
        ready = self._target_state().ready
        if ready is None:
            return None
        start = prefix_hash.chain_root(place.tenant, ready.weights_digest, adapter=place.adapter)
        if migration.filled and not prefix_hash.has_prefix(start, place.tokens, migration.filled, migration.chain):
            self.stale_total += 1
            migration.filled = 0  # the KV there is of other tokens, or of more tokens than the dispatcher has
        del self._migrations[place.handle]
        self.completed_total += 1
        return migration

    def close_room(self, migration: IncomingMigration) -> list[Effect]:
        """Before its slots serve something else: what a peer has not written by then it cannot write any more."""
        was_open, migration.is_open = migration.is_open, False
        return [self._peer_copies.close_room(migration.handle)] if was_open else []

    @handles
    def on_timeout(self, now_s: float, sender: Address, message: MigrateInTimeout) -> list[Effect]:
        """No attempt took the reservation over in time: cancel it."""
        migration = self._migrations.get(message.handle)
        if migration is None or migration.is_cancelled or migration.counter != message.counter:
            return []
        why = Why("arrivals", "give up the room", (Figure("waited_s", self._timeout_s),))
        return [Send(migration.source, ReservationLost(migration.handle, why)), *self._cancel(migration)]

    def on_host_cache_lost(self) -> None:
        """The kvstore is gone: its claimed regions are lost, and another kvstore uses other names."""
        for migration in self._migrations.values():
            migration.claimed = ()

    def on_engine_lost(self) -> list[Effect]:
        """The KV cache is lost: cancel every reservation."""
        effects: list[Effect] = []
        for migration in list(self._migrations.values()):
            effects += self._free(migration)  # its rooms went with the engine
            if not migration.is_cancelled:
                effects.append(
                    Send(migration.source, ReservationLost(migration.handle, Why("arrivals", "the engine is gone")))
                )
        return effects

    def _refusal(self, message: Reserve) -> str | None:
        here, slots = self._target_state(), self._lifecycle.slot_table
        if here.ready is None:
            return "no engine runs"
        if here.refusal:
            return here.refusal
        if message.epoch < here.epoch:
            self.stale_total += 1
            return f"stale: this instance follows epoch {here.epoch}"
        if (message.weights_digest, message.kv_dtype) != (here.ready.weights_digest, here.ready.kv_dtype):
            return "other weights or another KV type"
        if (message.layer_start, message.layer_stop) != (0, len(here.ready.layers)):
            return f"it holds {len(here.ready.layers)} layers"
        if message.longest > min(here.ready.max_positions, slots.capacity):
            return "it can never fit here"
        if not 0 < message.tokens <= self._lifecycle.kv_cache.available_slots - here.headroom_slots:
            return "too few free slots"
        return "too many arrive already" if len(self._migrations) >= self._max_count else None

    def _claim_from_kvstore(self, migration: IncomingMigration) -> list[Effect]:
        reserve = migration.request
        if not self._host_cache.usable or reserve.dispatcher is None:
            return self._stop_filling(migration, "no host tier")
        names = (reserve.key, reserve.dispatcher, reserve.request, reserve.attempt + 1)
        return self._host_cache.claim_for_reservation(migration.handle, *names)

    def _find(self, sender: Address, handle: int) -> IncomingMigration | None:
        migration = self._migrations.get(handle)
        if migration is None or migration.source != sender or migration.is_cancelled:
            self.stale_total += 1
            return None
        return migration

    def _restore_next(self, migration: IncomingMigration) -> list[Effect]:
        """Restore the next region, if no copy is outstanding."""
        if migration.moving is not None or not migration.queue:
            return []
        region = migration.queue.popleft()
        start, stop = region.region.start, region.region.stop
        if start != migration.filled or not self._host_cache.usable:
            return self._stop_filling(
                migration, f"tokens {start} to {stop} do not follow {migration.filled}, or no host tier"
            )
        wanted = (migration.request.layer_start, migration.request.layer_stop)
        layers = (region.region.layer_start, region.region.layer_stop)
        if layers != wanted:
            return self._stop_filling(migration, f"the region has layers {layers}, the room is for layers {wanted}")
        missing = stop - self._lifecycle.slot_table.held(migration)
        if missing > 0 and not self._lifecycle.kv_cache.reserve(migration, missing):
            return self._stop_filling(migration, f"{missing} slots are missing")
        migration.moving = region
        extents = self._lifecycle.slot_table.residency(migration).slots_of(start, stop)
        return self._host_cache.copy_into_reservation(migration.handle, region, extents)

    def _check_next(self, migration: IncomingMigration) -> list[Effect]:
        """Check the next region that was written, if no check is outstanding."""
        if migration.is_checking or not migration.written:
            return []
        written = migration.written[0]
        region, wanted = written.region, migration.request
        slots = self._lifecycle.slot_table.residency(migration)
        if (region.layer_start, region.layer_stop) != (wanted.layer_start, wanted.layer_stop):
            problem = f"layers {region.layer_start} to {region.layer_stop} were written"
        elif region.start != migration.filled or not region.start < region.stop <= slots.stop:
            problem = (
                f"tokens {region.start} to {region.stop} were written, {migration.filled} of {slots.stop} are here"
            )
        else:
            migration.is_checking = True
            extents = slots.slots_of(region.start, region.stop)
            return [self._peer_copies.check(migration.handle, written, extents)]
        migration.written.clear()
        return self._stop_filling(migration, problem)

    def _stop_filling(self, migration: IncomingMigration, detail: str) -> list[Effect]:
        migration.queue.clear()
        return [
            Send(migration.source, Filled(migration.handle, migration.filled, detail)),
            self._start_timer(migration),
        ]

    def _cancel(self, migration: IncomingMigration) -> list[Effect]:
        """Free the slots, once neither an outstanding copy nor the source's engine uses them."""
        migration.is_cancelled = True
        migration.queue.clear()
        effects = self.close_room(migration)
        if not migration.is_in_use:
            return effects + self._free(migration)
        self._lifecycle.slot_table.set_use(migration, SlotUse.QUARANTINED)
        return effects

    def _free(self, migration: IncomingMigration) -> list[Effect]:
        del self._migrations[migration.handle]
        self._lifecycle.slot_table.release(migration)
        return self._host_cache.release_all(migration.claimed)

    def _reserved(self, migration: IncomingMigration) -> list[Effect]:
        keeper = self._host_cache.kvstore if self._host_cache.usable else None
        room = self._peer_copies.room(self._lifecycle.slot_table.residency(migration))
        migration.may_write = migration.is_open = room is not None
        opened = [] if room is None else [self._peer_copies.open_room(migration.handle, room)]
        return [
            *opened,
            Send(migration.source, Reserved(migration.request.sequence, migration.handle, keeper, room)),
        ]

    def _start_timer(self, migration: IncomingMigration) -> Effect:
        migration.counter += 1
        return After(self._timeout_s, MigrateInTimeout(migration.handle, migration.counter))
