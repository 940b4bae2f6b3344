"""The instances as this dispatcher sees them: the last FleetView, less what it has reserved on them since.

A view may be old: until the instances' own reports count a dispatched request, a reservation stands for its tokens.
Knows a request's number and size, nothing else of it, and takes no decision.
"""

from dataclasses import dataclass, field, replace

from dunlin.effects import Address
from dunlin.messages.fleet import FleetView, MemberView
from dunlin.messages.types import GroupKind, GroupRole, RequestClass
from dunlin.policies.dispatch import CANDIDATE_ORDERS, CandidateOrder, DispatchCandidate
from services.dispatcher.placement.ranking import NO_PREFIX_HITS, InstanceRanking, PrefixHits, RankedInstance

DISPATCHABLE_KINDS = (GroupKind.LOCAL, GroupKind.ELASTIC)
DISPATCHABLE_ROLES = (GroupRole.LOCAL, GroupRole.PREFILL, GroupRole.LEADER, GroupRole.MEMBER)
"""Groups whose members requests are dispatched to, and the members' roles."""


@dataclass(slots=True)
class Reservation:
    """Tokens of a dispatched request that the last view cannot have counted yet; `accepted_s`: when it was accepted."""

    tokens: int
    request_class: RequestClass
    accepted_s: float | None = None


@dataclass(slots=True)
class InstanceState:
    """One instance with an open stream.

    `number` counts the streams of this dispatcher, `refusals` those of the instance; `paused`: it refused lately and is
    no candidate. `last_dispatch` is this dispatcher's counter of dispatches when the last one went there.
    """

    address: Address
    number: int
    refusals: int = 0
    paused: bool = False
    last_dispatch: int = 0
    reserved: dict[int, Reservation] = field(default_factory=dict)
    reserved_tokens: list[int] = field(default_factory=lambda: [0] * len(RequestClass))
    """Of each class."""
    reserved_requests: list[int] = field(default_factory=lambda: [0] * len(RequestClass))

    def reserve(self, number: int, tokens: int, request_class: RequestClass) -> None:
        """Reserve `tokens` for request `number`."""
        self.release(number)
        self.reserved[number] = Reservation(tokens, request_class)
        self.reserved_tokens[request_class] += tokens
        self.reserved_requests[request_class] += 1

    def release(self, number: int) -> None:
        """Drop the reservation of request `number`, if there is one."""
        reservation = self.reserved.pop(number, None)
        if reservation is not None:
            self.reserved_tokens[reservation.request_class] -= reservation.tokens
            self.reserved_requests[reservation.request_class] -= 1

    def drop_reported(self, accepted_s: float) -> None:
        """Drop the reservations that were accepted by `accepted_s`: the instance's own report counts those requests."""
        seen = [
            number
            for number, reservation in self.reserved.items()
            if reservation.accepted_s is not None and reservation.accepted_s <= accepted_s
        ]
        for number in seen:
            self.release(number)


class FleetState:
    """Owns the last view, the reservations and the rankings of candidates, which are updated at every change.

    There is a ranking for each class of requests: an interactive one does not see the batch work that an instance would
    put aside for it. `stale_total` counts views that came from an older monitor or were not newer than the last.

    Args:
        max_waiting: requests that may wait at one instance for slots.
        view_lag_s: seconds until an accepted request is in the views at the latest.
        order: the order of candidates that belongs to the dispatch policy.
    """

    def __init__(
        self, max_waiting: int, view_lag_s: float, order: CandidateOrder = CANDIDATE_ORDERS["least_loaded"]
    ) -> None:
        self.stale_total = 0
        self._max_waiting = max_waiting
        self._view_lag_s = view_lag_s
        self._connected: dict[Address, InstanceState] = {}
        self._disconnected: dict[Address, None] = {}
        self._members: dict[Address, MemberView] = {}
        self._monitor: Address | None = None
        self._open_monitors: dict[Address, None] = {}
        self._version = 0
        self._dispatches = 0
        self._streams = 0
        self._order = order
        # The one for batch requests is made with the first of them.
        self._rankings = {RequestClass.INTERACTIVE: InstanceRanking(order)}
        self._waiting = [0] * len(RequestClass)
        self._waiting_by_instance: dict[Address, list[int]] = {}
        self._max_lengths: dict[int, int] = {}

    def add_instance(self, address: Address) -> None:
        """A stream to an instance is open."""
        self.remove_instance(address)
        self._streams += 1
        self._connected[address] = InstanceState(address, self._streams)
        self._disconnected.pop(address, None)
        self._update_ranking(address)

    def remove_instance(self, address: Address) -> None:
        """The stream to an instance ended, and with it the reservations."""
        instance = self._connected.pop(address, None)
        if instance is not None:
            self._disconnected[address] = None
            self._remove_from_rankings(instance)
            self._update_ranking(address)

    def apply_view(self, monitor: Address, view: FleetView, now_s: float) -> list[Address]:
        """Apply a full or incremental view; its suspect members. An old view is counted and ignored."""
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

    def reserve(
        self, address: Address, number: int, tokens: int, request_class: RequestClass = RequestClass.INTERACTIVE
    ) -> None:
        """Request `number` of so many tokens is being dispatched to `address`."""
        self._dispatches += 1
        instance = self._connected[address]
        instance.last_dispatch = self._dispatches
        instance.reserve(number, tokens, request_class)
        self._update_ranking(address)

    def on_accepted(self, address: Address, number: int, now_s: float) -> None:
        """The instance accepted request `number`: its next report counts it, and views follow after `view_lag_s`."""
        instance = self._connected.get(address)
        if instance is not None and number in instance.reserved:
            instance.reserved[number].accepted_s = now_s

    def release(self, address: Address, number: int) -> None:
        """Request `number` is not at `address` any more."""
        instance = self._connected.get(address)
        if instance is not None:
            instance.release(number)
            self._update_ranking(address)

    def pause(self, address: Address) -> int:
        """The instance refused: it is no candidate until `resume` or its next report. The number of this refusal."""
        instance = self._connected[address]
        instance.refusals += 1
        instance.paused = True
        self._update_ranking(address)
        return instance.refusals

    def limit_length(self, address: Address, tokens: int) -> None:
        """The instance says that it holds no longer sequence, whatever the last view says; the next view that tells of
        it counts again.
        """
        member = self._members.get(address)
        if member is not None and tokens < _max_length(member):
            free_slots = min(member.free_slots, tokens)
            self._set_member(address, replace(member, capacity_slots=tokens, free_slots=free_slots))
            self._update_ranking(address)

    def resume(self, address: Address, refusal: int | None = None) -> None:
        """Slots may be free again: a candidate again, unless a newer refusal than `refusal` (None: any) came."""
        instance = self._connected.get(address)
        if instance is not None and instance.paused and refusal in (None, instance.refusals):
            instance.paused = False
            self._update_ranking(address)

    @property
    def view_source(self) -> tuple[Address | None, int]:
        """The monitor that the last view came from, and the view's version."""
        return self._monitor, self._version

    @property
    def members(self) -> list[MemberView]:
        """All instances of the last view."""
        return list(self._members.values())

    @property
    def connected(self) -> list[Address]:
        """The instances with an open stream."""
        return list(self._connected)

    @property
    def trusted(self) -> list[Address]:
        """The instances of the view that are not suspect and have a stream, or have not had one yet."""
        known = [member.address for member in self._members.values() if not member.suspect]
        return [address for address in known if address not in self._disconnected]

    @property
    def serving(self) -> list[Address]:
        """The connected instances that could run a request, busy or not."""
        return [address for address in self._connected if address in self._waiting_by_instance]

    @property
    def serving_count(self) -> int:
        """The number of `serving` instances."""
        return len(self._waiting_by_instance)

    def waiting_of(self, request_class: RequestClass) -> int:
        """How many requests of the class wait at serving instances for slots, by the last view."""
        return self._waiting[request_class]

    def candidate_count(self, request_class: RequestClass = RequestClass.INTERACTIVE) -> int:
        """How many instances a request of the class may be dispatched to now, if it is small enough."""
        return len(self._ranking_of(request_class))

    def candidates(
        self,
        slots: int,
        max_length: int,
        excluded: list[Address],
        hits: PrefixHits = NO_PREFIX_HITS,
        request_class: RequestClass = RequestClass.INTERACTIVE,
    ) -> list[tuple[Address, DispatchCandidate]]:
        """The best candidates of each shape that can hold `slots` tokens now and `max_length` in the end.

        Instances in `excluded` are left out; `hits` are the tokens of the request's prefix that instances hold.
        """
        best = self._ranking_of(request_class).best(slots, max_length, excluded, hits)
        return [(entry.address, entry.candidate) for entry in best]

    def has_room(self, slots: int = 1, request_class: RequestClass = RequestClass.INTERACTIVE) -> bool:
        """Whether any candidate takes a request of `slots` tokens and that class now."""
        return self._ranking_of(request_class).has_room(slots)

    def can_accept_migrated(self, address: Address) -> bool:
        """Whether a request whose KV the instance holds may be dispatched to it: connected, ready and not suspect.

        A draining or full instance qualifies: the request takes no slots that it does not have already.
        """
        member = self._members.get(address)
        return address in self._connected and member is not None and member.ready and not member.suspect

    def capacity_slots(self, address: Address) -> int:
        """The instance's token slots; 0 if it is not in the view."""
        member = self._members.get(address)
        return member.capacity_slots if member is not None else 0

    def max_length(self, address: Address) -> int:
        """Tokens of the longest sequence that this instance can hold. Raises KeyError: it is not in the view."""
        return _max_length(self._members[address])

    def fleet_max_length(self, excluded: list[Address]) -> int | None:
        """Tokens of the longest sequence that any known instance outside `excluded` can hold; None: none is known.

        Suspect instances and those not ready count: they may come back, and only what can never fit is refused.
        """
        if not self._max_lengths:
            return None
        left = dict(self._max_lengths)
        for address in dict.fromkeys(excluded):
            if self.capacity_slots(address) > 0:
                left[self.max_length(address)] -= 1
        return max((limit for limit, count in left.items() if count), default=0)

    def _is_newer(self, monitor: Address, view: FleetView) -> bool:
        if any(one.name == monitor.name and one.incarnation > monitor.incarnation for one in self._open_monitors):
            return False
        if self._monitor != monitor:
            if self._monitor is not None and monitor.incarnation < self._monitor.incarnation:
                return False
            self._monitor, self._version = monitor, 0
        return view.version > self._version

    def add_monitor(self, monitor: Address) -> None:
        """A stream to `monitor` is open: a process of its name that it replaced is not heard, even before it speaks."""
        self._open_monitors[monitor] = None

    def forget_monitor(self, monitor: Address) -> None:
        """The stream to `monitor` ended: an older monitor's views are accepted again. The last view stays."""
        self._open_monitors.pop(monitor, None)
        if self._monitor == monitor:
            self._monitor = None

    def _set_member(self, address: Address, member: MemberView | None) -> None:
        """Replace the view's entry of `address`; None: remove it. Keeps the counts of maximum lengths."""
        before = self._members.pop(address, None)
        if before is not None and before.capacity_slots > 0:
            self._max_lengths[_max_length(before)] -= 1
            if not self._max_lengths[_max_length(before)]:
                del self._max_lengths[_max_length(before)]
        if member is not None:
            self._members[address] = member
            if member.capacity_slots > 0:
                self._max_lengths[_max_length(member)] = self._max_lengths.get(_max_length(member), 0) + 1
        else:
            self._update_ranking(address)

    def _refresh(self, address: Address, now_s: float) -> None:
        instance = self._connected.get(address)
        if instance is not None:
            instance.paused = False
            instance.drop_reported(now_s - self._view_lag_s)
            self._update_ranking(address)

    def _update_ranking(self, address: Address) -> None:
        """Count `address` as serving or not, and put it into the rankings or out of them, by what is known now."""
        instance, member = self._connected.get(address), self._members.get(address)
        for request_class, count in enumerate(self._waiting_by_instance.pop(address, ())):
            self._waiting[request_class] -= count
        if instance is None:
            return
        if member is None or not _can_serve(member):
            self._remove_from_rankings(instance)
            return
        waiting = self._waiting_by_instance[address] = [member.waiting - member.batch_waiting, member.batch_waiting]
        for request_class in RequestClass:
            self._waiting[request_class] += waiting[request_class]
        for request_class, ranking in self._rankings.items():
            self._rank(ranking, request_class, instance, member)

    def _rank(
        self, ranking: InstanceRanking, request_class: RequestClass, instance: InstanceState, member: MemberView
    ) -> None:
        reported = self._waiting_by_instance[instance.address][request_class]
        # An instance whose reported queue is full gets nothing more; requests dispatched since count as queued too.
        if instance.paused or reported >= self._max_waiting:
            ranking.remove(instance.number)
            return
        has_short_queue = reported + instance.reserved_requests[request_class] < self._max_waiting
        candidate = _CANDIDATES[request_class](instance, member)
        ranking.put(RankedInstance(instance.number, instance.address, candidate, _max_length(member), has_short_queue))

    def _ranking_of(self, request_class: RequestClass) -> InstanceRanking:
        ranking = self._rankings.get(request_class)
        if ranking is None:
            ranking = self._rankings[request_class] = InstanceRanking(self._order)
            for address in self._connected:
                self._update_ranking(address)
        return ranking

    def _remove_from_rankings(self, instance: InstanceState) -> None:
        for ranking in self._rankings.values():
            ranking.remove(instance.number)


def _can_serve(member: MemberView) -> bool:
    if member.suspect or member.draining or not member.ready:
        return False
    return member.kind in DISPATCHABLE_KINDS and member.part in DISPATCHABLE_ROLES and member.plan_version > 0


def _max_length(member: MemberView) -> int:
    return min(member.max_positions or member.capacity_slots, member.capacity_slots)


def _interactive_candidate(instance: InstanceState, member: MemberView) -> DispatchCandidate:
    """The instance without the batch work that it would put aside."""
    reserved = instance.reserved_tokens[RequestClass.INTERACTIVE]
    if not member.preempts_batch:
        reserved += instance.reserved_tokens[RequestClass.BATCH]
    waiting = member.waiting - member.batch_waiting + instance.reserved_requests[RequestClass.INTERACTIVE]
    return DispatchCandidate(
        str(instance.address),
        member.capacity_slots,
        member.free_slots + member.preemptible_slots - reserved,
        member.running - member.preemptible_running + waiting,
        member.waiting_tokens - member.batch_waiting_tokens,
        last_dispatch=instance.last_dispatch,
    )


def _batch_candidate(instance: InstanceState, member: MemberView) -> DispatchCandidate:
    return DispatchCandidate(
        str(instance.address),
        member.capacity_slots,
        member.free_slots - sum(instance.reserved_tokens),
        member.running + member.waiting + len(instance.reserved),
        member.waiting_tokens,
        last_dispatch=instance.last_dispatch,
    )


_CANDIDATES = {RequestClass.INTERACTIVE: _interactive_candidate, RequestClass.BATCH: _batch_candidate}
