"""How many engines a request may crash that is alone in a group's exchanges."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from dunlin.effects import Address, Message
from dunlin.messages.group import GroupStep, GuestsLost
from dunlin.messages.types import GroupKind, i64
from simulator.campaign import poison
from simulator.campaign.poison import PoisonBites
from simulator.campaign.violation import Violation
from simulator.cluster.process import Delivery

LEADER, MEMBER = Address("instance", "a", 1), Address("instance", "b", 1)
GROUP, SEED = 7, 13


@pytest.fixture(autouse=True)
def _cores_are_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poison, "InstanceCore", SimpleNamespace)


class Bitten:
    """A group whose member computes exchanges of a poison guest."""

    def __init__(self) -> None:
        self.crashes: list[int] = []
        self.disturbed: set[Address] = set()
        order = SimpleNamespace(members=(LEADER, MEMBER))
        self.leader = SimpleNamespace(address=LEADER, led_group=SimpleNamespace(number=GROUP))
        self.member = SimpleNamespace(address=MEMBER, led_group=None, group_order=order)
        self.member.group_member = SimpleNamespace(steps=SimpleNamespace(running=None))
        supervisor = SimpleNamespace(crash=lambda signal: self.crashes.append(signal))
        cluster: Any = SimpleNamespace(
            core={LEADER: self.leader, MEMBER: self.member}.get,
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
        opened = SimpleNamespace(dispatcher="d", request=1, sampling=SimpleNamespace(seed=SEED))
        asked = GroupStep(GROUP, exchange, GroupKind.MASTERS, sequence=i64([1, *others]))
        guest = SimpleNamespace(number=1, opened=opened)
        running = SimpleNamespace(number=exchange, asked=asked, rows=[SimpleNamespace(guest=guest)])
        self.member.group_member.steps.running = running
        self.member.steps = SimpleNamespace(oldest_step=exchange, executing_rows=list)
        self.bites.after(Delivery(0.0, 1, MEMBER, LEADER, asked))

    def hear(self, message: Message) -> None:
        self.bites.before(Delivery(0.0, 1, LEADER, MEMBER, message))


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


def test_where_a_member_is_disturbed_none_is_blamed() -> None:
    bitten = Bitten()
    bitten.disturbed = {LEADER}
    for exchange in range(4):
        bitten.crash(exchange)
    assert not bitten.bites.excused
