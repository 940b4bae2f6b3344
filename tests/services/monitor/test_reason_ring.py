"""The ring of reasons: what is found for a request, in every part of its life, and what is forgotten first."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.effects import Address
from dunlin.messages.dispatch import Accepted, Cancel, Continued, Place, Preempted, Refusal, Refused, Returned
from dunlin.messages.engine import Close, Step, StopEngine
from dunlin.messages.fleet import FleetView, MemberView, Reason
from dunlin.messages.group import Reserve
from dunlin.messages.plan import GroupOrder
from dunlin.messages.pool import RegionRefused, ReserveRegion
from dunlin.messages.subjects import parse_request
from dunlin.messages.types import GroupKind, GroupRole, Region, Why, i8, i32, i64
from dunlin.wire import codec
from services.monitor.reason_ring import ReasonRing

D0 = Address("dispatcher", "d0", 0xC)
D1 = Address("dispatcher", "d1", 0xD)
I0 = Address("instance", "i0", 10)
I1 = Address("instance", "i1", 11)
KV = Address("kvstore", "kv", 5)
ENGINE = Address("engine", "e")
MONITOR = Address("monitor", "m", 4)
MANAGER = Address("global_manager", "g", 6)
WHY = Why("test")


class Story:
    """Records with growing times, one tenth of a second apart."""

    def __init__(self, max_records: int = 1000, max_bytes: int = 1 << 20) -> None:
        self.ring = ReasonRing(max_records, max_bytes, codec.decode)
        self.at_s = 0.0

    def tell(self, sender: Address, to: Address, message: Any, at_s: float | None = None) -> Reason:
        self.at_s = round(self.at_s + 0.1, 6)
        when_s = self.at_s if at_s is None else at_s
        reason = Reason(when_s, sender, to, type(message).__name__, codec.encode(message))
        self.ring.add(reason)
        return reason

    def order(self, instance: Address = I0, plan_version: int = 1, at_s: float | None = None) -> Reason:
        order = GroupOrder(50, plan_version, 1, GroupKind.LOCAL, GroupRole.LOCAL, (instance,), why=WHY)
        return self.tell(MANAGER, instance, order, at_s)

    def place(
        self, instance: Address = I0, attempt: int = 1, request: int = 1, dispatcher: Address = D0, key: str = ""
    ) -> Reason:
        return self.tell(dispatcher, instance, Place(request, attempt, i32([1]), 1, 4, key=key, why=WHY))

    def accepted(
        self, sequence: int, instance: Address = I0, attempt: int = 1, request: int = 1, dispatcher: Address = D0
    ) -> Reason:
        return self.tell(instance, dispatcher, Accepted(request, attempt, sequence, why=WHY))

    def step(self, *sequences: int, instance: Address = I0, at_s: float | None = None) -> Reason:
        zeros, ones = i64([0] * len(sequences)), i64([1] * len(sequences))
        sample = i8([1] * len(sequences))
        step = Step(1, i64(sequences), zeros, ones, sample, i32(), i64(), i64(), why=WHY)
        return self.tell(instance, ENGINE, step, at_s)

    def suspect(self, instance: Address = I0, at_s: float | None = None) -> Reason:
        return self.tell(MONITOR, instance, FleetView(2, (MemberView(instance, suspect=True, why=WHY),), 1), at_s)

    def stop_engine(self, instance: Address = I0) -> Reason:
        return self.tell(instance, ENGINE, StopEngine(WHY))

    def about(self, request: str = "req-c-1", limit: int = 1000) -> list[Reason]:
        return list(self.ring.records_of(request, limit))


def test_a_finished_request_has_its_own_records_and_its_steps_and_no_more() -> None:
    story = Story()
    mine = [story.order(), story.place(), story.accepted(40), story.step(40)]
    story.step(7)
    story.suspect()
    story.order(plan_version=2)
    story.stop_engine()
    story.step(7, 8)
    assert story.about() == mine


def test_a_running_request_also_has_what_befalls_its_instance() -> None:
    story = Story()
    mine = [story.order(), story.place(), story.accepted(40), story.step(7, 40)]
    story.suspect(I1)
    mine += [story.suspect(), story.stop_engine()]
    assert story.about() == mine


def test_only_the_newest_order_before_the_hand_out_counts_and_those_during_it() -> None:
    story = Story()
    story.order(plan_version=1)
    mine = [story.order(plan_version=2), story.place(), story.accepted(40), story.order(plan_version=3)]
    story.order(I1)
    assert story.about() == mine


def test_an_order_at_the_very_time_of_the_hand_out_counts_and_nothing_else_from_before_it() -> None:
    story = Story()
    mine = [story.order()]
    story.suspect()
    mine += [story.place()]
    assert story.about() == mine
    newer = story.order(plan_version=2, at_s=mine[-1].at_s)
    assert story.about() == [mine[-1], newer]
    newest = story.order(plan_version=3, at_s=mine[-1].at_s)
    assert story.about() == [mine[-1], newest], "of several at that time the last one"


def test_a_request_that_failed_over_has_both_instances() -> None:
    story = Story()
    mine = [story.order(), story.order(I1)]
    mine += [story.place(), story.accepted(40), story.step(40), story.suspect()]
    mine += [story.tell(D0, I0, Cancel(1, 1, WHY)), story.place(I1, 2), story.accepted(3, I1, 2)]
    mine += [story.step(3, instance=I1)]
    story.stop_engine(I0)
    mine += [story.step(3, 40, instance=I1), story.suspect(I1)]
    assert story.about() == mine


def test_a_preempted_request_keeps_its_instance_and_goes_on_as_another_sequence() -> None:
    story = Story()
    region = ReserveRegion(3, D0, 1, 1, Region(0, 1, 0, 4), 64, "fp32", "w", WHY)
    mine = [story.place(), story.accepted(40), story.step(40), story.tell(I0, D0, Preempted(1, 1, WHY))]
    mine += [story.tell(I0, KV, region), story.tell(KV, I0, RegionRefused(3, WHY))]
    story.tell(KV, I0, RegionRefused(4, WHY))
    story.tell(KV, I1, RegionRefused(3, WHY))
    story.step(7)
    mine += [story.suspect()]
    mine += [story.tell(I0, D0, Continued(1, 1, 41, 0, 4, WHY)), story.step(7, 41)]
    assert story.about() == mine


def test_a_request_that_another_dispatcher_adopted_is_found_by_the_name_that_it_keeps() -> None:
    story = Story()
    mine = [story.place(key="req-c-1"), story.accepted(40)]
    mine += [story.place(I1, 2, request=5, dispatcher=D1, key="req-c-1")]
    mine += [story.accepted(3, I1, 2, request=5, dispatcher=D1), story.step(3, instance=I1)]
    story.place(I1, request=6, dispatcher=D1, key="req-d-6")
    assert story.about() == mine


@pytest.mark.parametrize("closing", [Refused(1, 1, Refusal.FULL, WHY), Returned(1, 1, WHY)])
def test_after_a_refusal_or_return_the_instance_concerns_the_request_no_more(closing: Any) -> None:
    story = Story()
    mine = [story.place(), story.tell(I0, D0, closing)]
    story.suspect()
    assert story.about() == mine


def test_what_befalls_the_instance_at_the_very_time_of_the_end_still_counts() -> None:
    story = Story()
    mine = [story.place(), story.tell(I0, D0, Returned(1, 1, WHY))]
    mine += [story.suspect(at_s=mine[-1].at_s)]
    story.suspect()
    assert story.about() == mine


def test_a_step_at_the_very_time_of_the_answer_is_no_older_than_it() -> None:
    story = Story()
    mine = [story.place(), story.accepted(40)]
    mine += [story.step(40, at_s=mine[-1].at_s)]
    story.step(7)
    story.suspect()
    assert story.about() == mine


def test_a_request_that_waits_for_an_answer_or_its_first_step_keeps_its_instance() -> None:
    story = Story()
    mine = [story.place()]
    story.step(7)
    mine += [story.suspect(), story.accepted(40)]
    story.step(7)
    mine += [story.stop_engine()]
    assert story.about() == mine


def test_requests_of_the_same_number_are_kept_apart() -> None:
    story = Story()
    mine = [story.place(), story.accepted(40)]
    other = [story.place(dispatcher=D1), story.accepted(41, dispatcher=D1)]
    assert story.about("req-c-1") == mine
    assert story.about("req-d-1") == other
    assert story.about("req-c-2") == []


def test_a_step_of_another_instance_with_the_same_sequence_number_is_not_ours() -> None:
    story = Story()
    mine = [story.place(), story.accepted(40)]
    story.step(40, instance=I1)
    assert story.about() == mine


def test_records_come_in_order_of_time_whatever_the_order_of_arrival() -> None:
    story = Story()
    accepted = story.tell(I0, D0, Accepted(1, 1, 40, why=WHY), at_s=2.0)
    placed = story.tell(D0, I0, Place(1, 1, i32([1]), 1, 4, why=WHY), at_s=1.0)
    assert story.about() == [placed, accepted]


def test_without_its_place_a_request_still_has_its_steps() -> None:
    story = Story()
    mine = [story.accepted(40), story.step(40)]
    assert story.about() == mine


def test_a_long_story_loses_its_middle() -> None:
    story = Story()
    mine = [story.place(), story.accepted(40), *(story.step(40) for _ in range(10))]
    assert story.about(limit=5) == mine[:2] + mine[-3:]


def test_the_oldest_make_room_by_number_and_by_bytes() -> None:
    story = Story(max_records=3)
    mine = [story.place(), story.accepted(40), story.step(40), story.step(40)]
    assert story.about() == [mine[1], *mine[2:]]
    assert (len(story.ring), story.ring.lost) == (3, 1)
    story = Story(max_bytes=200)
    for _ in range(50):
        story.place()
    assert len(story.ring) < 20
    assert story.ring.lost == 50 - len(story.ring)
    assert len(story.about()) == len(story.ring)


def test_reasons_that_just_fill_the_bytes_are_all_kept() -> None:
    size = len(Story().place().payload)
    story = Story(max_bytes=2 * size)
    mine = [story.place(), story.place()]
    assert (story.about(), story.ring.lost) == (mine, 0)
    mine += [story.place()]
    assert (story.about(), story.ring.lost) == (mine[1:], 1)


@pytest.mark.parametrize(("kind", "payload"), [("Place", b"\xff\xff"), ("NoSuchThing", b"")])
def test_bytes_that_are_no_message_are_lost_and_nothing_else(kind: str, payload: bytes) -> None:
    story = Story()
    mine = story.place()
    story.ring.add(Reason(9.0, D0, I0, kind, payload))
    assert story.about() == [mine]
    assert story.ring.lost == 1


def test_a_kind_that_concerns_no_request_is_kept_and_forgotten_quietly() -> None:
    story = Story(max_records=1)
    story.tell(I0, ENGINE, Close(3))
    assert (len(story.ring), story.about()) == (1, [])
    story.place()
    assert len(story.about()) == 1


@given(st.lists(st.integers(0, 7), max_size=60), st.integers(1, 8))
def test_indexes_forget_with_the_ring(kinds: list[int], max_records: int) -> None:
    """Whatever comes and goes, nothing is found that the ring does not hold, and the indexes hold nothing else."""
    story = Story(max_records=max_records)
    tell: list[Callable[[], Reason]] = [
        story.place,
        lambda: story.accepted(40),
        lambda: story.step(40),
        story.suspect,
        story.order,
        lambda: story.tell(I0, ENGINE, Close(1)),
        lambda: story.place(key="req-c-1"),
        lambda: story.place(request=5, dispatcher=D1, key="req-c-1"),
    ]
    told = [tell[kind]() for kind in kinds]
    held = told[-max_records:]
    assert all(reason in held for reason in story.about())
    indexed = [*story.ring._of_request.values(), *story.ring._of_instance.values()]
    assert sum(map(len, indexed)) == sum(reason.kind != "Close" for reason in held)
    renamed = list(story.ring._renamed.values())
    assert sum(map(len, renamed)) == sum(reason.sender == D1 for reason in held)
    assert all(indexed + renamed)


@pytest.mark.parametrize("name", ["", "req-1", "req-g-1", "job-1-1", "req-1-1-1"])
def test_what_is_no_request_id_concerns_no_request(name: str) -> None:
    assert parse_request(name) is None
    assert Story().about(name) == []


def test_room_asked_for_without_a_request_is_kept_and_concerns_none() -> None:
    story = Story()
    mine = [story.place()]
    story.tell(I0, I1, Reserve(5, 10, 0, 2, 1, 1, WHY))
    assert len(story.ring) == 2
    assert story.about() == mine
