"""What this dispatcher believes of the instances: the last FleetView, plus what it has itself promised since.

Knows no request but its number and size, and takes no decision; the monitor's word may be old and is corrected by it.
"""

from dataclasses import dataclass, field

from dunlin.effects import Address
from dunlin.messages.fleet import FleetView, MemberView
from dunlin.messages.types import GroupKind, GroupRole
from dunlin.policies.dispatch import CANDIDATE_ORDERS, CandidateOrder, DispatchCandidate
from services.dispatcher.placement.ranking import NO_PREFIX_HITS, InstanceRanking, PrefixHits, RankedInstance

DISPATCHABLE_ROLES = (GroupRole.LOCAL, GroupRole.PREFILL)
"""Parts that requests are given to."""


@dataclass(slots=True)
class Reservation:
    """Tokens promised to a request that the last view cannot have counted yet."""

    tokens: int
    accepted_s: float | None = None


@dataclass(slots=True)
class InstanceState:
    """One instance with an open stream. `refusal` numbers its refusals; `paused`: not to be asked just now.
    `turn` numbers the last hand-out that went there, `number` the streams."""

    address: Address
    number: int
    refusals: int = 0
    paused: bool = False
    last_dispatch: int = 0
    reserved: dict[int, Reservation] = field(default_factory=dict)
    reserved_tokens: int = 0

    def reserve(self, number: int, tokens: int) -> None:
        self.reserved[number] = Reservation(tokens)
        self.reserved_tokens += tokens

    def release(self, number: int) -> None:
        reservation = self.reserved.pop(number, None)
        if reservation is not None:
            self.reserved_tokens -= reservation.tokens

    def drop_reported(self, accepted_s: float) -> None:
        """Drop the reservations that were accepted before: the instance itself has counted and reported them."""
        seen = [
            number
            for number, reservation in self.reserved.items()
            if reservation.accepted_s is not None and reservation.accepted_s <= accepted_s
        ]
        for number in seen:
            self.release(number)


class FleetState:
    """Owns the view and the reservations.

    `waiting` requests wait at instances for slots, as far as is known here.
    `stale_total` counts views that came from an older monitor or were not newer than the last.
    """

    def __init__(
        self, max_waiting: int, view_lag_s: float, order: CandidateOrder = CANDIDATE_ORDERS["least_loaded"]
    ) -> None:
        self.stale_total = 0
        self.waiting = 0
        self._max_waiting = max_waiting
        self._view_lag_s = view_lag_s
        self._connected: dict[Address, InstanceState] = {}
        self._disconnected: dict[Address, None] = {}
        self._members: dict[Address, MemberView] = {}
        self._monitor: Address | None = None
        self._version = 0
        self._dispatches = 0
        self._streams = 0
        self._ranking = InstanceRanking(order)
        self._waiting_by_instance: dict[Address, int] = {}
        self._max_lengths: dict[int, int] = {}

    def add_instance(self, address: Address) -> None:
        """A stream to an instance is open."""
        self.remove_instance(address)
        self._streams += 1
        self._connected[address] = InstanceState(address, self._streams)
        self._disconnected.pop(address, None)
        self._update_ranking(address)

    def remove_instance(self, address: Address) -> None:
        """The stream is gone, and with it all that was promised on it."""
        instance = self._connected.pop(address, None)
        if instance is not None:
            self._disconnected[address] = None
            self._ranking.remove(instance.number)
            self._update_ranking(address)

    def apply_view(self, monitor: Address, view: FleetView, now_s: float) -> list[Address]:
        """Believe `view`; who of its members is suspect. An old view changes nothing."""
        if not self._is_newer(monitor, view):
            self.stale_total += 1
            return []
        self._version = view.version
        for address in list(self._members) if view.base_version == 0 else view.removed:
            self._set_member(address, None)
        for member in view.members:
            self._set_member(member.address, member)
            self._refresh(member.address, now_s)
        self._disconnected = {address: None for address in self._disconnected if address in self._members}
        return [member.address for member in view.members if member.suspect]

    def reserve(self, address: Address, number: int, tokens: int) -> None:
        """A request is being handed out."""
        self._dispatches += 1
        instance = self._connected[address]
        instance.last_dispatch = self._dispatches
        instance.reserve(number, tokens)
        self._update_ranking(address)

    def on_accepted(self, address: Address, number: int, now_s: float) -> None:
        """The instance counts the request itself from now on; views will show it soon."""
        instance = self._connected.get(address)
        if instance is not None and number in instance.reserved:
            instance.reserved[number].accepted_s = now_s

    def release(self, address: Address, number: int) -> None:
        """The request is not there any more."""
        instance = self._connected.get(address)
        if instance is not None:
            instance.release(number)
            self._update_ranking(address)

    def pause(self, address: Address) -> int:
        """It refused: do not ask it again before it moves. The number of this refusal."""
        instance = self._connected[address]
        instance.refusals += 1
        instance.paused = True
        self._update_ranking(address)
        return instance.refusals

    def resume(self, address: Address, refusal: int | None = None) -> None:
        """It moved, or its pause (of this `refusal`) is over."""
        instance = self._connected.get(address)
        if instance is not None and instance.paused and refusal in (None, instance.refusals):
            instance.paused = False
            self._update_ranking(address)

    @property
    def view_source(self) -> tuple[Address | None, int]:
        """Which monitor's view is believed, and its version."""
        return self._monitor, self._version

    @property
    def connected(self) -> list[Address]:
        """Who can be reached."""
        return list(self._connected)

    @property
    def trusted(self) -> list[Address]:
        """The known instances that are not suspect and can be reached, now or for the first time soon."""
        known = [member.address for member in self._members.values() if not member.suspect]
        return [address for address in known if address not in self._disconnected]

    @property
    def serving(self) -> list[Address]:
        """Who could run a request alone, busy or not."""
        return [address for address in self._connected if address in self._waiting_by_instance]

    @property
    def serving_count(self) -> int:
        """How many could."""
        return len(self._waiting_by_instance)

    @property
    def candidate_count(self) -> int:
        """How many may be asked for something now."""
        return len(self._ranking)

    def candidates(
        self, slots: int, longest: int, unfit: list[Address], held: PrefixHits = NO_PREFIX_HITS
    ) -> list[tuple[Address, DispatchCandidate]]:
        """Who may be asked now to hold `slots` at once and `longest` in the end: the best of each size."""
        return [(entry.address, entry.candidate) for entry in self._ranking.best(slots, longest, unfit, held)]

    def has_room(self, slots: int = 1) -> bool:
        """Whether anybody may be asked for so many."""
        return self._ranking.has_room(slots)

    def can_accept_migrated(self, address: Address) -> bool:
        """Whether it may be given what it holds the KV of already: a stream is open, and it serves."""
        member = self._members.get(address)
        return address in self._connected and member is not None and member.ready and not member.suspect

    def capacity_slots(self, address: Address) -> int:
        """Its slots; 0 if nothing is known of it."""
        member = self._members.get(address)
        return member.capacity_slots if member is not None else 0

    def max_length(self, address: Address) -> int:
        """The longest sequence that this instance can hold."""
        return _limit(self._members[address])

    def fleet_max_length(self, unfit: list[Address]) -> int | None:
        """The longest sequence that any known instance outside `unfit` can hold; None while no instance is known.

        Those not ready or suspect count: they may come back, and only what never fits is given up.
        """
        if not self._max_lengths:
            return None
        left = dict(self._max_lengths)
        for address in dict.fromkeys(unfit):
            if self.capacity_slots(address) > 0:
                left[self.max_length(address)] -= 1
        return max((limit for limit, count in left.items() if count), default=0)

    def _is_newer(self, monitor: Address, view: FleetView) -> bool:
        if self._monitor != monitor:
            if self._monitor is not None and monitor.incarnation < self._monitor.incarnation:
                return False
            self._monitor, self._version = monitor, 0
        return view.version > self._version

    def forget_monitor(self, monitor: Address) -> None:
        """Its stream is gone: an older one that still speaks is better than none. What it said last stays."""
        if self._monitor == monitor:
            self._monitor = None

    def _set_member(self, address: Address, member: MemberView | None) -> None:
        """This is what is known of it now; None: nothing."""
        before = self._members.pop(address, None)
        if before is not None and before.capacity_slots > 0:
            self._max_lengths[_limit(before)] -= 1
            if not self._max_lengths[_limit(before)]:
                del self._max_lengths[_limit(before)]
        if member is not None:
            self._members[address] = member
            if member.capacity_slots > 0:
                self._max_lengths[_limit(member)] = self._max_lengths.get(_limit(member), 0) + 1
        else:
            self._update_ranking(address)

    def _refresh(self, address: Address, now_s: float) -> None:
        instance = self._connected.get(address)
        if instance is not None:
            instance.paused = False
            instance.drop_reported(now_s - self._view_lag_s)
            self._update_ranking(address)

    def _update_ranking(self, address: Address) -> None:
        """Something about it changed: count and rank it anew."""
        instance, member = self._connected.get(address), self._members.get(address)
        self.waiting -= self._waiting_by_instance.pop(address, 0)
        if instance is None:
            return
        if member is None or not _can_serve(member):
            self._ranking.remove(instance.number)
            return
        self._waiting_by_instance[address] = member.waiting
        self.waiting += member.waiting
        # What its report calls a long queue gets no longer; and what is asked there already makes one as well.
        if instance.paused or member.waiting >= self._max_waiting:
            self._ranking.remove(instance.number)
            return
        waiting = member.waiting + len(instance.reserved)
        candidate = _candidate(instance, member, waiting)
        is_short = waiting < self._max_waiting
        self._ranking.put(RankedInstance(instance.number, address, candidate, _limit(member), is_short))


def _can_serve(member: MemberView) -> bool:
    if member.suspect or member.draining or not member.ready:
        return False
    return member.kind is GroupKind.LOCAL and member.part in DISPATCHABLE_ROLES and member.plan_version > 0


def _limit(member: MemberView) -> int:
    return min(member.max_positions or member.capacity_slots, member.capacity_slots)


def _candidate(instance: InstanceState, member: MemberView, waiting: int) -> DispatchCandidate:
    return DispatchCandidate(
        str(instance.address),
        member.capacity_slots,
        member.free_slots - instance.reserved_tokens,
        member.running + waiting,
        member.waiting_tokens,
        last_dispatch=instance.last_dispatch,
    )
