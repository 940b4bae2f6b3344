"""The manager's core: which orders it sends, when an order is sent again, and what a term fences."""

from typing import Any

import pytest

from dunlin.cores.reporting import ReportDue
from dunlin.effects import Address, After, Effect, Gone, Joined, Send, sends
from dunlin.messages.fleet import FleetView, ManagerReport, MemberView
from dunlin.messages.membership import Deposed, Elected
from dunlin.messages.plan import GroupOrder, GroupOrderDone, GroupOrderRefused
from dunlin.messages.types import GroupKind, GroupRole
from services.global_manager.config import GlobalManagerConfig
from services.global_manager.core import GlobalManagerCore, MovesDue
from services.global_manager.planner import RetryDue
from tests.settings import configured

ME = Address("global_manager", "g", 2)
ETCD = Address("etcd", "")
MONITOR = Address("monitor", "m", 3)
I0 = Address("instance", "i0", 10)
I1 = Address("instance", "i1", 11)
RESTARTED = Address("instance", "i0", 20)


def make_core(**settings: Any) -> GlobalManagerCore:
    return GlobalManagerCore(ME, configured(GlobalManagerConfig, **settings))


def view(*members: MemberView, version: int = 1, **fields: Any) -> FleetView:
    return FleetView(version, members, **fields)


def ready(address: Address, **fields: Any) -> MemberView:
    return MemberView(address, **({"ready": True, "capacity_slots": 100} | fields))


def leading(*instances: Address, epoch: int = 50) -> GlobalManagerCore:
    """A core that leads, with these instances ready, joined and obedient."""
    core = make_core()
    for instance in instances:
        core.receive(0.0, instance, Joined())
    core.receive(0.0, MONITOR, view(*(ready(instance) for instance in instances)))
    for send in sends(core.receive(0.0, ETCD, Elected(epoch))):
        if isinstance(send.message, GroupOrder):
            core.receive(0.0, send.to, GroupOrderDone(send.message.epoch, send.message.plan_version))
    return core


def orders(effects: "list[Effect] | Any") -> dict[Address, tuple[int, int, int]]:
    """The instances that `effects` order: (epoch, plan version, group)."""
    found = {send.to: send.message for send in sends(effects) if isinstance(send.message, GroupOrder)}
    return {to: (order.epoch, order.plan_version, order.group) for to, order in found.items()}


def test_an_elected_manager_orders_each_ready_instance_into_its_own_group() -> None:
    core = make_core()
    core.receive(0.0, I0, Joined())
    core.receive(0.0, I1, Joined())
    core.receive(0.0, MONITOR, view(ready(I0), ready(I1)))
    effects = core.receive(1.0, ETCD, Elected(50))
    assert orders(effects) == {I0: (50, 1, 1), I1: (50, 1, 2)}
    order = sends(effects)[0].message
    assert isinstance(order, GroupOrder)
    assert (order.kind, order.part, order.members) == (GroupKind.LOCAL, GroupRole.LOCAL, (I0,))
    assert order.why is not None
    assert order.why.policy == "local_groups"


def test_who_does_not_lead_orders_nothing() -> None:
    core = make_core()
    core.receive(0.0, I0, Joined())
    assert core.receive(0.0, MONITOR, view(ready(I0))) == []
    assert core.report() == ManagerReport()


@pytest.mark.parametrize("last", ["joined", "view", "elected"])
def test_the_order_of_what_it_learns_does_not_matter(last: str) -> None:
    core = make_core()
    steps: dict[str, Any] = {
        "joined": (I0, Joined()),
        "view": (MONITOR, view(ready(I0))),
        "elected": (ETCD, Elected(50)),
    }
    final = steps.pop(last)
    for sender, message in steps.values():
        assert orders(core.receive(0.0, sender, message)) == {}
    assert orders(core.receive(1.0, *final)) == {I0: (50, 1, 1)}


@pytest.mark.parametrize("fields", [{"ready": False}, {"address": I1}])
def test_an_instance_that_is_not_ready_or_not_joined_waits(fields: dict[str, Any]) -> None:
    core = make_core()
    core.receive(0.0, I0, Joined())
    core.receive(0.0, ETCD, Elected(50))
    assert orders(core.receive(1.0, MONITOR, view(ready(**({"address": I0} | fields))))) == {}


def test_a_newcomer_gets_the_next_plan_version_and_the_others_hear_nothing() -> None:
    core = leading(I0)
    core.receive(1.0, I1, Joined())
    effects = core.receive(1.0, MONITOR, view(ready(I1), version=2, base_version=1))
    assert orders(effects) == {I1: (50, 2, 2)}


def test_a_restarted_instance_is_ordered_anew_and_the_old_one_forgotten() -> None:
    core = leading(I0, I1)
    core.receive(1.0, I0, Gone("reset"))
    assert orders(core.receive(1.0, RESTARTED, Joined())) == {}
    change = view(ready(RESTARTED), version=2, base_version=1, removed=(I0,))
    assert orders(core.receive(2.0, MONITOR, change)) == {RESTARTED: (50, 2, 1)}


def test_an_engine_restart_changes_no_order() -> None:
    core = leading(I0)
    for version, is_ready in ((2, False), (3, True)):
        change = view(ready(I0, ready=is_ready), version=version, base_version=version - 1)
        assert core.receive(1.0, MONITOR, change) == []


def test_a_stream_that_comes_back_gets_the_same_order_again() -> None:
    core = leading(I0)
    core.receive(1.0, I0, Gone("reset"))
    assert orders(core.receive(2.0, I0, Joined())) == {I0: (50, 1, 1)}


def test_the_next_leader_keeps_the_groups_that_it_finds() -> None:
    core = make_core()
    for instance in (I0, I1):
        core.receive(0.0, instance, Joined())
    core.receive(0.0, MONITOR, view(ready(I0, group=2, epoch=50, plan_version=3), ready(I1, group=1)))
    assert orders(core.receive(1.0, ETCD, Elected(60))) == {I0: (60, 1, 2), I1: (60, 1, 1)}


class TestAnswers:
    def open(self) -> GlobalManagerCore:
        core = make_core(groups__order_retry_s=1.0)
        core.receive(0.0, I0, Joined())
        core.receive(0.0, MONITOR, view(ready(I0)))
        assert After(1.0, RetryDue(1)) in core.receive(0.0, ETCD, Elected(50))
        return core

    def test_an_order_without_an_answer_is_given_again_as_it_was(self) -> None:
        core = self.open()
        effects = core.receive(1.0, ME, RetryDue(1))
        assert orders(effects) == {I0: (50, 1, 1)}
        assert After(1.0, RetryDue(2)) in effects

    def test_an_obeyed_order_is_not(self) -> None:
        core = self.open()
        core.receive(0.5, I0, GroupOrderDone(50, 1))
        assert core.receive(1.0, ME, RetryDue(1)) == []

    def test_a_refused_order_is_given_again_under_a_new_version(self) -> None:
        core = self.open()
        core.receive(0.5, I0, GroupOrderRefused(50, 1, "not now"))
        assert core.totals.refused == 1
        assert orders(core.receive(1.0, ME, RetryDue(1))) == {I0: (50, 2, 1)}

    def test_a_refusal_after_the_last_retry_starts_another(self) -> None:
        core = self.open()
        core.receive(0.5, I0, GroupOrderDone(50, 1))
        core.receive(1.0, ME, RetryDue(1))
        assert core.receive(2.0, I0, GroupOrderRefused(50, 1, "lost it")) == [After(1.0, RetryDue(2))]

    @pytest.mark.parametrize(
        "answer", [GroupOrderDone(49, 1), GroupOrderDone(50, 2), GroupOrderRefused(50, 0, "stale")]
    )
    def test_an_answer_about_another_order_changes_nothing(self, answer: Any) -> None:
        core = self.open()
        assert core.receive(0.5, I0, answer) == []
        assert core.totals.stale == 1
        assert orders(core.receive(1.0, ME, RetryDue(1))) == {I0: (50, 1, 1)}

    def test_nothing_is_sent_to_whom_there_is_no_stream(self) -> None:
        core = self.open()
        core.receive(0.5, I0, Gone())
        assert core.receive(1.0, ME, RetryDue(1)) == [After(1.0, RetryDue(2))]


class TestTerms:
    def test_a_deposed_manager_orders_nothing(self) -> None:
        core = leading(I0)
        core.receive(1.0, ETCD, Deposed(50))
        core.receive(1.0, I1, Joined())
        assert core.receive(1.0, MONITOR, view(ready(I1), version=2, base_version=1)) == []
        assert core.receive(1.0, ME, RetryDue(1)) == []
        assert core.report() == ManagerReport()

    def test_the_end_of_an_older_term_ends_nothing(self) -> None:
        core = leading(I0, epoch=60)
        core.receive(1.0, ETCD, Deposed(50))
        assert core.report() == ManagerReport(60, 1)
        assert core.totals.stale == 1

    def test_an_older_epoch_never_leads_again(self) -> None:
        core = leading(I0, epoch=60)
        core.receive(1.0, ETCD, Deposed(60))
        assert core.receive(2.0, ETCD, Elected(60)) == []
        assert core.receive(2.0, ETCD, Elected(50)) == []
        assert core.report() == ManagerReport()
        assert core.totals.stale == 2

    def test_plan_versions_start_over_with_each_term(self) -> None:
        core = leading(I0)
        core.receive(1.0, ETCD, Deposed(50))
        assert orders(core.receive(2.0, ETCD, Elected(70))) == {I0: (70, 1, 1)}


class TestViews:
    def test_a_difference_that_does_not_follow_is_dropped(self) -> None:
        core = leading(I0)
        core.receive(1.0, I1, Joined())
        assert core.receive(1.0, MONITOR, view(ready(I1), version=3, base_version=2)) == []
        assert core.totals.stale == 1

    def test_a_new_monitor_starts_over_and_nothing_migrates(self) -> None:
        core = leading(I0, I1)
        other = Address("monitor", "m", 99)
        assert core.receive(1.0, other, view(version=1)) == []
        assert core.receive(1.0, MONITOR, view(ready(I0), version=2, base_version=1)) == []
        effects = core.receive(2.0, other, view(ready(I0, group=1), ready(I1, group=2), version=2, base_version=1))
        assert orders(effects) == {I0: (50, 2, 1), I1: (50, 2, 2)}

    def test_an_older_monitor_that_wakes_is_not_believed(self) -> None:
        core = leading(I0)
        older = Address("monitor", "m", 2)
        core.receive(1.0, I1, Joined())
        assert core.receive(1.0, older, view(ready(I0), ready(I1), version=90)) == []
        assert (core.totals.stale, list(core.fleet.members)) == (1, [I0])


class TestReports:
    def test_a_monitor_hears_of_each_plan_at_once_and_else_each_interval(self) -> None:
        core = make_core()
        assert core.receive(0.0, MONITOR, Joined()) == [Send(MONITOR, ManagerReport()), After(0.5, ReportDue(1))]
        looks = After(0.5, MovesDue(1))
        assert core.receive(0.1, ETCD, Elected(50)) == [Send(MONITOR, ManagerReport(50, 0)), looks]
        core.receive(0.2, I0, Joined())
        assert Send(MONITOR, ManagerReport(50, 1)) in core.receive(0.3, MONITOR, view(ready(I0)))
        assert core.receive(0.5, ME, ReportDue(1)) == [Send(MONITOR, ManagerReport(50, 1)), After(0.5, ReportDue(2))]
        assert core.receive(0.5, ME, ReportDue(0)) == []
        core.receive(0.6, MONITOR, Gone())
        assert core.receive(1.0, ME, ReportDue(2)) == []


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"policy is pipelines: needs one of local_groups"):
        make_core(groups__policy="pipelines")
