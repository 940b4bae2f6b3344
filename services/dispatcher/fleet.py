"""What this dispatcher believes of the instances: the last FleetView, plus what it has itself promised since.

Knows no request but its number and size, and takes no decision; the monitor's word may be old and is corrected by it.
"""

from dataclasses import dataclass, field

from dunlin.effects import Address
from dunlin.messages.fleet import FleetView, MemberView
from dunlin.messages.types import GroupKind, Part
from dunlin.policies.dispatch import ORDERS, Candidate, Order
from services.dispatcher.ranking import NOTHING_HELD, Entry, Held, Ranking

BEGINS = (Part.LOCAL, Part.PREFILL)
"""Parts that requests are given to."""


@dataclass(slots=True)
class Reservation:
    """Tokens promised to a request that the last view cannot have counted yet."""

    tokens: int
    accepted_s: float | None = None


@dataclass(slots=True)
class Instance:
    """One instance with an open stream. `refusal` numbers its refusals; `paused`: not to be asked just now.
    `turn` numbers the last hand-out that went there, `number` the streams."""

    address: Address
    number: int
    refusal: int = 0
    paused: bool = False
    turn: int = 0
    reserved: dict[int, Reservation] = field(default_factory=dict)
    reserved_tokens: int = 0

    def reserve(self, number: int, tokens: int) -> None:
        self.reserved[number] = Reservation(tokens)
        self.reserved_tokens += tokens

    def free(self, number: int) -> None:
        reservation = self.reserved.pop(number, None)
        if reservation is not None:
            self.reserved_tokens -= reservation.tokens

    def forget_until(self, accepted_s: float) -> None:
        """Drop the reservations that were accepted before: the instance itself has counted and reported them."""
        seen = [
            number
            for number, reservation in self.reserved.items()
            if reservation.accepted_s is not None and reservation.accepted_s <= accepted_s
        ]
        for number in seen:
            self.free(number)


class Fleet:
    """Owns the view and the reservations.

    `waiting` requests wait at instances for slots, as far as is known here.
    `stale_total` counts views that came from an older monitor or were not newer than the last.
    """

    def __init__(self, max_waiting: int, view_lag_s: float, order: Order = ORDERS["least_loaded"]) -> None:
        self.stale_total = 0
        self.waiting = 0
        self._max_waiting = max_waiting
        self._view_lag_s = view_lag_s
        self._joined: dict[Address, Instance] = {}
        self._left: dict[Address, None] = {}
        self._members: dict[Address, MemberView] = {}
        self._monitor: Address | None = None
        self._version = 0
        self._turns = 0
        self._streams = 0
        self._ranking = Ranking(order)
        self._serving: dict[Address, int] = {}
        self._limits: dict[int, int] = {}

    def join(self, address: Address) -> None:
        """A stream to an instance is open."""
        self.leave(address)
        self._streams += 1
        self._joined[address] = Instance(address, self._streams)
        self._left.pop(address, None)
        self._settle(address)

    def leave(self, address: Address) -> None:
        """The stream is gone, and with it all that was promised on it."""
        instance = self._joined.pop(address, None)
        if instance is not None:
            self._left[address] = None
            self._ranking.drop(instance.number)
            self._settle(address)

    def take(self, monitor: Address, view: FleetView, now_s: float) -> list[Address]:
        """Believe `view`; who of its members is suspect. An old view changes nothing."""
        if not self._is_news(monitor, view):
            self.stale_total += 1
            return []
        self._version = view.version
        for address in list(self._members) if view.base_version == 0 else view.removed:
            self._believe(address, None)
        for member in view.members:
            self._believe(member.address, member)
            self._refresh(member.address, now_s)
        self._left = {address: None for address in self._left if address in self._members}
        return [member.address for member in view.members if member.suspect]

    def reserve(self, address: Address, number: int, tokens: int) -> None:
        """A request is being handed out."""
        self._turns += 1
        instance = self._joined[address]
        instance.turn = self._turns
        instance.reserve(number, tokens)
        self._settle(address)

    def accepted(self, address: Address, number: int, now_s: float) -> None:
        """The instance counts the request itself from now on; views will show it soon."""
        instance = self._joined.get(address)
        if instance is not None and number in instance.reserved:
            instance.reserved[number].accepted_s = now_s

    def release(self, address: Address, number: int) -> None:
        """The request is not there any more."""
        instance = self._joined.get(address)
        if instance is not None:
            instance.free(number)
            self._settle(address)

    def pause(self, address: Address) -> int:
        """It refused: do not ask it again before it moves. The number of this refusal."""
        instance = self._joined[address]
        instance.refusal += 1
        instance.paused = True
        self._settle(address)
        return instance.refusal

    def resume(self, address: Address, refusal: int | None = None) -> None:
        """It moved, or its pause (of this `refusal`) is over."""
        instance = self._joined.get(address)
        if instance is not None and instance.paused and refusal in (None, instance.refusal):
            instance.paused = False
            self._settle(address)

    @property
    def source(self) -> tuple[Address | None, int]:
        """Which monitor's view is believed, and its version."""
        return self._monitor, self._version

    @property
    def joined(self) -> list[Address]:
        """Who can be reached."""
        return list(self._joined)

    @property
    def trusted(self) -> list[Address]:
        """The known instances that are not suspect and can be reached, now or for the first time soon."""
        known = [member.address for member in self._members.values() if not member.suspect]
        return [address for address in known if address not in self._left]

    @property
    def placeable(self) -> list[Address]:
        """Who could run a request alone, busy or not."""
        return [address for address in self._joined if address in self._serving]

    @property
    def placeable_count(self) -> int:
        """How many could."""
        return len(self._serving)

    @property
    def open_count(self) -> int:
        """How many may be asked for something now."""
        return len(self._ranking)

    def asks(
        self, slots: int, longest: int, unfit: list[Address], held: Held = NOTHING_HELD
    ) -> list[tuple[Address, Candidate]]:
        """Who may be asked now to hold `slots` at once and `longest` in the end: the best of each size."""
        return [(entry.address, entry.candidate) for entry in self._ranking.best(slots, longest, unfit, held)]

    def has_room(self, slots: int = 1) -> bool:
        """Whether anybody may be asked for so many."""
        return self._ranking.has_room(slots)

    def can_take_over(self, address: Address) -> bool:
        """Whether it may be given what it holds the KV of already: a stream is open, and it serves."""
        member = self._members.get(address)
        return address in self._joined and member is not None and member.ready and not member.suspect

    def capacity(self, address: Address) -> int:
        """Its slots; 0 if nothing is known of it."""
        member = self._members.get(address)
        return member.capacity_slots if member is not None else 0

    def limit(self, address: Address) -> int:
        """The longest sequence that this instance can hold."""
        return _limit(self._members[address])

    def limit_of_all(self, unfit: list[Address]) -> int | None:
        """The longest sequence that any known instance outside `unfit` can hold; None while no instance is known.

        Those not ready or suspect count: they may come back, and only what never fits is given up.
        """
        if not self._limits:
            return None
        left = dict(self._limits)
        for address in dict.fromkeys(unfit):
            if self.capacity(address) > 0:
                left[self.limit(address)] -= 1
        return max((limit for limit, count in left.items() if count), default=0)

    def _is_news(self, monitor: Address, view: FleetView) -> bool:
        if self._monitor != monitor:
            if self._monitor is not None and monitor.incarnation < self._monitor.incarnation:
                return False
            self._monitor, self._version = monitor, 0
        return view.version > self._version

    def forget_monitor(self, monitor: Address) -> None:
        """Its stream is gone: an older one that still speaks is better than none. What it said last stays."""
        if self._monitor == monitor:
            self._monitor = None

    def _believe(self, address: Address, member: MemberView | None) -> None:
        """This is what is known of it now; None: nothing."""
        before = self._members.pop(address, None)
        if before is not None and before.capacity_slots > 0:
            self._limits[_limit(before)] -= 1
            if not self._limits[_limit(before)]:
                del self._limits[_limit(before)]
        if member is not None:
            self._members[address] = member
            if member.capacity_slots > 0:
                self._limits[_limit(member)] = self._limits.get(_limit(member), 0) + 1
        else:
            self._settle(address)

    def _refresh(self, address: Address, now_s: float) -> None:
        instance = self._joined.get(address)
        if instance is not None:
            instance.paused = False
            instance.forget_until(now_s - self._view_lag_s)
            self._settle(address)

    def _settle(self, address: Address) -> None:
        """Something about it changed: count and rank it anew."""
        instance, member = self._joined.get(address), self._members.get(address)
        self.waiting -= self._serving.pop(address, 0)
        if instance is None:
            return
        if member is None or not _can_serve(member):
            self._ranking.drop(instance.number)
            return
        self._serving[address] = member.waiting
        self.waiting += member.waiting
        # What its report calls a long queue gets no longer; and what is asked there already makes one as well.
        if instance.paused or member.waiting >= self._max_waiting:
            self._ranking.drop(instance.number)
            return
        waiting = member.waiting + len(instance.reserved)
        candidate = _candidate(instance, member, waiting)
        is_short = waiting < self._max_waiting
        self._ranking.put(Entry(instance.number, address, candidate, _limit(member), is_short))


def _can_serve(member: MemberView) -> bool:
    if member.suspect or member.draining or not member.ready:
        return False
    return member.kind is GroupKind.LOCAL and member.part in BEGINS and member.plan_version > 0


def _limit(member: MemberView) -> int:
    return min(member.max_positions or member.capacity_slots, member.capacity_slots)


def _candidate(instance: Instance, member: MemberView, waiting: int) -> Candidate:
    return Candidate(
        str(instance.address),
        member.capacity_slots,
        member.free_slots - instance.reserved_tokens,
        member.running + waiting,
        member.waiting_tokens,
        turn=instance.turn,
    )
