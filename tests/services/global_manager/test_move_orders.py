"""What a leader has move: drains that an operator wants, across terms, and the policy's rebalancing."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dunlin.effects import Address, Effect, Gone, Joined, sends
from dunlin.messages.fleet import FleetView, MemberView
from dunlin.messages.membership import Deposed, Elected
from dunlin.messages.plan import (
    Drain,
    DrainDone,
    DrainOutcome,
    DrainReply,
    DrainRequest,
    Evacuate,
    EvacuateDone,
    Undrain,
)
from services.global_manager.config import GlobalManagerConfig
from services.global_manager.core import GlobalManagerCore, MovesDue
from tests.settings import configured

ME = Address("global_manager", "g", 2)
ETCD = Address("etcd", "")
MONITOR = Address("monitor", "m", 3)
TOOL = Address("client", "tool-1")
I0, I1, I2 = (Address("instance", f"i{number}", 10 + number) for number in range(3))
EPOCH = 50


def member(address: Address, **fields: Any) -> MemberView:
    defaults = {"ready": True, "capacity_slots": 100, "free_slots": 100, "plan_version": 1}
    return MemberView(address, **(defaults | fields))


class Leader:
    """A leading core and the views that it is shown."""

    def __init__(self, *members: MemberView, epoch: int = EPOCH, **settings: Any) -> None:
        self.core = GlobalManagerCore(ME, configured(GlobalManagerConfig, **settings))
        self.version = 0
        for one in members:
            self.core.receive(0.0, one.address, Joined())
        self.see(*members)
        self.first = self.core.receive(0.0, ETCD, Elected(epoch))

    def see(self, *members: MemberView, now_s: float = 0.0) -> Sequence[Effect]:
        self.version += 1
        return self.core.receive(now_s, MONITOR, FleetView(self.version, members))

    def ask(self, instance: str, undo: bool = False) -> tuple[DrainReply, Sequence[Effect]]:
        effects = self.core.receive(0.0, TOOL, DrainRequest(instance, undo))
        (reply,) = [send.message for send in sends(effects) if send.to == TOOL]
        assert isinstance(reply, DrainReply)
        return reply, effects

    def look(self, now_s: float = 1.0) -> Sequence[Effect]:
        return self.core.receive(now_s, ME, MovesDue(1))


def of(kind: type[Any], effects: Sequence[Effect]) -> list[tuple[Address, Any]]:
    return [(send.to, send.message) for send in sends(effects) if isinstance(send.message, kind)]


def test_a_drain_is_ordered_and_what_runs_goes_to_the_least_loaded() -> None:
    busy = member(I0, free_slots=40, running=3)
    leader = Leader(busy, member(I1, free_slots=50), member(I2, free_slots=90))
    reply, effects = leader.ask("i0")
    assert (reply.outcome, reply.instance, reply.others) == (DrainOutcome.ORDERED, I0, (I1, I2))
    ((to, order),) = of(Drain, effects)
    assert (to, order.epoch, order.ticket) == (I0, EPOCH, 1)
    assert order.why is not None
    assert order.why.policy == "operator"
    ((to, evacuation),) = of(Evacuate, leader.look())
    assert (to, evacuation.target, evacuation.slots, evacuation.epoch, evacuation.ticket) == (I0, I2, 60, EPOCH, 2)


def test_a_target_gets_no_more_than_it_has_room_for() -> None:
    leader = Leader(member(I0, free_slots=0, waiting_tokens=30, running=3, draining=True), member(I1, free_slots=20))
    ((_, evacuation),) = of(Evacuate, leader.look())
    assert evacuation.slots == 20


def test_what_waits_at_a_drained_instance_leaves_it_too() -> None:
    busy = member(I0, free_slots=70, waiting_tokens=20, running=2, waiting=1, draining=True)
    ((_, evacuation),) = of(Evacuate, Leader(busy, member(I1)).look())
    assert evacuation.slots == 50


@pytest.mark.parametrize("trouble", [{"ready": False}, {"suspect": True}, {"leaving": 2}])
def test_what_is_in_trouble_or_gives_already_is_not_told_to_give(trouble: dict[str, Any]) -> None:
    busy = member(I0, free_slots=40, running=3, draining=True)
    assert of(Evacuate, Leader(busy, member(I1)).look())
    assert of(Evacuate, Leader(replace(busy, **trouble), member(I1)).look()) == []


def test_one_move_at_a_time_leaves_an_instance_and_the_next_waits_for_fresh_views() -> None:
    draining = member(I0, free_slots=40, running=3, draining=True)
    leader = Leader(draining, member(I1), rebalance__rest_s=0.5)
    ((_, evacuation),) = of(Evacuate, leader.look(1.0))
    assert of(Evacuate, leader.look(1.5)) == []
    leader.core.receive(2.0, I0, EvacuateDone(EPOCH, evacuation.ticket, moved=2, stayed=1))
    assert of(Evacuate, leader.look(2.4)) == []
    ((_, again),) = of(Evacuate, leader.look(2.5))
    assert again.ticket > evacuation.ticket
    assert leader.core.move_orders is not None
    assert (leader.core.move_orders.moved_total, leader.core.move_orders.stayed_total) == (2, 1)


def test_an_answer_that_no_order_waits_for_is_counted() -> None:
    leader = Leader(member(I0), member(I1))
    leader.core.receive(1.0, I0, EvacuateDone(EPOCH, 7, moved=1))
    leader.core.receive(1.0, I0, DrainDone(EPOCH, 7, draining=True))
    assert leader.core.totals.stale == 2


def test_only_answers_to_the_open_orders_of_a_leader_are_not_stale() -> None:
    leader = Leader(member(I0, free_slots=40, running=3), member(I1))
    ((_, drain),) = of(Drain, leader.ask("i0")[1])
    ((_, evacuation),) = of(Evacuate, leader.look())
    drained = DrainDone(EPOCH, drain.ticket, draining=True)
    leader.core.receive(1.1, I0, drained)
    leader.core.receive(1.2, I0, EvacuateDone(EPOCH, evacuation.ticket, moved=3))
    assert leader.core.totals.stale == 0
    leader.core.receive(1.3, I0, DrainDone(EPOCH, drain.ticket + 1, draining=True))
    assert leader.core.totals.stale == 1
    leader.core.receive(2.0, ETCD, Deposed(EPOCH))
    leader.core.receive(2.1, I0, drained)
    assert leader.core.totals.stale == 2


def test_an_empty_instance_has_nothing_to_give() -> None:
    leader = Leader(member(I0, draining=True), member(I1))
    assert of(Evacuate, leader.look()) == []


@pytest.mark.parametrize("fields", [{"ready": False}, {"suspect": True}, {"draining": True}, {"plan_version": 0}])
def test_what_cannot_take_requests_takes_no_moves(fields: dict[str, Any]) -> None:
    leader = Leader(member(I0, running=1, free_slots=90), member(I1, **fields))
    reply, effects = leader.ask("i0")
    assert reply.outcome is DrainOutcome.NOWHERE_TO_GO
    assert of(Drain, effects) == []


def test_unknown_instances_and_wishes_that_are_so_already_change_nothing() -> None:
    leader = Leader(member(I0, draining=True), member(I1))
    reply, effects = leader.ask("i7")
    assert (reply.outcome, reply.detail) == (DrainOutcome.UNKNOWN_INSTANCE, "the instances are: i0, i1")
    for instance, undo, detail in (("i0", False, "it drains already"), ("i1", True, "it takes requests already")):
        already = leader.ask(instance, undo)[0]
        assert (already.outcome, already.detail) == (DrainOutcome.ALREADY, detail)
    assert of(Drain, effects) == of(Undrain, effects) == []


def test_who_does_not_lead_says_so() -> None:
    leader = Leader(member(I0), member(I1))
    leader.core.receive(1.0, ETCD, Deposed(EPOCH))
    assert leader.ask("i0")[0].outcome is DrainOutcome.NOT_LEADER
    assert leader.look() == []


def test_a_wish_is_ordered_again_until_the_view_shows_it() -> None:
    leader = Leader(member(I0), member(I1))
    ((_, order),) = of(Drain, leader.ask("i0")[1])
    assert of(Drain, leader.look(1.0)) == [(I0, order)]
    leader.see(member(I0, draining=True), member(I1))
    assert of(Drain, leader.look(1.5)) == []
    ((to, undo),) = of(Undrain, leader.ask("i0", undo=True)[1])
    assert (to, undo.ticket) == (I0, order.ticket + 1)
    assert of(Undrain, leader.look(2.0)) == [(I0, undo)]


def test_the_next_leader_goes_on_with_a_drain_that_the_instance_reports() -> None:
    leader = Leader(member(I0, running=2, free_slots=50, draining=True), member(I1), epoch=70)
    ((to, evacuation),) = of(Evacuate, leader.look())
    assert (to, evacuation.epoch, evacuation.target) == (I0, 70, I1)


def test_a_stream_that_opens_anew_hears_the_open_orders_again() -> None:
    leader = Leader(member(I0, running=2, free_slots=50, draining=True), member(I1))
    (sent,) = of(Evacuate, leader.look())
    leader.core.receive(1.1, I0, Gone("reset"))
    assert of(Evacuate, leader.core.receive(1.2, I0, Joined())) == [sent]


def test_a_stream_that_opens_anew_hears_a_drain_before_the_evacuation_that_follows_from_it() -> None:
    """The instance takes no order that is older than one it has heard: the other way round it would never drain."""
    leader = Leader(member(I0, running=2, free_slots=50), member(I1))
    ((_, drain),) = of(Drain, leader.ask("i0")[1])
    ((_, evacuation),) = of(Evacuate, leader.look())
    leader.core.receive(1.1, I0, Gone("both orders were lost with it"))
    again = [send.message for send in sends(leader.core.receive(1.2, I0, Joined())) if send.to == I0]
    assert [order for order in again if isinstance(order, Drain | Evacuate)] == [drain, evacuation]


def test_an_instance_that_left_the_views_is_forgotten() -> None:
    leader = Leader(member(I0, running=2, free_slots=50, draining=True), member(I1))
    assert of(Evacuate, leader.look())
    leader.see(member(I1))
    leader.core.receive(1.1, I0, Gone("dead"))
    assert of(Evacuate, leader.core.receive(1.2, I0, Joined())) == []


def test_a_drain_goes_on_where_it_was_refused() -> None:
    leader = Leader(member(I0, running=2, free_slots=50, draining=True), member(I1), rebalance__rest_s=0.5)
    ((_, evacuation),) = of(Evacuate, leader.look(1.0))
    leader.core.receive(1.2, I0, EvacuateDone(EPOCH, evacuation.ticket, moved=0, stayed=2, detail="no room"))
    assert len(of(Evacuate, leader.look(1.7))) == 1


# --- rebalancing ---


def test_without_a_policy_nothing_moves_between_unequal_instances() -> None:
    leader = Leader(member(I0, free_slots=0, running=9), member(I1))
    assert of(Evacuate, leader.look()) == []


def test_llumnix_moves_half_the_difference_and_then_rests() -> None:
    leader = Leader(member(I0, free_slots=0, running=9), member(I1), rebalance__policy="llumnix")
    ((to, evacuation),) = of(Evacuate, leader.look(1.0))
    assert (to, evacuation.target, evacuation.slots) == (I0, I1, 50)
    assert evacuation.why is not None
    assert evacuation.why.policy == "llumnix"
    assert of(Evacuate, leader.look(1.5)) == []
    leader.core.receive(2.0, I0, EvacuateDone(EPOCH, evacuation.ticket, moved=4))
    leader.see(member(I0, free_slots=50, running=5), member(I1, free_slots=50, running=4), now_s=2.1)
    assert of(Evacuate, leader.look(3.0)) == []


def test_a_source_that_moved_nothing_for_the_policy_is_asked_again_ever_later_and_a_drain_of_it_at_once() -> None:
    """Its only sequence is larger than what may move, which no view shows."""
    leader = Leader(member(I0, free_slots=0, running=1), member(I1), rebalance__policy="llumnix", rebalance__rest_s=0.5)
    asked: list[float] = []
    now_s = 0.0
    while now_s < 80.0:
        now_s += 0.5
        for _, order in of(Evacuate, leader.look(now_s)):
            asked.append(now_s)
            leader.core.receive(now_s, I0, EvacuateDone(EPOCH, order.ticket))
    assert asked == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 48.0, 64.0, 80.0]
    seen = leader.see(member(I0, free_slots=0, running=1, draining=True), member(I1), now_s=80.5)
    assert len(of(Evacuate, [*seen, *leader.look(80.5)])) == 1


def test_a_source_that_moved_something_at_last_only_rests() -> None:
    leader = Leader(member(I0, free_slots=0, running=1), member(I1), rebalance__policy="llumnix", rebalance__rest_s=0.5)
    for now_s, moved in ((0.5, 0), (1.0, 0), (2.0, 1), (2.5, 0), (3.0, 0)):
        ((_, order),) = of(Evacuate, leader.look(now_s))
        leader.core.receive(now_s, I0, EvacuateDone(EPOCH, order.ticket, moved=moved))
    assert of(Evacuate, leader.look(3.5)) == []


def test_a_draining_instance_takes_no_part_in_rebalancing() -> None:
    leader = Leader(
        member(I0, free_slots=0, running=9),
        member(I1, draining=True),
        member(I2, suspect=True),
        rebalance__policy="llumnix",
    )
    assert of(Evacuate, leader.look()) == []


def test_no_more_migrations_are_under_way_than_the_limit() -> None:
    full = [member(Address("instance", f"full-{each}", 20 + each), free_slots=0, running=9) for each in range(3)]
    free = [member(Address("instance", f"free-{each}", 30 + each)) for each in range(3)]
    leader = Leader(*full, *free, rebalance__policy="llumnix", rebalance__max_migrations=2)
    first = of(Evacuate, leader.look(1.0))
    assert len(first) == 2
    assert of(Evacuate, leader.look(1.5)) == []
    (source, evacuation), _ = first
    leader.core.receive(2.0, source, EvacuateDone(EPOCH, evacuation.ticket, moved=1))
    assert len(of(Evacuate, leader.look(2.1))) == 1


def test_the_answer_to_an_order_of_an_older_term_ends_no_order_of_this_one() -> None:
    leader = Leader(member(I0, free_slots=40, running=3, draining=True), member(I1))
    ((_, evacuation),) = of(Evacuate, leader.look(1.0))
    leader.core.receive(2.0, I0, EvacuateDone(EPOCH - 1, evacuation.ticket, moved=2))
    assert leader.core.totals.stale == 1
    assert of(Evacuate, leader.core.receive(2.1, I0, Joined())) == [(I0, evacuation)], "it is still open"
    assert leader.core.move_orders is not None
    assert leader.core.move_orders.moved_total == 0
