"""The orders of one term: the newest order of each member, its answer, and the orders that must be sent (again).

Knows no stream, no policy and no view; a new term starts with a new object.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from dunlin.effects import Address
from dunlin.messages.plan import GroupOrder
from dunlin.messages.types import GroupRole
from dunlin.policies.groups.group_plan import Group


class OrderStatus(IntEnum):
    """A member's answer to its newest order."""

    NONE = 0
    DONE = 1
    REFUSED = 2


@dataclass(slots=True)
class _SentOrder:
    order: GroupOrder
    status: OrderStatus = OrderStatus.NONE


class PlanTerm:
    """One term's plan. Plan versions only grow; one version covers the orders that were made together."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.plan_version = 0
        self._sent: dict[Address, _SentOrder] = {}

    def update_groups(self, groups: Sequence[Group]) -> dict[Address, GroupOrder]:
        """Bring the orders in line with `groups`; returns the new ones. Members no longer grouped are forgotten."""
        wanted = {member: (group, role) for group in groups for member, role in _members(group)}
        for member in [known for known in self._sent if known not in wanted]:
            del self._sent[member]
        changed = {member: it for member, it in wanted.items() if not self._is_current(member, *it)}
        if changed:
            self.plan_version += 1
        for member, (group, role) in changed.items():
            self._sent[member] = _SentOrder(self._order(group, role))
        return {member: self._sent[member].order for member in changed}

    def record_answer(self, member: Address, epoch: int, plan_version: int, answer: OrderStatus) -> bool:
        """Note a member's answer; False when it is not about its newest order."""
        given = self._sent.get(member)
        if given is None or (given.order.epoch, given.order.plan_version) != (epoch, plan_version):
            return False
        given.status = answer
        return True

    def order_of(self, member: Address) -> GroupOrder | None:
        """The member's newest order, answered or not."""
        given = self._sent.get(member)
        return given.order if given is not None else None

    def open_orders(self) -> dict[Address, GroupOrder]:
        """The orders that must be given again: unanswered ones as they are, refused ones under a new plan version."""
        # Members of a group follow one version of it: where one refused, the next plan has another group.
        refused = [
            given
            for given in self._sent.values()
            if given.status is OrderStatus.REFUSED and len(given.order.members) == 1
        ]
        if refused:
            self.plan_version += 1
        for given in refused:
            given.order = replace(given.order, plan_version=self.plan_version)
            given.status = OrderStatus.NONE
        return {member: given.order for member, given in self._sent.items() if given.status is OrderStatus.NONE}

    def renew(self, group: int) -> dict[Address, GroupOrder]:
        """Give the orders of a group again, as they are, under a new plan version; empty: there is no such group."""
        given = {member: one for member, one in self._sent.items() if one.order.group == group}
        self.plan_version += bool(given)
        for one in given.values():
            one.order = replace(one.order, plan_version=self.plan_version)
            one.status = OrderStatus.NONE
        return {member: one.order for member, one in given.items()}

    def is_formed(self, group: int) -> bool:
        """Whether every member of the group has done its order."""
        statuses = [given.status for given in self._sent.values() if given.order.group == group]
        return bool(statuses) and all(status is OrderStatus.DONE for status in statuses)

    def has_open_orders(self) -> bool:
        """Whether some member has not done its newest order."""
        return any(given.status is not OrderStatus.DONE for given in self._sent.values())

    def _is_current(self, member: Address, group: Group, role: GroupRole) -> bool:
        given = self._sent.get(member)
        if given is None:
            return False
        order = given.order
        return (order.group, order.kind, order.members, order.part) == (group.number, group.kind, group.members, role)

    def _order(self, group: Group, role: GroupRole) -> GroupOrder:
        return GroupOrder(self.epoch, self.plan_version, group.number, group.kind, role, group.members, why=group.why)


def _members(group: Group) -> list[tuple[Address, GroupRole]]:
    return list(zip(group.members, group.roles, strict=True))
