"""How instances are grouped. A policy maps candidates to groups and knows neither the manager nor any order.

Group numbers are names: a member that already leads a group keeps its number, so that a new plan or a new leader
changes nothing that need not change. The same holds for parts.
"""

from collections.abc import Sequence
from functools import partial

from dunlin.effects import Address
from dunlin.messages.types import Figure, GroupKind, GroupRole, RejectedOption, Why
from dunlin.policies.groups.elastic_groups import elastic
from dunlin.policies.groups.elastic_rules import ELASTIC_RULES
from dunlin.policies.groups.group_plan import EVEN_SPLIT, Group, GroupCandidate, GroupConstraints, GroupPolicy

SLACK = 1
"""A split may be off by so many instances: one that joins or is lost for a while makes no other change sides."""


def local_groups(candidates: Sequence[GroupCandidate], terms: GroupConstraints = EVEN_SPLIT) -> list[Group]:
    """Every instance for itself, and all of them do all."""
    return [_local(number, candidate, len(candidates)) for number, candidate in _numbered(candidates)]


def prefill_decode(candidates: Sequence[GroupCandidate], terms: GroupConstraints = EVEN_SPLIT) -> list[Group]:
    """Every instance for itself; some compute prompts, the others go on after the first token (DistServe).

    The split is static: members keep their side, new ones join the side that is short. Only when a side is empty, or
    off by more than `SLACK`, the member with the fewest requests changes. Where prefill instances are named, each has
    its side by its name, and another's only while that one is empty. One that serves alone does all.
    """
    ordered = sorted(candidates, key=lambda one: one.address)
    able = [one for one in ordered if one.serves]
    parts = {one.address: one.role for one in ordered}
    if len(able) < 2:
        parts.update((one.address, GroupRole.LOCAL) for one in able)
    elif terms.prefill_names:
        parts.update(_roles_by_name(able, terms.prefill_names))
    else:
        parts.update(_choose_roles(able, _prefills(len(able), terms.prefill_share)))
    counts = _counted([parts[one.address] for one in able])
    return [_role_group(number, one, parts[one.address], len(able), counts) for number, one in _numbered(candidates)]


def _prefills(instances: int, share: float) -> int:
    """The number of prefill instances out of at least two; never none and never all."""
    return min(instances - 1, max(1, int(share * instances + 0.5)))


def _roles_by_name(able: Sequence[GroupCandidate], prefill_names: Sequence[str]) -> dict[Address, GroupRole]:
    sides = {one.address: GroupRole.PREFILL if one.address.name in prefill_names else GroupRole.DECODE for one in able}
    for side in (GroupRole.PREFILL, GroupRole.DECODE):
        if side not in sides.values():
            sides[min(able, key=_cost_of_change).address] = side
    return sides


def _choose_roles(able: Sequence[GroupCandidate], wanted: int) -> dict[Address, GroupRole]:
    sides: dict[Address, GroupRole] = {}
    for one in able:
        if one.role in (GroupRole.PREFILL, GroupRole.DECODE):
            sides[one.address] = one.role
    counts = _counted(list(sides.values()))
    for one in able:
        if one.address not in sides:
            side = sides[one.address] = GroupRole.PREFILL if counts[GroupRole.PREFILL] < wanted else GroupRole.DECODE
            counts[side] += 1
    goals = ((GroupRole.DECODE, len(able) - wanted), (GroupRole.PREFILL, wanted))
    for (side, goal), (other, _) in zip(goals, reversed(goals), strict=True):
        # At most one side is short: the other then has all that it needs, and more.
        missing = max(counts[side] == 0, goal - counts[side] - SLACK)
        if missing:
            others = sorted((one for one in able if sides[one.address] is other), key=_cost_of_change)
            sides.update((one.address, side) for one in others[:missing])
    return sides


def _cost_of_change(candidate: GroupCandidate) -> tuple[int, Address]:
    return candidate.requests, candidate.address


def _counted(parts: Sequence[GroupRole]) -> dict[GroupRole, int]:
    return {side: parts.count(side) for side in (GroupRole.PREFILL, GroupRole.DECODE)}


def _numbered(candidates: Sequence[GroupCandidate]) -> list[tuple[int, GroupCandidate]]:
    """A number for each. One held twice stays with the first; newcomers get the lowest unheld."""
    holders: dict[int, Address] = {}
    ordered = sorted(candidates, key=lambda one: one.address)
    for candidate in ordered:
        if candidate.group > 0:
            holders.setdefault(candidate.group, candidate.address)
    numbered = []
    lowest = 1
    for candidate in ordered:
        number = candidate.group
        if holders.get(number) != candidate.address:
            while lowest in holders:
                lowest += 1
            number = lowest
            holders[number] = candidate.address
        numbered.append((number, candidate))
    return numbered


def _local(number: int, candidate: GroupCandidate, ready: int) -> Group:
    explain = partial(_why_local, number, candidate, ready)
    return Group(number, GroupKind.LOCAL, (candidate.address,), (GroupRole.LOCAL,), explain)


def _why_local(number: int, candidate: GroupCandidate, ready: int) -> Why:
    figures = (Figure("ready_instances", ready), Figure("capacity_slots", candidate.capacity_slots))
    return Why("local_groups", f"{candidate.address.name} alone in group {number}", figures)


def _role_group(
    number: int, candidate: GroupCandidate, part: GroupRole, serving: int, counts: dict[GroupRole, int]
) -> Group:
    explain = partial(_why_role, number, candidate, part, serving, counts)
    return Group(number, GroupKind.LOCAL, (candidate.address,), (part,), explain)


def _why_role(
    number: int, candidate: GroupCandidate, part: GroupRole, serving: int, counts: dict[GroupRole, int]
) -> Why:
    prefills, decodes = counts[GroupRole.PREFILL], counts[GroupRole.DECODE]
    figures = (
        Figure("serving_instances", serving),
        Figure("prefill_instances", prefills),
        Figure("decode_instances", decodes),
        Figure("requests", candidate.requests),
    )
    others = {
        GroupRole.PREFILL: (RejectedOption("decode", f"{decodes} instances do"),),
        GroupRole.DECODE: (RejectedOption("prefill", f"{prefills} instances do"),),
    }
    return Why(
        "prefill_decode",
        f"{candidate.address.name} does {part.name.lower()} in group {number}",
        figures,
        others.get(part, (RejectedOption("split", "it serves alone"),)),
    )


GROUP_POLICIES: dict[str, GroupPolicy] = {
    "local_groups": local_groups,
    "prefill_decode": prefill_decode,
    **dict.fromkeys(ELASTIC_RULES, elastic),
}
GROUPS_OF_SEVERAL = tuple(ELASTIC_RULES)
"""The policies whose groups may have several members, for requests that no instance alone can hold. How they get those:
`elastic_rules`."""
