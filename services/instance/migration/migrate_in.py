"""The target's side of migrations: room set aside for a sequence that still runs elsewhere, and filled ahead of it.

Slots are reserved under a handle, and the arrival itself owns them; regions are restored into them one by one; the next
attempt that names the handle takes them over. A handle without news is given up, and its room with it. Knows no batch,
no dispatcher's reasons, and of the source only what it says.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dunlin.cores.handlers import handles
from dunlin.effects import Address, After, Effect, Send
from dunlin.kv import prefix_hash
from dunlin.messages.dispatch import Place
from dunlin.messages.engine import EngineReady, MoveDone
from dunlin.messages.group import Fill, Filled, Release, ReservationLost, Reserve, Reserved, ReserveRefused
from dunlin.messages.types import Figure, KeptRegion, MoveStatus, RejectedOption, Why
from services.instance.kv.host_cache import HostCacheClient
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.sequence.table import request_name


@dataclass(frozen=True, slots=True)
class MigrateInTimeout:
    """Nothing was heard about a handle for too long, unless a newer timer runs."""

    handle: int
    counter: int


@dataclass(frozen=True, slots=True)
class TargetState:
    """What this instance is at the moment; `ready` None: no engine runs. `refuses` says why it takes nothing at all;
    `headroom_slots` must stay free.
    """

    ready: EngineReady | None
    epoch: int
    refusal: str = ""
    headroom_slots: int = 0


@dataclass(slots=True, eq=False)
class IncomingMigration:
    """Room under a handle: `filled` tokens lie in it, `queue` follows; `chain` names the tokens filled. `claimed` are
    regions of this node's tier that belong to it.

    `is_over`: nobody wants it any more, only a move still uses it.
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
    is_cancelled: bool = False


class MigrateIn:
    """Owns the handles. `taken_total` counts those that an attempt took over, `stale_total` what nobody knows."""

    def __init__(
        self,
        lives: SequenceLifecycle,
        tier: HostCacheClient,
        here: Callable[[], TargetState],
        most: int,
        patience_s: float,
    ) -> None:
        self.completed_total = 0
        self.stale_total = 0
        self._lifecycle = lives
        self._host_cache = tier
        self._target_state = here
        self._max_count = most
        self._timeout_s = patience_s
        self._migrations: dict[int, IncomingMigration] = {}
        self._handles = 0

    def __len__(self) -> int:
        return len(self._migrations)

    @handles
    def reserve(self, now_s: float, sender: Address, message: Reserve) -> list[Effect]:
        """Set room aside, or say why not."""
        for arrival in self._migrations.values():
            if arrival.source == sender and arrival.request.sequence == message.sequence:
                return [self._reserved(arrival)]
        refusal = self._refusal(message)
        if refusal is not None:
            figures = (Figure("tokens", message.tokens), Figure("free_slots", self._lifecycle.kv_cache.available_slots))
            why = Why("arrivals", "refuse", figures, (RejectedOption("reserve", refusal),))
            return [Send(sender, ReserveRefused(message.sequence, why))]
        self._handles += 1
        arrival = self._migrations[self._handles] = IncomingMigration(self._handles, sender, message)
        granted = self._lifecycle.kv_cache.reserve(arrival, message.tokens)
        assert granted, f"{message.tokens} slots of {self._lifecycle.slot_table!r}"
        return [self._reserved(arrival), self._start_timer(arrival)]

    @handles
    def fill(self, now_s: float, sender: Address, message: Fill) -> list[Effect]:
        """Restore these regions into the room, one after the other."""
        arrival = self._find(sender, message.handle)
        if arrival is None:
            return [Send(sender, ReservationLost(message.handle))]
        if message.keeper not in (None, self._host_cache.kvstore):
            return self._stop_filling(
                arrival, f"what was sent lies in {message.keeper}, which is not this node's any more"
            )
        if not message.regions:
            return [*self._claim_from_kvstore(arrival), self._start_timer(arrival)]
        arrival.queue.extend(message.regions)
        return [*self._restore_next(arrival), self._start_timer(arrival)]

    def on_regions_found(self, handle: int, regions: tuple[KeptRegion, ...]) -> list[Effect]:
        """What the kvstores brought to this node: this instance's from now on, whatever becomes of the room."""
        arrival = self._migrations.get(handle)
        if arrival is None or arrival.is_cancelled:
            return self._host_cache.release_all(regions)
        arrival.claimed = regions
        stop = arrival.queue[-1].region.stop if arrival.queue else arrival.filled
        stop = arrival.moving.region.stop if arrival.moving is not None and not arrival.queue else stop
        for region in regions:
            if region.region.start == stop:
                arrival.queue.append(region)
                stop = region.region.stop
        if not arrival.queue and arrival.moving is None:
            return self._stop_filling(arrival, "what was sent was not found here")
        return self._restore_next(arrival)

    @handles
    def release(self, now_s: float, sender: Address, message: Release) -> list[Effect]:
        """The source does not need the room."""
        arrival = self._migrations.get(message.handle)
        if arrival is None or arrival.source != sender or arrival.is_cancelled:
            return []  # an attempt has taken it over
        return self._cancel(arrival)

    def on_move_done(self, handle: int, done: MoveDone) -> list[Effect]:
        """A region was copied, or was not."""
        arrival = self._migrations.get(handle)
        if arrival is None or arrival.moving is None:
            self.stale_total += 1
            return []
        region, arrival.moving = arrival.moving, None
        if arrival.is_cancelled:
            return self._free(arrival)
        if done.status is not MoveStatus.OK:
            return self._stop_filling(
                arrival, f"tokens from {region.region.start} on: {done.status.name} {done.detail}".strip()
            )
        arrival.filled, arrival.chain = region.region.stop, region.chain
        filled = Send(arrival.source, Filled(handle, arrival.filled))
        return [filled, *self._restore_next(arrival), self._start_timer(arrival)]

    def take_over(self, sender: Address, place: Place) -> IncomingMigration | None:
        """The room that this attempt names, if it is that request's and at rest; from now on the caller's."""
        arrival = self._migrations.get(place.handle)
        if arrival is None or arrival.is_cancelled or arrival.moving is not None:
            return None
        reserve = arrival.request
        is_older = reserve.dispatcher == sender and reserve.attempt >= place.attempt
        if reserve.key != request_name(sender, place) or is_older:
            self.stale_total += 1
            return None
        ready = self._target_state().ready
        if ready is None:
            return None
        start = prefix_hash.chain_root(place.tenant, ready.weights_digest)
        if arrival.filled and not prefix_hash.has_prefix(start, place.tokens, arrival.filled, arrival.chain):
            self.stale_total += 1
            arrival.filled = 0  # what lies there is of other tokens, or of more than the dispatcher had heard
        del self._migrations[place.handle]
        self.completed_total += 1
        return arrival

    @handles
    def on_timeout(self, now_s: float, sender: Address, message: MigrateInTimeout) -> list[Effect]:
        """Nobody used the room in time."""
        arrival = self._migrations.get(message.handle)
        if arrival is None or arrival.is_cancelled or arrival.counter != message.counter:
            return []
        why = Why("arrivals", "give up the room", (Figure("waited_s", self._timeout_s),))
        return [Send(arrival.source, ReservationLost(arrival.handle, why)), *self._cancel(arrival)]

    def on_host_cache_lost(self) -> None:
        """The kvstore is gone: what was claimed there for these rooms is no more, and another's has other names."""
        for arrival in self._migrations.values():
            arrival.claimed = ()

    def on_engine_lost(self) -> list[Effect]:
        """Nothing in the slab counts any more."""
        effects: list[Effect] = []
        for arrival in list(self._migrations.values()):
            effects += self._free(arrival)
            if not arrival.is_cancelled:
                effects.append(
                    Send(arrival.source, ReservationLost(arrival.handle, Why("arrivals", "the engine is gone")))
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

    def _claim_from_kvstore(self, arrival: IncomingMigration) -> list[Effect]:
        reserve = arrival.request
        if not self._host_cache.usable or reserve.dispatcher is None:
            return self._stop_filling(arrival, "no host tier")
        names = (reserve.key, reserve.dispatcher, reserve.request, reserve.attempt + 1)
        return self._host_cache.claim_for_reservation(arrival.handle, *names)

    def _find(self, sender: Address, handle: int) -> IncomingMigration | None:
        arrival = self._migrations.get(handle)
        if arrival is None or arrival.source != sender or arrival.is_cancelled:
            self.stale_total += 1
            return None
        return arrival

    def _restore_next(self, arrival: IncomingMigration) -> list[Effect]:
        """Restore the next region, if none is on its way."""
        if arrival.moving is not None or not arrival.queue:
            return []
        region = arrival.queue.popleft()
        start, stop = region.region.start, region.region.stop
        if start != arrival.filled or not self._host_cache.usable:
            return self._stop_filling(
                arrival, f"tokens {start} to {stop} do not follow {arrival.filled}, or no host tier"
            )
        missing = stop - self._lifecycle.slot_table.held(arrival)
        if missing > 0 and not self._lifecycle.kv_cache.reserve(arrival, missing):
            return self._stop_filling(arrival, f"{missing} slots are missing")
        arrival.moving = region
        extents = self._lifecycle.slot_table.holding(arrival).slots_of(start, stop)
        return self._host_cache.copy_into_reservation(arrival.handle, region, extents)

    def _stop_filling(self, arrival: IncomingMigration, detail: str) -> list[Effect]:
        arrival.queue.clear()
        return [Send(arrival.source, Filled(arrival.handle, arrival.filled, detail)), self._start_timer(arrival)]

    def _cancel(self, arrival: IncomingMigration) -> list[Effect]:
        """Free the room; a move that still writes there is waited for."""
        arrival.is_cancelled = True
        arrival.queue.clear()
        return self._free(arrival) if arrival.moving is None else []

    def _free(self, arrival: IncomingMigration) -> list[Effect]:
        del self._migrations[arrival.handle]
        self._lifecycle.slot_table.release(arrival)
        return self._host_cache.release_all(arrival.claimed)

    def _reserved(self, arrival: IncomingMigration) -> Effect:
        keeper = self._host_cache.kvstore if self._host_cache.usable else None
        return Send(arrival.source, Reserved(arrival.request.sequence, arrival.handle, keeper))

    def _start_timer(self, arrival: IncomingMigration) -> Effect:
        arrival.counter += 1
        return After(self._timeout_s, MigrateInTimeout(arrival.handle, arrival.counter))
