"""The orders of one term: which are new, which answers count, and which orders are sent again."""

from dunlin.effects import Address
from dunlin.messages.plan import GroupOrder
from dunlin.messages.types import GroupKind, GroupRole, Why
from dunlin.policies.groups.group_plan import Group
from services.global_manager.plan_term import OrderStatus, PlanTerm

I0 = Address("instance", "i0", 10)
I1 = Address("instance", "i1", 11)
WHY = Why("local_groups", "alone")


def local(number: int, member: Address, role: GroupRole = GroupRole.LOCAL) -> Group:
    return Group(number, GroupKind.LOCAL, (member,), (role,), lambda: WHY)


def test_the_orders_made_together_share_one_plan_version() -> None:
    term = PlanTerm(50)
    assert term.update_groups([local(1, I0), local(2, I1)]) == {
        I0: GroupOrder(50, 1, 1, GroupKind.LOCAL, GroupRole.LOCAL, (I0,), why=WHY),
        I1: GroupOrder(50, 1, 2, GroupKind.LOCAL, GroupRole.LOCAL, (I1,), why=WHY),
    }


def test_unchanged_groups_make_no_order_and_no_version() -> None:
    term = PlanTerm(50)
    term.update_groups([local(1, I0)])
    assert term.update_groups([local(1, I0)]) == {}
    assert term.plan_version == 1


def test_a_new_role_or_number_is_a_new_order_for_that_member_alone() -> None:
    term = PlanTerm(50)
    term.update_groups([local(1, I0), local(2, I1)])
    (changed,) = term.update_groups([local(1, I0, GroupRole.PREFILL), local(2, I1)]).items()
    assert changed == (I0, GroupOrder(50, 2, 1, GroupKind.LOCAL, GroupRole.PREFILL, (I0,), why=WHY))
    assert list(term.update_groups([local(1, I0, GroupRole.PREFILL), local(3, I1)])) == [I1]
    assert term.plan_version == 3


def test_a_member_without_a_group_is_forgotten() -> None:
    term = PlanTerm(50)
    term.update_groups([local(1, I0), local(2, I1)])
    assert term.update_groups([local(1, I0)]) == {}
    assert term.order_of(I1) is None
    assert list(term.open_orders()) == [I0]
    assert not term.record_answer(I1, 50, 1, OrderStatus.DONE)


def test_only_answers_to_the_newest_order_count() -> None:
    term = PlanTerm(50)
    term.update_groups([local(1, I0)])
    assert not term.record_answer(I0, 49, 1, OrderStatus.DONE)
    assert not term.record_answer(I0, 50, 0, OrderStatus.DONE)
    assert term.has_open_orders()
    assert term.record_answer(I0, 50, 1, OrderStatus.DONE)
    assert not term.has_open_orders()
    assert term.open_orders() == {}


def test_an_unanswered_order_is_sent_again_as_it_is() -> None:
    term = PlanTerm(50)
    orders = term.update_groups([local(1, I0)])
    assert term.open_orders() == orders
    assert term.plan_version == 1


def test_a_refused_order_is_sent_again_under_a_new_plan_version() -> None:
    term = PlanTerm(50)
    term.update_groups([local(1, I0), local(2, I1)])
    assert term.record_answer(I1, 50, 1, OrderStatus.DONE)
    assert term.record_answer(I0, 50, 1, OrderStatus.REFUSED)
    assert term.has_open_orders()
    (again,) = term.open_orders().values()
    assert (again.plan_version, again.group) == (2, 1)
    assert term.order_of(I0) == again
    assert not term.record_answer(I0, 50, 1, OrderStatus.DONE), "the answer to the refused order is late"
    assert list(term.open_orders().values()) == [again], "once refused, it is now unanswered"
