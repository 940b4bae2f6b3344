"""The elastic groups while a plan is made: a working copy of their members, which becomes candidates again.

Knows no request, no term and no order.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from dunlin.effects import Address
from dunlin.messages.types import GroupKind, GroupRole, RejectedOption
from dunlin.policies.groups.elastic_groups import ElasticGroup, existing_groups
from dunlin.policies.groups.group_plan import GroupCandidate


class GroupDraft:
    """Owns the members of each elastic group by number. `promised_slots` says what requests of a group may take."""

    def __init__(self, candidates: Sequence[GroupCandidate], promised_slots: Callable[[int], int]) -> None:
        self._candidates = {candidate.address: candidate for candidate in candidates}
        self._promised_slots = promised_slots
        self._members = {group.number: group.members for group in existing_groups(candidates)}
        self._left: dict[Address, RejectedOption] = {}

    @property
    def numbers(self) -> dict[int, None]:
        """The groups that there are."""
        return dict.fromkeys(self._members)

    def group(self, number: int) -> ElasticGroup:
        """A group with what is promised there now. Raises KeyError: there is none of that number."""
        return ElasticGroup(number, self._members[number], self._promised_slots(number))

    def groups(self) -> list[ElasticGroup]:
        """All groups, by number."""
        return [self.group(number) for number in sorted(self._members)]

    def free(self) -> list[GroupCandidate]:
        """The instances that serve and are in no elastic group."""
        grouped = {member.address for members in self._members.values() for member in members}
        return [one for one in self._candidates.values() if one.serves and one.alive and one.address not in grouped]

    def set_members(self, number: int, members: Sequence[Address]) -> None:
        """The group has these members from now on, the leader first."""
        self._members[number] = tuple(self._candidates[address] for address in members)

    def dissolve(self, number: int, because: str) -> None:
        """Its members are on their own again."""
        for member in self._members.pop(number):
            self._left[member.address] = RejectedOption(f"group {number}", because)

    def candidates(self) -> list[GroupCandidate]:
        """All candidates, in the groups of this draft; one that left its group is in none."""
        places = {
            member.address: (number, GroupRole.LEADER if index == 0 else GroupRole.MEMBER)
            for number, members in self._members.items()
            for index, member in enumerate(members)
        }
        return [self._placed(one, places.get(one.address)) for one in self._candidates.values()]

    def _placed(self, candidate: GroupCandidate, place: tuple[int, GroupRole] | None) -> GroupCandidate:
        if place == (candidate.group, candidate.role):
            return candidate  # nothing changes for most
        if place is not None:
            return replace(candidate, kind=GroupKind.ELASTIC, group=place[0], role=place[1])
        if candidate.kind is GroupKind.ELASTIC:
            left = self._left.get(candidate.address)
            return replace(candidate, kind=GroupKind.LOCAL, group=0, role=GroupRole.LOCAL, left=left)
        return candidate
