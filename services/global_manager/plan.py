"""The orders of one term: who was ordered what, which orders are answered, and which must be given (again).

Knows no stream, no policy and no view; a new term starts with a new object.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from dunlin.effects import Address
from dunlin.messages.plan import Order
from dunlin.messages.types import Part
from dunlin.policies.group import Group


class Answer(IntEnum):
    """What a member said to its newest order."""

    NONE = 0
    DONE = 1
    REFUSED = 2


@dataclass(slots=True)
class _Given:
    order: Order
    answer: Answer = Answer.NONE


class Term:
    """One term's plan. Plan versions only grow; one version covers the orders that were made together."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.plan_version = 0
        self._given: dict[Address, _Given] = {}

    def revise(self, groups: Sequence[Group]) -> dict[Address, Order]:
        """Bring the orders in line with `groups`; returns the new ones. Members no longer grouped are forgotten."""
        wanted = {member: (group, part) for group in groups for member, part in _members(group)}
        for member in [known for known in self._given if known not in wanted]:
            del self._given[member]
        changed = {member: it for member, it in wanted.items() if not self._says(member, *it)}
        if changed:
            self.plan_version += 1
        for member, (group, part) in changed.items():
            self._given[member] = _Given(self._order(group, part))
        return {member: self._given[member].order for member in changed}

    def answer(self, member: Address, epoch: int, plan_version: int, answer: Answer) -> bool:
        """Note a member's answer; False when it is not about its newest order."""
        given = self._given.get(member)
        if given is None or (given.order.epoch, given.order.plan_version) != (epoch, plan_version):
            return False
        given.answer = answer
        return True

    def order_of(self, member: Address) -> Order | None:
        """The member's newest order, answered or not."""
        given = self._given.get(member)
        return given.order if given is not None else None

    def open_orders(self) -> dict[Address, Order]:
        """The orders that must be given again: unanswered ones as they are, refused ones under a new plan version."""
        refused = [given for given in self._given.values() if given.answer is Answer.REFUSED]
        if refused:
            self.plan_version += 1
        for given in refused:
            given.order = replace(given.order, plan_version=self.plan_version)
            given.answer = Answer.NONE
        return {member: given.order for member, given in self._given.items() if given.answer is Answer.NONE}

    def has_open_orders(self) -> bool:
        """Whether some member has not done its newest order."""
        return any(given.answer is not Answer.DONE for given in self._given.values())

    def _says(self, member: Address, group: Group, part: Part) -> bool:
        given = self._given.get(member)
        if given is None:
            return False
        order = given.order
        return (order.group, order.kind, order.members, order.part) == (group.number, group.kind, group.members, part)

    def _order(self, group: Group, part: Part) -> Order:
        return Order(self.epoch, self.plan_version, group.number, group.kind, part, group.members, why=group.why)


def _members(group: Group) -> list[tuple[Address, Part]]:
    return list(zip(group.members, group.parts, strict=True))
