"""The target's side of migrations: room set aside for a sequence that still runs elsewhere, and filled ahead of it.

Slots are reserved under a handle, and the arrival itself owns them; regions are restored into them one by one; the next
attempt that names the handle takes them over. A handle without news is given up, and its room with it. Knows no batch,
no dispatcher's reasons, and of the source only what it says.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from dunlin import prefix
from dunlin.effects import Address, After, Effect, Send
from dunlin.handlers import handles
from dunlin.messages.dispatch import Place
from dunlin.messages.engine import EngineReady, MoveDone
from dunlin.messages.group import Fill, Filled, Release, Reserve, Reserved, ReserveRefused, Vacated
from dunlin.messages.types import Figure, KeptRegion, MoveStatus, Rejected, Why
from services.instance.lives import Lives
from services.instance.sequences import name_of
from services.instance.tier import HostTier


@dataclass(frozen=True, slots=True)
class ArrivalDue:
    """Nothing was heard about a handle for too long, unless a newer timer runs."""

    handle: int
    counter: int


@dataclass(frozen=True, slots=True)
class Here:
    """What this instance is at the moment; `ready` None: no engine runs. `refuses` says why it takes nothing at all;
    `headroom_slots` must stay free.
    """

    ready: EngineReady | None
    epoch: int
    refuses: str = ""
    headroom_slots: int = 0


@dataclass(slots=True, eq=False)
class Arrival:
    """Room under a handle: `filled` tokens lie in it, `queue` follows; `chain` names the tokens filled. `claimed` are
    regions of this node's tier that belong to it.

    `is_over`: nobody wants it any more, only a move still uses it.
    """

    handle: int
    source: Address
    reserve: Reserve
    counter: int = 0
    filled: int = 0
    chain: bytes = b""
    claimed: tuple[KeptRegion, ...] = ()
    queue: deque[KeptRegion] = field(default_factory=deque)
    moving: KeptRegion | None = None
    is_over: bool = False


class Arrivals:
    """Owns the handles. `taken_total` counts those that an attempt took over, `stale_total` what nobody knows."""

    def __init__(self, lives: Lives, tier: HostTier, here: Callable[[], Here], most: int, patience_s: float) -> None:
        self.taken_total = 0
        self.stale_total = 0
        self._lives = lives
        self._tier = tier
        self._here = here
        self._most = most
        self._patience_s = patience_s
        self._arrivals: dict[int, Arrival] = {}
        self._handles = 0

    def __len__(self) -> int:
        return len(self._arrivals)

    @handles
    def reserve(self, now_s: float, sender: Address, message: Reserve) -> list[Effect]:
        """Set room aside, or say why not."""
        for arrival in self._arrivals.values():
            if arrival.source == sender and arrival.reserve.sequence == message.sequence:
                return [self._answer(arrival)]
        refusal = self._refusal(message)
        if refusal is not None:
            figures = (Figure("tokens", message.tokens), Figure("free_slots", self._lives.slab.room))
            why = Why("arrivals", "refuse", figures, (Rejected("reserve", refusal),))
            return [Send(sender, ReserveRefused(message.sequence, why))]
        self._handles += 1
        arrival = self._arrivals[self._handles] = Arrival(self._handles, sender, message)
        granted = self._lives.slab.reserve(arrival, message.tokens)
        assert granted, f"{message.tokens} slots of {self._lives.slots!r}"
        return [self._answer(arrival), self._wait(arrival)]

    @handles
    def fill(self, now_s: float, sender: Address, message: Fill) -> list[Effect]:
        """Restore these regions into the room, one after the other."""
        arrival = self._known(sender, message.handle)
        if arrival is None:
            return [Send(sender, Vacated(message.handle))]
        if message.keeper not in (None, self._tier.kvstore):
            return self._cut(arrival, f"what was sent lies in {message.keeper}, which is not this node's any more")
        if not message.regions:
            return [*self._seek(arrival), self._wait(arrival)]
        arrival.queue.extend(message.regions)
        return [*self._next(arrival), self._wait(arrival)]

    def found(self, handle: int, regions: tuple[KeptRegion, ...]) -> list[Effect]:
        """What the kvstores brought to this node: this instance's from now on, whatever becomes of the room."""
        arrival = self._arrivals.get(handle)
        if arrival is None or arrival.is_over:
            return self._tier.release_all(regions)
        arrival.claimed = regions
        stop = arrival.queue[-1].region.stop if arrival.queue else arrival.filled
        stop = arrival.moving.region.stop if arrival.moving is not None and not arrival.queue else stop
        for region in regions:
            if region.region.start == stop:
                arrival.queue.append(region)
                stop = region.region.stop
        if not arrival.queue and arrival.moving is None:
            return self._cut(arrival, "what was sent was not found here")
        return self._next(arrival)

    @handles
    def release(self, now_s: float, sender: Address, message: Release) -> list[Effect]:
        """The source does not need the room."""
        arrival = self._arrivals.get(message.handle)
        if arrival is None or arrival.source != sender or arrival.is_over:
            return []  # an attempt has taken it over
        return self._give_up(arrival)

    def landed(self, handle: int, done: MoveDone) -> list[Effect]:
        """A region was copied, or was not."""
        arrival = self._arrivals.get(handle)
        if arrival is None or arrival.moving is None:
            self.stale_total += 1
            return []
        region, arrival.moving = arrival.moving, None
        if arrival.is_over:
            return self._free(arrival)
        if done.status is not MoveStatus.OK:
            return self._cut(arrival, f"tokens from {region.region.start} on: {done.status.name} {done.detail}".strip())
        arrival.filled, arrival.chain = region.region.stop, region.chain
        filled = Send(arrival.source, Filled(handle, arrival.filled))
        return [filled, *self._next(arrival), self._wait(arrival)]

    def take(self, sender: Address, place: Place) -> Arrival | None:
        """The room that this attempt names, if it is that request's and at rest; from now on the caller's."""
        arrival = self._arrivals.get(place.handle)
        if arrival is None or arrival.is_over or arrival.moving is not None:
            return None
        reserve = arrival.reserve
        is_older = reserve.dispatcher == sender and reserve.attempt >= place.attempt
        if reserve.key != name_of(sender, place) or is_older:
            self.stale_total += 1
            return None
        ready = self._here().ready
        if ready is None:
            return None
        start = prefix.root(place.tenant, ready.weights_digest)
        if arrival.filled and not prefix.begins(start, place.tokens, arrival.filled, arrival.chain):
            self.stale_total += 1
            arrival.filled = 0  # what lies there is of other tokens, or of more than the dispatcher had heard
        del self._arrivals[place.handle]
        self.taken_total += 1
        return arrival

    @handles
    def due(self, now_s: float, sender: Address, message: ArrivalDue) -> list[Effect]:
        """Nobody used the room in time."""
        arrival = self._arrivals.get(message.handle)
        if arrival is None or arrival.is_over or arrival.counter != message.counter:
            return []
        why = Why("arrivals", "give up the room", (Figure("waited_s", self._patience_s),))
        return [Send(arrival.source, Vacated(arrival.handle, why)), *self._give_up(arrival)]

    def tier_gone(self) -> None:
        """The kvstore is gone: what was claimed there for these rooms is no more, and another's has other names."""
        for arrival in self._arrivals.values():
            arrival.claimed = ()

    def engine_gone(self) -> list[Effect]:
        """Nothing in the slab counts any more."""
        effects: list[Effect] = []
        for arrival in list(self._arrivals.values()):
            effects += self._free(arrival)
            if not arrival.is_over:
                effects.append(Send(arrival.source, Vacated(arrival.handle, Why("arrivals", "the engine is gone"))))
        return effects

    def _refusal(self, message: Reserve) -> str | None:
        here, slots = self._here(), self._lives.slots
        if here.ready is None:
            return "no engine runs"
        if here.refuses:
            return here.refuses
        if message.epoch < here.epoch:
            self.stale_total += 1
            return f"stale: this instance follows epoch {here.epoch}"
        if (message.weights_digest, message.kv_dtype) != (here.ready.weights_digest, here.ready.kv_dtype):
            return "other weights or another KV type"
        if (message.layer_start, message.layer_stop) != (0, len(here.ready.layers)):
            return f"it holds {len(here.ready.layers)} layers"
        if message.longest > min(here.ready.max_positions, slots.capacity):
            return "it can never fit here"
        if not 0 < message.tokens <= self._lives.slab.room - here.headroom_slots:
            return "too few free slots"
        return "too many arrive already" if len(self._arrivals) >= self._most else None

    def _seek(self, arrival: Arrival) -> list[Effect]:
        reserve = arrival.reserve
        if not self._tier.usable or reserve.dispatcher is None:
            return self._cut(arrival, "no host tier")
        names = (reserve.key, reserve.dispatcher, reserve.request, reserve.attempt + 1)
        return self._tier.find_for_room(arrival.handle, *names)

    def _known(self, sender: Address, handle: int) -> Arrival | None:
        arrival = self._arrivals.get(handle)
        if arrival is None or arrival.source != sender or arrival.is_over:
            self.stale_total += 1
            return None
        return arrival

    def _next(self, arrival: Arrival) -> list[Effect]:
        """Restore the next region, if none is on its way."""
        if arrival.moving is not None or not arrival.queue:
            return []
        region = arrival.queue.popleft()
        start, stop = region.region.start, region.region.stop
        if start != arrival.filled or not self._tier.usable:
            return self._cut(arrival, f"tokens {start} to {stop} do not follow {arrival.filled}, or no host tier")
        missing = stop - self._lives.slots.held(arrival)
        if missing > 0 and not self._lives.slab.reserve(arrival, missing):
            return self._cut(arrival, f"{missing} slots are missing")
        arrival.moving = region
        extents = self._lives.slots.holding(arrival).span(start, stop)
        return self._tier.copy_into_room(arrival.handle, region, extents)

    def _cut(self, arrival: Arrival, detail: str) -> list[Effect]:
        arrival.queue.clear()
        return [Send(arrival.source, Filled(arrival.handle, arrival.filled, detail)), self._wait(arrival)]

    def _give_up(self, arrival: Arrival) -> list[Effect]:
        """Free the room; a move that still writes there is waited for."""
        arrival.is_over = True
        arrival.queue.clear()
        return self._free(arrival) if arrival.moving is None else []

    def _free(self, arrival: Arrival) -> list[Effect]:
        del self._arrivals[arrival.handle]
        self._lives.slots.release(arrival)
        return self._tier.release_all(arrival.claimed)

    def _answer(self, arrival: Arrival) -> Effect:
        keeper = self._tier.kvstore if self._tier.usable else None
        return Send(arrival.source, Reserved(arrival.reserve.sequence, arrival.handle, keeper))

    def _wait(self, arrival: Arrival) -> Effect:
        arrival.counter += 1
        return After(self._patience_s, ArrivalDue(arrival.handle, arrival.counter))
