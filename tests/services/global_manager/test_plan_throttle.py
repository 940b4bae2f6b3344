"""Plans of large fleets: at once when few are there, seldom when thousands come one by one, and never forgotten."""

from typing import Any

import pytest

from dunlin.effects import Address, After, Effect, Gone, Joined, Send
from dunlin.messages.fleet import FleetView, MemberView
from dunlin.messages.membership import Deposed, Elected
from dunlin.messages.plan import GroupOrder, GroupOrderDone
from dunlin.policies.groups.group import GROUP_POLICIES, local_groups
from dunlin.policies.groups.group_plan import Group, GroupCandidate, GroupConstraints
from services.global_manager.config import GlobalManagerConfig, PlanPaceConfig
from services.global_manager.core import GlobalManagerCore
from services.global_manager.plan_throttle import PlanDue, PlanThrottle
from tests.settings import configured

ME = Address("global_manager", "g", 2)
ETCD = Address("etcd", "")
MONITOR = Address("monitor", "m", 3)


def instances(count: int) -> list[Address]:
    return [Address("instance", f"i{number:04}", 10) for number in range(count)]


def view(count: int) -> FleetView:
    return FleetView(1, tuple(MemberView(one, ready=True, capacity_slots=100) for one in instances(count)))


class Bench:
    """A leading core, the plans that its policy was asked for, and its timers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, members: int, **settings: Any) -> None:
        self.plans = 0
        self.ordered: dict[Address, int] = {}
        self.timers: list[tuple[float, PlanDue]] = []

        def counted(candidates: list[GroupCandidate], terms: GroupConstraints) -> list[Group]:
            self.plans += 1
            return local_groups(candidates, terms)

        monkeypatch.setitem(GROUP_POLICIES, "local_groups", counted)
        self.core = GlobalManagerCore(ME, configured(GlobalManagerConfig, **settings))
        self.give(0.0, MONITOR, view(members))
        self.give(0.0, ETCD, Elected(50))

    def give(self, now_s: float, sender: Address, message: Any) -> list[Effect]:
        effects = list(self.core.receive(now_s, sender, message))
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, GroupOrder):
                self.ordered[effect.to] = effect.message.plan_version
                self.core.receive(now_s, effect.to, GroupOrderDone(50, effect.message.plan_version))
            if isinstance(effect, After) and isinstance(effect.message, PlanDue):
                self.timers.append((now_s + effect.delay_s, effect.message))
        return effects

    def fire(self) -> float:
        due_s, message = self.timers.pop(0)
        self.give(due_s, ME, message)
        return due_s


def test_a_small_fleet_is_planned_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, members=100)
    for one in instances(100):
        bench.give(1.0, one, Joined())
        assert one in bench.ordered
    assert bench.plans == 1 + 100
    assert bench.timers == []


def test_thousands_of_streams_to_a_new_leader_make_a_few_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, members=2000, plan_pace__per_instance_s=50e-6)
    for number, one in enumerate(instances(2000)):
        now_s = 1.0 + number * 1e-4
        while bench.timers and bench.timers[0][0] <= now_s:
            bench.fire()
        bench.give(now_s, one, Joined())
    assert bench.fire() < 1.2 + 1900 * 50e-6
    assert bench.timers == []
    assert len(bench.ordered) == 2000
    # 0.2 s of joining, 0.095 s between plans: the election's, the first stream's, and every 0.095 s.
    assert bench.plans <= 5


def test_who_comes_while_a_plan_waits_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, members=101, plan_pace__per_instance_s=0.5)
    first, second, third = instances(3)
    bench.give(1.0, first, Joined())
    assert list(bench.ordered) == [first]
    bench.give(1.25, second, Joined())
    bench.give(1.4, third, Joined())
    assert [due_s for due_s, _ in bench.timers] == [1.5]
    bench.fire()
    assert list(bench.ordered) == [first, second, third]
    assert bench.ordered[second] == bench.ordered[third]
    assert bench.timers == []


def test_a_timer_of_a_lost_term_plans_nothing_and_the_next_term_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, members=101, plan_pace__per_instance_s=0.5)
    first, second = instances(2)
    bench.give(1.0, first, Joined())
    bench.give(1.1, second, Joined())
    bench.give(1.2, ETCD, Deposed(50))
    plans = bench.plans
    bench.fire()
    assert bench.plans == plans
    assert second not in bench.ordered
    bench.give(2.0, ETCD, Elected(60))
    assert second in bench.ordered


def test_a_timer_that_was_set_before_the_last_plan_makes_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, members=101, plan_pace__per_instance_s=0.5)
    first, second, third = instances(3)
    bench.give(1.0, first, Joined())
    bench.give(1.1, second, Joined())
    bench.give(1.2, ETCD, Elected(60))
    bench.give(1.3, third, Joined())
    assert [due_s for due_s, _ in bench.timers] == [1.5, 1.7]
    bench.fire()
    assert list(bench.ordered) == [first, second]
    bench.fire()
    assert list(bench.ordered) == [first, second, third]


def test_who_leads_no_more_sets_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, members=101, plan_pace__per_instance_s=0.5)
    first, second = instances(2)
    bench.give(1.0, first, Joined())
    bench.give(1.1, ETCD, Deposed(50))
    assert bench.give(1.2, second, Joined()) == []


def test_who_is_not_ready_makes_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, members=1)
    plans = bench.plans
    bench.give(1.0, Address("instance", "unseen", 9), Joined())
    assert bench.plans == plans
    (one,) = instances(1)
    bench.give(1.0, one, Joined())
    bench.give(1.0, one, Gone("reset"))
    bench.give(1.0, one, Joined())
    assert bench.plans == plans + 2


def test_the_view_after_a_stream_has_ended_makes_a_plan_once(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, members=2)
    for one in instances(2):
        bench.give(1.0, one, Joined())
    bench.give(1.5, MONITOR, Joined())
    assert bench.give(1.5, MONITOR, Gone("reset")) == []
    bench.give(2.0, instances(2)[1], Gone("reset"))
    plans = bench.plans
    for version in (2, 3):
        bench.give(2.5, MONITOR, FleetView(version, (), base_version=version - 1))
    assert bench.plans == plans + 1


def test_moves_are_looked_at_with_views_seldom_in_a_large_fleet() -> None:
    pace = PlanThrottle(0.25, 2)
    assert not pace.is_too_soon(0.0, 4)
    pace.plan_made(1.0)
    assert pace.is_too_soon(1.25, 4)
    assert not pace.is_too_soon(1.5, 4)
    assert not pace.is_too_soon(1.0, 2)


@pytest.mark.parametrize("fields", [{"per_instance_s": 0.0}, {"small_fleet": 0}])
def test_bad_settings_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        PlanPaceConfig(**fields)
