"""What becomes of a request that no instance alone can hold, at a dispatcher. Knows no stream, no manager, no view."""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.types import MAX_ALTERNATIVES, Figure, RejectedOption, Why

LONG_POLICIES = ("refuse", "group")
"""`refuse`: it is refused at the door. `group`: the global manager is asked for a group that holds it."""


@dataclass(frozen=True, slots=True)
class KnownGroup:
    """An elastic group as the last view shows it. `free_slots`: of all members, less what was sent there since."""

    number: int
    leader: Address
    free_slots: int


@dataclass(frozen=True, slots=True)
class KnownGroupChoice:
    """The chosen group, and why."""

    group: KnownGroup
    why: Why


def roomiest_group(slots: int, groups: Sequence[KnownGroup]) -> KnownGroupChoice | None:
    """The group with most free slots, without a manager that could form another; None: it has not as many."""
    ordered = sorted(groups, key=lambda group: (-group.free_slots, group.number))
    if not ordered or ordered[0].free_slots < slots:
        return None
    chosen, *others = ordered
    figures = (Figure("slots", slots), Figure("group_free_slots", chosen.free_slots))
    rejected = [RejectedOption(f"group {one.number}", f"{one.free_slots} slots free") for one in others]
    rejected.insert(0, RejectedOption("ask the manager", "none leads"))
    why = Why(
        "roomiest_group", f"{chosen.leader.name}, group {chosen.number}", figures, tuple(rejected[:MAX_ALTERNATIVES])
    )
    return KnownGroupChoice(chosen, why)
