"""Elastic groups: which instances hold a request that is longer than any one of them can.

Memory alone decides, by the rule of LoongServe's §5.1: a request gets a group only if the slots that are free there
hold all that it may grow to, so that nothing is evicted for it later. Among groups that do, the fewest instances, those
with the most room first. An instance is in one group at a time, and stays until its leader gives it back or is lost.
Knows neither the manager nor any order.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from dunlin.effects import Address
from dunlin.messages.types import MAX_ALTERNATIVES, Figure, GroupKind, GroupRole, RejectedOption, Why
from dunlin.policies.groups.group_plan import EVEN_SPLIT, Group, GroupCandidate, GroupConstraints


@dataclass(frozen=True, slots=True)
class ElasticGroup:
    """A group that exists, or is being formed: its members, the leader first.

    `promised_slots` is what all requests that were placed there may grow to.
    """

    number: int
    members: tuple[GroupCandidate, ...]
    promised_slots: int = 0

    @property
    def outstanding_slots(self) -> int:
        """Slots that were promised and that no member has set aside yet."""
        return max(0, self.promised_slots - sum(member.guest_slots for member in self.members))

    @property
    def room_slots(self) -> int:
        """Slots for further requests; negative: more was promised than is free."""
        return sum(member.free_slots for member in self.members) - self.outstanding_slots

    @property
    def is_too_small(self) -> bool:
        """Whether its members cannot hold what was promised, even if nothing else runs there."""
        return sum(member.capacity_slots for member in self.members) < self.promised_slots

    @property
    def may_take_more(self) -> bool:
        """Whether every member serves, so that further requests may be placed here."""
        return all(member.serves for member in self.members)


@dataclass(frozen=True, slots=True)
class GroupChoice:
    """Where a request goes: to the group `number` (0: a new one), which from then on has these members."""

    number: int
    members: tuple[Address, ...]
    why: Why


def elastic(candidates: Sequence[GroupCandidate], terms: GroupConstraints = EVEN_SPLIT) -> list[Group]:
    """The elastic groups as they are, without those that are lost; every other instance for itself.

    A group ends with its leader. A new number is one that no group has had.
    """
    groups = existing_groups(candidates)
    made = [_elastic(group) for group in groups]
    grouped = {member.address for group in groups for member in group.members}
    held = {group.number for group in groups}
    next_group = max(terms.next_group, 1 + max((candidate.group for candidate in candidates), default=0))
    for candidate in sorted(candidates, key=lambda one: one.address):
        if candidate.address in grouped:
            continue
        number = candidate.group if candidate.kind is GroupKind.LOCAL else 0
        if number == 0 or number in held:
            number, next_group = next_group, next_group + 1
        held.add(number)
        explain = partial(_why_alone, number, candidate, len(candidates))
        made.append(Group(number, GroupKind.LOCAL, (candidate.address,), (GroupRole.LOCAL,), explain))
    return made


def existing_groups(candidates: Sequence[GroupCandidate]) -> list[ElasticGroup]:
    """The elastic groups that the candidates are in, by number, without members that are lost."""
    led: dict[int, list[GroupCandidate]] = {}
    ordered = sorted(candidates, key=lambda one: one.address)
    there = [one for one in ordered if one.kind is GroupKind.ELASTIC and one.group > 0 and one.alive]
    for candidate in there:
        if candidate.role is GroupRole.LEADER and candidate.group not in led:
            led[candidate.group] = [candidate]
    for candidate in there:
        if candidate.role is GroupRole.MEMBER and candidate.group in led:
            led[candidate.group].append(candidate)
    return [ElasticGroup(number, tuple(led[number])) for number in sorted(led)]


def longest_that_fits(
    candidates: Iterable[GroupCandidate], excluded: Collection[Address] = (), across_nodes: bool = False
) -> int:
    """Tokens of the longest sequence that a group could hold if nothing else ran, also of instances that may come back;
    0: no instance has slots.
    """
    limits = [0]
    staying = [one for one in candidates if not one.leaves and one.address not in excluded]
    for pool in pools_of(staying, across_nodes):
        slots = sum(candidate.capacity_slots for candidate in pool)
        limits.append(min([slots, *(one.max_positions for one in pool if one.max_positions)]))
    return max(limits)


def could_merge(group: ElasticGroup, others: Iterable[ElasticGroup], across_nodes: bool = False) -> bool:
    """Whether one of the `others` could hold what the group was promised, too, if its members joined that one. The
    group is too small for that itself, so it may be among them.
    """
    freed = sum(member.free_slots + member.guest_slots for member in group.members)
    pool = _pool_of(group.members[0], across_nodes)
    return any(
        other.may_take_more
        and _pool_of(other.members[0], across_nodes) == pool
        and other.room_slots + freed >= group.promised_slots
        for other in others
    )


def choose_group(
    slots: int,
    free: Sequence[GroupCandidate],
    groups: Sequence[ElasticGroup],
    excluded: Collection[Address] = (),
    across_nodes: bool = False,
    ways: "Sequence[WayToGroup] | None" = None,
) -> GroupChoice | None:
    """The group that gets a request of `slots` tokens in the end, by the first of the `ways` that finds one; None:
    there is no room now. By default a group that has room is taken as it is; else a new one is formed of the `free`
    instances; else one grows by some.
    """
    usable = [group for group in groups if group.may_take_more and not _has_any(group, excluded)]
    serving = [candidate for candidate in free if candidate.serves and candidate.address not in excluded]
    search = GroupSearch(slots, serving, usable, across_nodes)
    found = (way(search) for way in (WAYS if ways is None else ways))
    return next((choice for choice in found if choice is not None), None)


@dataclass(frozen=True, slots=True)
class GroupSearch:
    """A request that needs `slots` in the end, and what its group may be: one of `groups`, or one of `free` instances.

    `across_nodes`: members may be on several nodes.
    """

    slots: int
    free: Sequence[GroupCandidate]
    groups: Sequence[ElasticGroup]
    across_nodes: bool = False


WayToGroup = Callable[[GroupSearch], GroupChoice | None]
"""One way to find a request a group; None: it finds none."""


def join_group(search: GroupSearch) -> GroupChoice | None:
    """The group with most room, as it is."""
    fitting = [group for group in search.groups if group.room_slots >= search.slots]
    return _taken(search.slots, sorted(fitting, key=lambda one: -one.room_slots)) if fitting else None


def form_group(search: GroupSearch) -> GroupChoice | None:
    """A new group of the fewest free instances that hold it."""
    return _formed(search, choose_members(search.slots, search.free, search.across_nodes))


def form_whole_pool(search: GroupSearch) -> GroupChoice | None:
    """A new group of all free instances that may be in one."""
    fewest = choose_members(search.slots, search.free, search.across_nodes)
    pool = _like(fewest[0], search.free, search.across_nodes) if fewest else ()
    return _formed(search, (*fewest, *(one for one in pool if one not in fewest)))


def form_pair(search: GroupSearch) -> GroupChoice | None:
    """A new group of the two free instances with most room, if both together hold it."""
    for pool in pools_of(search.free, search.across_nodes):
        pair = tuple(sorted(pool, key=lambda one: (-one.free_slots, one.requests, one.address))[:2])
        if len(pair) == 2 and _free(pair) >= search.slots:
            return _formed(search, pair)
    return None


def grow_for(search: GroupSearch) -> GroupChoice | None:
    """A group that gets as many free instances as it lacks slots: the one that needs the fewest."""
    grown = [
        (group, grow_group(group, search.slots - group.room_slots, search.free, search.across_nodes))
        for group in search.groups
    ]
    able = sorted(((len(more), group.number, group, more) for group, more in grown if more), key=lambda one: one[:2])
    if not able:
        return None
    _, _, group, more = able[0]
    members = tuple(member.address for member in (*group.members, *more))
    return GroupChoice(group.number, members, _why_grown(search.slots, group, more))


WAYS: tuple[WayToGroup, ...] = (join_group, form_group, grow_for)
"""An elastic group's: it takes what it has room for, and grows where nothing else holds a request."""


def _formed(search: GroupSearch, members: Sequence[GroupCandidate]) -> GroupChoice | None:
    if not members:
        return None
    why = _why_formed(search.slots, members, [one for one in search.free if one not in members])
    return GroupChoice(0, tuple(member.address for member in members), why)


def choose_members(
    slots: int, free: Sequence[GroupCandidate], across_nodes: bool = False
) -> tuple[GroupCandidate, ...]:
    """The fewest instances of one kind that have `slots` free together, those with the most first; empty: none do."""
    best: tuple[GroupCandidate, ...] = ()
    for pool in pools_of(free, across_nodes):
        room, chosen = 0, list[GroupCandidate]()
        for candidate in sorted(pool, key=lambda one: (-one.free_slots, one.requests, one.address)):
            if room >= slots or candidate.free_slots < 1:
                break
            chosen.append(candidate)
            room += candidate.free_slots
        if chosen and room >= slots and (not best or len(chosen) < len(best)):
            best = tuple(chosen)
    return best


def grow_group(
    group: ElasticGroup, slots: int, free: Sequence[GroupCandidate], across_nodes: bool = False, some: bool = False
) -> tuple[GroupCandidate, ...]:
    """The fewest `free` instances like the group's own that add `slots`; empty, or with `some` all: they cannot."""
    leader = group.members[0]
    alike = [one for one in _like(leader, free, across_nodes) if one.serves]
    enough = choose_members(slots, alike, across_nodes)
    return enough or (tuple(one for one in alike if one.free_slots > 0) if some else ())


def pools_of(candidates: Iterable[GroupCandidate], across_nodes: bool) -> list[list[GroupCandidate]]:
    """The candidates by what could be one group, in the order of their addresses."""
    pools: dict[tuple[str, str], list[GroupCandidate]] = {}
    for candidate in sorted(candidates, key=lambda one: one.address):
        pools.setdefault(_pool_of(candidate, across_nodes), []).append(candidate)
    return list(pools.values())


def _pool_of(candidate: GroupCandidate, across_nodes: bool) -> tuple[str, str]:
    return candidate.weights, "" if across_nodes else candidate.node


def _like(candidate: GroupCandidate, others: Iterable[GroupCandidate], across_nodes: bool) -> Iterator[GroupCandidate]:
    """Those that could be in one group with the candidate, itself included."""
    return (one for one in others if _pool_of(one, across_nodes) == _pool_of(candidate, across_nodes))


def _has_any(group: ElasticGroup, addresses: Collection[Address]) -> bool:
    return any(member.address in addresses for member in group.members)


def _taken(slots: int, fitting: Sequence[ElasticGroup]) -> GroupChoice:
    group, *others = fitting
    rejected = [RejectedOption(f"group {other.number}", f"{other.room_slots} slots free") for other in others]
    figures = (Figure("slots", slots), Figure("group_free_slots", group.room_slots), _members(len(group.members)))
    why = Why("elastic", f"join group {group.number}", figures, tuple(rejected[:MAX_ALTERNATIVES]))
    return GroupChoice(group.number, tuple(member.address for member in group.members), why)


def _why_formed(slots: int, formed: Sequence[GroupCandidate], others: Sequence[GroupCandidate]) -> Why:
    figures = (Figure("slots", slots), Figure("group_free_slots", _free(formed)), _members(len(formed)))
    left = sorted(others, key=lambda one: (-one.free_slots, one.address))[:MAX_ALTERNATIVES]
    rejected = tuple(RejectedOption(one.address.name, f"{one.free_slots} slots free, not needed") for one in left)
    return Why("elastic", f"form a group of {_names(formed)}", figures, rejected)


def _why_grown(slots: int, group: ElasticGroup, more: Sequence[GroupCandidate]) -> Why:
    figures = (
        Figure("slots", slots),
        Figure("group_free_slots", group.room_slots),
        Figure("added_slots", _free(more)),
        _members(len(group.members) + len(more)),
    )
    return Why("elastic", f"add {_names(more)} to group {group.number}", figures)


def _elastic(group: ElasticGroup) -> Group:
    members = tuple(member.address for member in group.members)
    parts = (GroupRole.LEADER, *(GroupRole.MEMBER for _ in members[1:]))
    return Group(group.number, GroupKind.ELASTIC, members, parts, partial(_why_group, group))


def _why_group(group: ElasticGroup) -> Why:
    leader, *others = group.members
    capacity = sum(member.capacity_slots for member in group.members)
    figures = (_members(len(group.members)), Figure("capacity_slots", capacity))
    alone = f"{leader.address.name} leads group {group.number} alone"
    chosen = f"{leader.address.name} leads {_names(others)} in group {group.number}" if others else alone
    return Why("elastic", chosen, figures)


def _why_alone(number: int, candidate: GroupCandidate, ready: int) -> Why:
    figures = (Figure("ready_instances", ready), Figure("capacity_slots", candidate.capacity_slots))
    rejected = (candidate.left,) if candidate.left is not None else ()
    return Why("elastic", f"{candidate.address.name} alone in group {number}", figures, rejected)


def _members(count: int) -> Figure:
    return Figure("group_members", count)


def _free(candidates: Iterable[GroupCandidate]) -> int:
    return sum(candidate.free_slots for candidate in candidates)


def _names(candidates: Sequence[GroupCandidate]) -> str:
    return " and ".join(candidate.address.name for candidate in candidates)
