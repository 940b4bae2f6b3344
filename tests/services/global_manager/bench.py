"""A leading manager with a fleet that follows its orders, for tests with exact times."""

from dataclasses import replace
from typing import Any

from dunlin.effects import Address, Effect, Joined, Message, Send
from dunlin.messages.fleet import FleetView, MemberView
from dunlin.messages.membership import Elected
from dunlin.messages.placement import LongPlaced, PlaceLong
from dunlin.messages.plan import AskMembers, GroupOrder, GroupOrderDone, ReturnMembers
from dunlin.messages.types import GroupKind, GroupRole
from dunlin.policies.loongserve.inputs import GroupTimes
from services.global_manager.config import GlobalManagerConfig
from services.global_manager.core import GlobalManagerCore, MovesDue
from tests.settings import configured

ME = Address("global_manager", "g", 2)
ETCD = Address("etcd", "")
MONITOR = Address("monitor", "m", 3)
A, B, C, D = (Address("instance", name, number) for number, name in enumerate("abcd", start=10))
D1, D2 = Address("dispatcher", "d1", 4), Address("dispatcher", "d2", 5)
EPOCH = 50
ALONE = GroupKind.LOCAL


class Fleet:
    """A leading manager, instances that follow their orders (but for the `silent`), and the views that show it."""

    def __init__(
        self, *instances: Address, slots: int = 100, leads: bool = True, preset: str = "elastic",
        times: GroupTimes | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        config = configured(GlobalManagerConfig, preset=preset, role="manager", **settings)
        self.core = GlobalManagerCore(ME, config, times)
        self.now_s = 0.0
        self.silent: set[Address] = set()
        self.orders: dict[Address, GroupOrder] = {}
        self.told: list[tuple[Address, Message]] = []
        self.members = {
            one: MemberView(one, ready=True, capacity_slots=slots, free_slots=slots, max_positions=10_000, node="n")
            for one in instances
        }
        self.version = 0
        for one in (*instances, D1, D2):
            self.give(one, Joined())
        self.view()
        if leads:
            self.give(ETCD, Elected(EPOCH))
            self.view()

    def give(self, sender: Address, message: Message, at_s: float | None = None) -> list[Effect]:
        self.now_s = self.now_s if at_s is None else at_s
        effects = list(self.core.receive(self.now_s, sender, message))
        sent = [effect for effect in effects if isinstance(effect, Send)]
        self.told += [(one.to, one.message) for one in sent if one.to in (D1, D2)]
        for one in sent:
            if isinstance(one.message, GroupOrder):
                self.orders[one.to] = one.message
        for one in sent:
            if isinstance(one.message, GroupOrder) and one.to not in self.silent:
                self.give(one.to, GroupOrderDone(one.message.epoch, one.message.plan_version))
        return effects

    def follow(self, instance: Address) -> None:
        self.silent.discard(instance)
        order = self.orders[instance]
        self.give(instance, GroupOrderDone(order.epoch, order.plan_version))

    def view(self, at_s: float | None = None, **changes: dict[str, Any]) -> None:
        """A new view: the orders that are followed, and `changes` of members by name; {} removes one."""
        for name, fields in changes.items():
            (address,) = [one for one in self.members if one.name == name]
            if fields:
                self.members[address] = replace(self.members[address], **fields)
            else:
                del self.members[address]
        for one, member in self.members.items():
            order = self.orders.get(one)
            if order is not None and one not in self.silent:
                place: dict[str, Any] = {"group": order.group, "kind": order.kind, "part": order.part}
                self.members[one] = replace(member, epoch=order.epoch, plan_version=order.plan_version, **place)
        self.version += 1
        self.give(MONITOR, FleetView(self.version, tuple(self.members.values())), at_s)

    def look(self, at_s: float) -> None:
        """The manager's own look, as its timer makes it."""
        self.give(ME, MovesDue(self.core._moves_timers), at_s)

    def ask(self, request: int, longest: int, attempt: int = 1, by: Address = D1, **more: Any) -> list[Any]:
        """What the dispatcher hears at once when it asks for a group."""
        return self.heard(lambda: self.give(by, PlaceLong(request, attempt, longest - 1, longest, **more)))

    def heard(self, act: Any) -> list[Any]:
        self.told.clear()
        act()
        return [message for _, message in self.told]

    def groups(self) -> dict[int, str]:
        """The members of the elastic groups by the newest orders, the leader first."""
        found: dict[int, str] = {}
        for one, order in self.orders.items():
            if order.kind is GroupKind.ELASTIC and one in self.members:
                found[order.group] = "".join(member.name for member in order.members)
                assert order.part is (GroupRole.LEADER if order.members[0] == one else GroupRole.MEMBER)
        return found

    def placed(self, request: int, longest: int, **more: Any) -> LongPlaced:
        (answer,) = self.ask(request, longest, **more)
        assert isinstance(answer, LongPlaced), answer
        return answer

    def returns(self, leader: Address, *members: Address, **more: Any) -> None:
        order = self.orders[leader]
        self.give(leader, ReturnMembers(order.epoch, order.plan_version, order.group, members, **more))

    def lacks(self, leader: Address, slots: int) -> None:
        order = self.orders[leader]
        self.give(leader, AskMembers(order.epoch, order.plan_version, order.group, slots))
