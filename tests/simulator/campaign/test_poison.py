"""How many engines a request may crash that is alone in a group's exchanges."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from dunlin.effects import Address, Message
from dunlin.messages.dispatch import Returned
from dunlin.messages.group import GroupStep, GuestsLost
from dunlin.messages.types import GroupKind, i64
from simulator.campaign import poison
from simulator.campaign.poison import PoisonBites
from simulator.campaign.violation import Violation
from simulator.cluster.process import Delivery

LEADER, MEMBER = Address("instance", "a", 1), Address("instance", "b", 1)
DISPATCHER = Address("dispatcher", "d", 1)
GROUP, SEED = 7, 13


@pytest.fixture(autouse=True)
def _cores_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poison, "InstanceCore", SimpleNamespace)
    monkeypatch.setattr(poison, "DispatcherCore", SimpleNamespace)


class Bitten:
    """A group whose member computes exchanges of a poison guest."""

    def __init__(self) -> None:
        self.crashes: list[int] = []
        self.disturbed: set[Address] = set()
        order = SimpleNamespace(members=(LEADER, MEMBER), group=GROUP)
        self.leader = SimpleNamespace(address=LEADER, led_group=SimpleNamespace(number=GROUP))
        self.member = SimpleNamespace(address=MEMBER, led_group=None, group_order=order)
        self.member.group_member = SimpleNamespace(steps=SimpleNamespace(running=None))
        self.attempt = 1
        journal = SimpleNamespace(current_attempt=lambda leader, request, attempt: attempt == self.attempt or None)
        self.dispatcher = SimpleNamespace(journal=journal)
        supervisor = SimpleNamespace(crash=lambda signal: self.crashes.append(signal))
        cluster: Any = SimpleNamespace(
            core={LEADER: self.leader, MEMBER: self.member, DISPATCHER: self.dispatcher}.get,
            instances={"a": self.leader, "b": self.member},
            world=SimpleNamespace(now_s=0.0, is_paused=lambda one: False),
            has_engine=lambda one: True,
            engine_supervisors={MEMBER: supervisor},
        )
        faults: Any = SimpleNamespace(was_disturbed=lambda *those: not self.disturbed.isdisjoint(those))
        self.done: Counter[str] = Counter()
        clients: Any = SimpleNamespace()
        self.bites = PoisonBites(cluster, clients, faults, {SEED}, self.done)

    def crash(self, exchange: int, *others: int) -> None:
        """The member's engine executes the guest, alone or with others."""
        sampling = SimpleNamespace(seed=SEED)
        opened = SimpleNamespace(dispatcher=DISPATCHER, request=1, attempt=self.attempt, sampling=sampling)
        asked = GroupStep(GROUP, exchange, GroupKind.MASTERS, sequence=i64([1, *others]))
        guest = SimpleNamespace(number=1, opened=opened)
        rows = [SimpleNamespace(guest=guest)]
        running = SimpleNamespace(number=exchange, asked=asked, rows=rows, is_dropped=False)
        self.member.group_member.steps.running = running
        self.member.steps = SimpleNamespace(oldest_step=exchange, executing_rows=list)
        self.bites.after(Delivery(0.0, 1, MEMBER, LEADER, asked))

    def hear(self, message: Message) -> None:
        self.bites.before(Delivery(0.0, 1, LEADER, MEMBER, message))

    def give_back(self, attempt: int) -> None:
        """The dispatcher hears from the leader that it gives the attempt back."""
        self.bites.before(Delivery(0.0, 1, DISPATCHER, LEADER, Returned(request=1, attempt=attempt)))

    def follow(self, group: int) -> None:
        """The member follows an order of that group, and drops what its engine computes."""
        self.member.group_member.steps.running.is_dropped = True
        self.member.group_order = SimpleNamespace(members=(MEMBER,), group=group)
        self.member.steps.oldest_step = 0
        self.bites.after(Delivery(0.0, 1, MEMBER, LEADER, GuestsLost(GROUP)))


def test_a_third_engine_that_one_request_crashes_alone_is_found() -> None:
    bitten = Bitten()
    bitten.crash(1)
    bitten.crash(2, 5)
    bitten.crash(3)
    with pytest.raises(Violation, match=r"^I12 at .*alone in exchanges .1, 3, 4."):
        bitten.crash(4)
    assert len(bitten.crashes) == 4


def test_engines_that_crash_in_one_exchange_count_once() -> None:
    bitten = Bitten()
    for exchange in (1, 1, 1, 2):
        bitten.crash(exchange)
    assert bitten.done == Counter(bite=4)


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_crash_of_which_a_leader_hears_too_late_is_excused_and_counted(has_ended: bool) -> None:
    bitten = Bitten()
    bitten.crash(1)
    bitten.crash(2)
    if has_ended:
        bitten.leader.led_group = None
    bitten.hear(GuestsLost(GROUP, exchange=2, suspects=i64([1])))
    if not has_ended:
        with pytest.raises(Violation, match=r"alone in exchanges .1, 2, 3."):
            bitten.crash(3)
        return
    bitten.crash(3)
    assert bitten.bites.excused == Counter({"I12 a leader hears of a crash after its group has ended": 1})
    with pytest.raises(Violation, match=r"alone in exchanges .1, 3, 4."):
        bitten.crash(4)


def test_a_leader_of_another_group_heard_of_nothing() -> None:
    bitten = Bitten()
    bitten.leader.led_group = SimpleNamespace(number=GROUP + 1)
    bitten.crash(1)
    bitten.hear(GuestsLost(GROUP, exchange=1, suspects=i64([1])))
    bitten.crash(2)
    bitten.crash(3)
    assert bitten.bites.excused.total() == 1


def test_a_crash_that_another_member_tells_in_time_is_not_excused() -> None:
    bitten = Bitten()
    bitten.crash(1)
    bitten.crash(2)
    lost = GuestsLost(GROUP, exchange=2, suspects=i64([1]))
    bitten.hear(lost)
    bitten.leader.led_group = None
    bitten.hear(lost)
    with pytest.raises(Violation, match=r"alone in exchanges .1, 2, 3."):
        bitten.crash(3)


def test_a_crash_after_the_member_has_left_a_group_that_ended_is_excused_and_counted() -> None:
    bitten = Bitten()
    bitten.crash(1)
    bitten.crash(2)
    bitten.follow(GROUP + 1)
    bitten.leader.led_group = None
    bitten.crash(3)
    assert bitten.bites.excused == Counter({f"I12 {poison.NEVER_SAID}": 1})
    with pytest.raises(Violation, match=r"alone in exchanges .1, 3, 4."):
        bitten.crash(4)


@pytest.mark.parametrize("group", [GROUP, GROUP + 1])
def test_a_member_tells_a_leader_whose_group_it_is_in_or_that_goes_on(group: int) -> None:
    bitten = Bitten()
    bitten.crash(1)
    bitten.crash(2)
    bitten.follow(group)
    if group == GROUP:
        bitten.leader.led_group = None
    with pytest.raises(Violation, match=r"alone in exchanges .1, 2, 3."):
        bitten.crash(3)


def test_crashes_of_an_attempt_that_its_dispatcher_lost_are_excused_and_counted() -> None:
    bitten = Bitten()
    bitten.crash(1)
    bitten.crash(2)
    bitten.attempt = 2
    bitten.give_back(1)  # too late: that attempt is its request's no more
    bitten.crash(3)
    bitten.crash(4)
    assert bitten.bites.excused == Counter({f"I12 {poison.NOT_RETURNED}": 2})
    with pytest.raises(Violation, match=r"alone in exchanges .3, 4, 5."):
        bitten.crash(5)


def test_crashes_of_an_attempt_that_came_back_count_in_the_next_one() -> None:
    bitten = Bitten()
    bitten.crash(1)
    bitten.crash(2)
    bitten.give_back(1)
    bitten.attempt = 2
    with pytest.raises(Violation, match=r"alone in exchanges .1, 2, 3."):
        bitten.crash(3)


def test_where_a_member_is_disturbed_none_is_blamed() -> None:
    bitten = Bitten()
    bitten.disturbed = {LEADER}
    for exchange in range(4):
        bitten.crash(exchange)
    assert not bitten.bites.excused
