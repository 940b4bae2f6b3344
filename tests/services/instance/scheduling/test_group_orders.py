"""Group orders: the fence of (epoch, plan version), what is refused, and what a report says."""

import pytest

from dunlin.effects import Address, Send
from dunlin.messages.plan import GroupOrder, GroupOrderDone, GroupOrderRefused
from dunlin.messages.types import GroupKind, GroupRole
from services.instance.scheduling.group_orders import GroupOrders

ME = Address("instance", "i0", 10)
OTHER = Address("instance", "i1", 11)
MANAGER = Address("global_manager", "g", 2)


def order(epoch: int, version: int, role: GroupRole = GroupRole.LOCAL) -> GroupOrder:
    return GroupOrder(epoch, version, 4, GroupKind.LOCAL, role, (ME,))


def test_before_the_first_order_the_instance_is_local_and_reports_nothing() -> None:
    orders = GroupOrders(ME)
    assert (orders.current, orders.version, orders.epoch, orders.role) == (None, (0, 0), 0, GroupRole.LOCAL)
    assert orders.report_fields() == {}


def test_an_order_is_followed_and_reported() -> None:
    orders = GroupOrders(ME)
    assert orders.apply(MANAGER, order(5, 1, GroupRole.PREFILL)) == [Send(MANAGER, GroupOrderDone(5, 1))]
    assert (orders.version, orders.role) == ((5, 1), GroupRole.PREFILL)
    assert orders.report_fields() == {
        "epoch": 5,
        "plan_version": 1,
        "group": 4,
        "kind": GroupKind.LOCAL,
        "part": GroupRole.PREFILL,
    }


@pytest.mark.parametrize(("epoch", "version"), [(4, 9), (5, 1)])
def test_an_older_order_is_refused_and_counted(epoch: int, version: int) -> None:
    orders = GroupOrders(ME)
    orders.apply(MANAGER, order(5, 2, GroupRole.DECODE))
    (effect,) = orders.apply(MANAGER, order(epoch, version))
    assert isinstance(effect, Send)
    assert isinstance(effect.message, GroupOrderRefused)
    assert (effect.message.epoch, effect.message.plan_version) == (epoch, version)
    assert (orders.version, orders.role, orders.stale_total) == ((5, 2), GroupRole.DECODE, 1)


def test_a_repeated_order_is_answered_again() -> None:
    orders = GroupOrders(ME)
    for _ in range(2):
        assert orders.apply(MANAGER, order(5, 2)) == [Send(MANAGER, GroupOrderDone(5, 2))]
    assert orders.stale_total == 0


def test_a_newer_term_starts_its_plan_versions_anew() -> None:
    orders = GroupOrders(ME)
    orders.apply(MANAGER, order(5, 9))
    assert orders.apply(MANAGER, order(6, 1)) == [Send(MANAGER, GroupOrderDone(6, 1))]
    assert orders.version == (6, 1)


@pytest.mark.parametrize("members", [(OTHER,), (ME, OTHER)])
def test_a_group_of_others_is_refused_and_the_last_order_kept(members: tuple[Address, ...]) -> None:
    orders = GroupOrders(ME)
    orders.apply(MANAGER, order(5, 1))
    (effect,) = orders.apply(MANAGER, GroupOrder(5, 2, 4, GroupKind.LOCAL, GroupRole.LOCAL, members))
    assert isinstance(effect, Send)
    assert isinstance(effect.message, GroupOrderRefused)
    assert orders.version == (5, 1)
    assert orders.stale_total == 0, "it is not old"
