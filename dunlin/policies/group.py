"""How instances are grouped. A policy maps candidates to groups and knows neither the manager nor any order.

Group numbers are names: a member that already leads a group keeps its number, so that a new plan or a new leader
changes nothing that need not change.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.types import Figure, GroupKind, Part, Why


@dataclass(frozen=True, slots=True)
class Candidate:
    """An instance that may be grouped. `group` is the group that it is in, 0 for none."""

    address: Address
    capacity_slots: int = 0
    group: int = 0


@dataclass(frozen=True, slots=True)
class Group:
    """Members that step together, in this order; the first leads. `parts` has one entry per member."""

    number: int
    kind: GroupKind
    members: tuple[Address, ...]
    parts: tuple[Part, ...]
    why: Why


GroupPolicy = Callable[[Sequence[Candidate]], list[Group]]


def local_groups(candidates: Sequence[Candidate]) -> list[Group]:
    """Every instance for itself. A number held twice stays with the first; newcomers get the lowest unheld."""
    holders: dict[int, Address] = {}
    for candidate in sorted(candidates, key=lambda one: one.address):
        if candidate.group > 0:
            holders.setdefault(candidate.group, candidate.address)
    groups = []
    lowest = 1
    for candidate in sorted(candidates, key=lambda one: one.address):
        number = candidate.group
        if holders.get(number) != candidate.address:
            while lowest in holders:
                lowest += 1
            number = lowest
            holders[number] = candidate.address
        groups.append(_local(number, candidate, len(candidates)))
    return groups


def _local(number: int, candidate: Candidate, ready: int) -> Group:
    figures = (Figure("ready_instances", ready), Figure("capacity_slots", candidate.capacity_slots))
    why = Why("local_groups", f"{candidate.address.name} alone in group {number}", figures)
    return Group(number, GroupKind.LOCAL, (candidate.address,), (Part.LOCAL,), why)


GROUP_POLICIES: dict[str, GroupPolicy] = {"local_groups": local_groups}
