"""What prefill instances are told about decode instances, and when."""

from collections.abc import Sequence
from typing import Any

from dunlin.effects import Address, Effect, Joined, sends
from dunlin.messages.fleet import MemberView
from dunlin.messages.plan import Evacuate, GroupOrder, GroupOrderDone, Handoff, HandoffTarget
from dunlin.messages.types import GroupRole
from tests.services.global_manager.test_move_orders import EPOCH, I0, I1, I2, Leader, member, of

SPLIT: dict[str, Any] = {"groups__policy": "prefill_decode"}


def prefill(address: Address, **fields: Any) -> MemberView:
    return member(address, part=GroupRole.PREFILL, group=1, **fields)


def decode(address: Address, **fields: Any) -> MemberView:
    return member(address, part=GroupRole.DECODE, group=2, **fields)


def sent_handoffs(effects: Sequence[Effect]) -> list[tuple[Address, tuple[HandoffTarget, ...], bool]]:
    """(instance, assignment, whether with a reason)."""
    return [
        (send.to, send.message.rooms, send.message.why is not None)
        for send in sends(effects)
        if isinstance(send.message, Handoff)
    ]


def test_sides_are_ordered_and_kept_by_a_new_leader() -> None:
    leader = Leader(member(I0), member(I1), **SPLIT)
    assert [(to, order.part) for to, order in of(GroupOrder, leader.first)] == [
        (I0, GroupRole.PREFILL),
        (I1, GroupRole.DECODE),
    ]
    successor = Leader(decode(I0), prefill(I1), epoch=EPOCH + 1, **SPLIT)
    assert [(to, order.part) for to, order in of(GroupOrder, successor.first)] == [
        (I0, GroupRole.DECODE),
        (I1, GroupRole.PREFILL),
    ]


def test_when_a_side_is_lost_another_instance_takes_its_place() -> None:
    leader = Leader(prefill(I0), decode(I1), decode(I2), **SPLIT)
    for to, order in of(GroupOrder, leader.first):
        leader.core.receive(0.0, to, GroupOrderDone(order.epoch, order.plan_version))
    effects = leader.see(prefill(I0, suspect=True), decode(I1, running=1), decode(I2))
    assert [(to, order.part) for to, order in of(GroupOrder, effects)] == [(I2, GroupRole.PREFILL)]
    assert of(GroupOrder, leader.see(prefill(I0), decode(I1, running=1), decode(I2))) == [], (
        "an instance that comes back gets it again"
    )


def test_a_prefill_instance_hears_who_decodes_and_how_much_room_is_there() -> None:
    leader = Leader(prefill(I0), decode(I1, free_slots=60, waiting_tokens=20), decode(I2, free_slots=9), **SPLIT)
    effects = leader.see(prefill(I0), decode(I1, free_slots=60, waiting_tokens=20), decode(I2, free_slots=9))
    assert sent_handoffs(effects) == [(I0, (HandoffTarget(I1, 40, 100), HandoffTarget(I2, 9, 100)), True)]
    (order,) = [message for _, message in of(Handoff, effects)]
    assert (order.epoch, order.why.chosen) == (EPOCH, "hand off to i1 or i2")


def test_news_of_room_are_told_now_and_then_and_of_who_there_is_at_once() -> None:
    leader = Leader(**SPLIT)
    for address in (I0, I1, I2):
        leader.core.receive(0.0, address, Joined())
    first = leader.see(prefill(I0), decode(I1), now_s=1.0)
    assert sent_handoffs(first) == [(I0, (HandoffTarget(I1, 100, 100),), True)]
    assert sent_handoffs(leader.see(prefill(I0), decode(I1, free_slots=50), now_s=1.24)) == []
    assert sent_handoffs(leader.see(prefill(I0), decode(I1, free_slots=40), now_s=1.25)) == [
        (I0, (HandoffTarget(I1, 40, 100),), False)
    ]
    assert sent_handoffs(leader.see(prefill(I0), decode(I1, free_slots=40), now_s=9.0)) == []
    both = leader.see(prefill(I0), decode(I1, free_slots=40), decode(I2), now_s=9.0)
    assert sent_handoffs(both) == [(I0, (HandoffTarget(I1, 40, 100), HandoffTarget(I2, 100, 100)), True)]
    for gone in ({"ready": False}, {"suspect": True}, {"draining": True}):
        without = leader.see(prefill(I0), decode(I1, **gone), decode(I2), now_s=9.0)
        assert sent_handoffs(without) == [(I0, (HandoffTarget(I2, 100, 100),), True)]
        leader.see(prefill(I0), decode(I1), decode(I2), now_s=9.0)


def test_tickets_grow_and_a_new_stream_hears_the_last_word_again() -> None:
    leader = Leader(prefill(I0), decode(I1), **SPLIT)
    ((_, first),) = of(Handoff, leader.see(prefill(I0), decode(I1)))
    ((_, second),) = of(Handoff, leader.see(prefill(I0), decode(I2), now_s=1.0) or leader.look())
    assert second.ticket > first.ticket
    assert of(Handoff, leader.core.receive(2.0, I0, Joined())) == [(I0, second)]
    assert of(Handoff, leader.core.receive(2.0, I1, Joined())) == []


def test_without_prefill_instances_nothing_is_assigned_any_more() -> None:
    leader = Leader(prefill(I0), decode(I1), **SPLIT)
    leader.see(prefill(I0), decode(I1))
    assigned = leader.core.handoff_assignments
    assert assigned is not None
    assert assigned.has_assignments
    assert assigned.assign(1.0, [decode(I1)]) == []
    assert not assigned.has_assignments


def test_who_does_not_compute_prompts_is_told_nothing() -> None:
    leader = Leader(member(I0), decode(I1), groups__policy="local_groups")
    assert sent_handoffs(leader.see(member(I0), decode(I1))) == []


def test_a_drained_decode_instance_gives_to_other_decode_instances_if_there_are_any() -> None:
    full = {"free_slots": 10, "running": 5}
    leader = Leader(prefill(I0), decode(I1, **full), decode(I2, **full), **SPLIT)
    effects = leader.see(prefill(I0), decode(I1, draining=True, **full), decode(I2, **full), now_s=1.0)
    assert [(to, evacuation.target) for to, evacuation in of(Evacuate, effects)] == [(I1, I2)]
    alone = Leader(prefill(I0), decode(I1, **full), **SPLIT)
    effects = alone.see(prefill(I0), decode(I1, draining=True, **full), now_s=1.0)
    assert [(to, evacuation.target) for to, evacuation in of(Evacuate, effects)] == [(I1, I0)]
