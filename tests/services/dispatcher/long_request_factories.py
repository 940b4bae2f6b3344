"""A dispatcher of requests that no instance alone can hold: two instances, a manager, and views with a group."""

from typing import Any

from dunlin.effects import Address, Joined
from dunlin.messages.placement import Leads
from dunlin.messages.types import GroupKind, GroupRole
from tests.services.dispatcher.factories import A, B, Bench, member

G, H = Address("global_manager", "g", 5), Address("global_manager", "h", 6)
LONG = range(1, 1501)


def wide(**config: Any) -> Bench:
    """Two instances of 1000 slots, for sequences of up to 5000 tokens, and a manager that leads."""
    made = Bench(**{"placement__long_policy": "group", **config})
    made.fleet(member(A, max_positions=5000), member(B, max_positions=5000))
    made.give(G, Joined())
    made.give(G, Leads(50))
    return made


def group_of(number: int, **free: int) -> list[Any]:
    """A view's members of a group that A leads."""
    place = {"group": number, "kind": GroupKind.ELASTIC, "max_positions": 5000}
    return [
        member(A, part=GroupRole.LEADER, free_slots=free.get("a", 1000), **place),
        member(B, part=GroupRole.MEMBER, free_slots=free.get("b", 1000), **place),
    ]
