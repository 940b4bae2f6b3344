"""The member's side of an elastic group: whose commands it follows, its guests' slots, and the steps of its engine."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.effects import Address, Gone
from dunlin.messages.engine import (
    Close,
    EngineProgress,
    Interrupt,
    Meet,
    Met,
    Open,
    Step,
    StopEngine,
)
from dunlin.messages.group import (
    CancelGroupSteps,
    GroupStepDone,
    GrowGuest,
    GuestClosed,
    GuestRefused,
    GuestsLost,
    GuestSlots,
    JoinGroup,
    MeetMembers,
    MemberEngine,
    MemberReady,
    MembersMet,
)
from dunlin.messages.plan import GroupOrderDone, GroupOrderRefused
from dunlin.messages.types import GroupKind, GroupRole, i32, i64
from services.instance.group.guests import MAX_GUESTS
from simulator.engine.model import make_engine_ready
from tests.services.instance.bench import (
    ENGINE,
    MANAGER,
    ME,
    make_order,
    of,
    only,
    ready_core,
)
from tests.services.instance.group.member_bench import (
    AGENT,
    DISPATCHER,
    GROUP,
    GUEST,
    LEADER,
    OTHER_GUEST,
    SLOTS,
    THIRD,
    answered,
    close_guest,
    elastic,
    group_step,
    member,
    open_guest,
    to_leader,
    use,
)

# --- whom it follows ---


@pytest.mark.parametrize(
    ("order", "follows"),
    [
        (elastic(), True),
        (elastic(2, ME, THIRD, part=GroupRole.LEADER), True),
        (elastic(2, ME, THIRD), False),
        (elastic(2, LEADER, ME, part=GroupRole.LEADER), False),
        (elastic(2, LEADER, THIRD), False),
        (elastic(layers=i32([0])), False),
        (elastic(kind=GroupKind.RING), False),
    ],
)
def test_an_elastic_order_is_followed_by_the_part_of_it_that_it_names(order: Any, follows: bool) -> None:
    (answer,) = [send.message for send in ready_core().give(MANAGER, order) if send.to == MANAGER]
    assert isinstance(answer, GroupOrderDone if follows else GroupOrderRefused)


def test_a_leader_is_answered_once_its_order_has_come() -> None:
    direct = ready_core(engine={"slots": SLOTS, "agent": AGENT})
    assert to_leader(direct.give(LEADER, JoinGroup(1, 2, GROUP, 1))) == []
    (ready,) = to_leader(direct.give(MANAGER, elastic()))
    assert (ready.group, ready.engine, ready.agent) == (GROUP, ENGINE, AGENT)
    assert (ready.capacity_slots, ready.available_slots) == (SLOTS, SLOTS)
    assert to_leader(direct.give(LEADER, JoinGroup(1, 2, GROUP, 1))) == [ready]
    direct.give(LEADER, JoinGroup(1, 1, 39, 1))
    assert direct.core.report().stale_total == 1


def test_a_leader_that_asks_before_the_member_was_taken_away_and_given_back_is_answered_after_that() -> None:
    """The leader has heard of both orders, this member of none yet: it does not say a second time that it asks."""
    direct = member()
    (ready,) = to_leader(direct.give(LEADER, JoinGroup(1, 4, GROUP, 3)))
    assert isinstance(ready, MemberReady)
    (lost,) = to_leader(direct.give(MANAGER, make_order(plan_version=3, group=GROUP + 1)))
    assert isinstance(lost, GuestsLost)
    assert to_leader(direct.give(MANAGER, elastic(4))) == [ready]


def test_of_two_leaders_that_ask_early_the_one_of_the_newer_order_is_answered() -> None:
    direct = ready_core(engine={"slots": SLOTS, "agent": AGENT})
    direct.give(THIRD, JoinGroup(1, 4, GROUP + 1, 1))
    direct.give(LEADER, JoinGroup(1, 3, GROUP, 1))
    sends = direct.give(MANAGER, elastic(4, THIRD, ME, group=GROUP + 1))
    assert [type(send.message) for send in sends if send.to == THIRD] == [MemberReady]


def test_an_order_of_a_newer_manager_is_newer_than_all_of_the_one_before() -> None:
    direct = ready_core(engine={"slots": SLOTS, "agent": AGENT})
    direct.give(MANAGER, make_order(plan_version=5))
    direct.give(LEADER, JoinGroup(2, 1, GROUP, 1))
    assert [type(message) for message in to_leader(direct.give(MANAGER, elastic(1, epoch=2)))] == [MemberReady]


def test_a_leader_whose_group_is_formed_again_is_answered_when_it_asks_again() -> None:
    """What it asked before is of the group as it was: it may give this member another number."""
    direct = ready_core(engine={"slots": SLOTS, "agent": AGENT})
    direct.give(LEADER, JoinGroup(1, 2, GROUP, 1))
    assert to_leader(direct.give(MANAGER, elastic()))
    direct.give(MANAGER, make_order(plan_version=3, group=GROUP + 1))
    assert to_leader(direct.give(MANAGER, elastic(4))) == []


def test_a_leader_that_is_gone_before_its_order_comes_is_not_answered() -> None:
    direct = ready_core(engine={"slots": SLOTS, "agent": AGENT})
    direct.give(LEADER, JoinGroup(1, 2, GROUP, 1))
    direct.give(LEADER, Gone("killed"))
    assert to_leader(direct.give(MANAGER, elastic())) == []


def test_a_leader_hears_what_the_engine_is() -> None:
    has = {"layout": 3, "max_positions": 500, "weights_digest": "w", "kv_dtype": "bf16", "adapters": ("aa",)}
    direct = ready_core(engine={"slots": SLOTS, "agent": AGENT, **has})
    direct.give(MANAGER, elastic())
    (ready,) = to_leader(direct.give(LEADER, JoinGroup(1, 2, GROUP, 1)))
    assert ready == MemberReady(GROUP, ENGINE, AGENT, 3, SLOTS, SLOTS, 500, "w", "bf16", ("aa",))
    direct.give(LEADER, open_guest(60))
    assert only(Step, direct.give(LEADER, group_step(1, [(GUEST, 0, 20)]))).layout == 3
    (refused,) = to_leader(direct.give(LEADER, open_guest(9, 500, OTHER_GUEST)))
    assert "500 tokens of at most 500" in refused.why.rejected[0].reason


def test_what_changed_is_said_anew_and_small_changes_are_not() -> None:
    direct = member()
    assert of(MemberReady, direct.give(LEADER, open_guest(SLOTS // 8 - 1))) == []
    (said,) = of(MemberReady, direct.give(LEADER, GrowGuest(GROUP, GUEST, SLOTS // 4)))
    assert said.available_slots == SLOTS - SLOTS // 4
    (said,) = of(MemberReady, direct.give(ENGINE, Met(ENGINE, agent=b"anew")))
    assert said.agent == b"anew"


def test_an_eighth_of_the_slots_is_no_small_change_and_neither_is_one_that_comes_back() -> None:
    direct = member()
    assert len(of(MemberReady, direct.give(LEADER, open_guest(SLOTS // 8)))) == 1
    (said,) = of(MemberReady, direct.give(LEADER, close_guest()))
    assert said.available_slots == SLOTS


def test_meetings_are_answered_in_order_once_all_engines_are() -> None:
    direct = ready_core(engine={"slots": SLOTS, "agent": AGENT})
    direct.give(MANAGER, elastic())
    direct.give(LEADER, JoinGroup(1, 2, GROUP, 1))
    lead, third = MemberEngine(0, Address("engine", "lead"), b"a"), MemberEngine(2, Address("engine", "third"), b"b")
    asked = direct.give(LEADER, MeetMembers(GROUP, (lead,))) + direct.give(LEADER, MeetMembers(GROUP, (lead, third)))
    assert [meet.peer for meet in of(Meet, asked)] == [lead.engine, third.engine]
    assert len(of(Interrupt, asked)) == 2
    assert direct.give(ENGINE, Met(third.engine, "another node")) == []
    first, second = to_leader(direct.give(ENGINE, Met(lead.engine)))
    assert (list(first.met), first.detail) == ([0], "")
    assert (list(second.met), second.detail) == ([0], "members [2] cannot be reached")
    (again,) = to_leader(direct.give(LEADER, MeetMembers(GROUP, (lead,))))
    assert list(again.met) == [0]


def test_an_engine_that_could_not_be_reached_is_tried_again_when_the_leader_asks_again() -> None:
    direct = ready_core(engine={"slots": SLOTS, "agent": AGENT})
    direct.give(MANAGER, elastic())
    direct.give(LEADER, JoinGroup(1, 2, GROUP, 1))
    lead = MemberEngine(0, Address("engine", "lead"), b"a")
    direct.give(LEADER, MeetMembers(GROUP, (lead,), 1))
    (unmet,) = to_leader(direct.give(ENGINE, Met(lead.engine, "the connection failed")))
    assert list(unmet.met) == []
    assert [meet.peer for meet in of(Meet, direct.give(LEADER, MeetMembers(GROUP, (lead,), 2)))] == [lead.engine]
    (met,) = to_leader(direct.give(ENGINE, Met(lead.engine)))
    assert (list(met.met), met.question) == ([0], 2)


def test_an_engine_that_hangs_before_it_meets_anything_is_found() -> None:
    direct = ready_core(engine={"slots": SLOTS, "agent": AGENT}, engine_watch__stuck_s=3.0)
    direct.give(MANAGER, elastic())
    direct.give(LEADER, JoinGroup(1, 2, GROUP, 1))
    asked = MeetMembers(GROUP, (MemberEngine(0, Address("engine", "lead"), b"a"),))
    (probe,) = of(Interrupt, direct.give(LEADER, asked))
    assert (list(probe.sequence), probe.up_to_step, probe.step) == ([0], 0, 0)
    ends = [at / 2 for at in range(20) if of(StopEngine, direct.give(ENGINE, EngineProgress(5), at / 2))]
    assert ends[0] == 3.0
    met, lost = to_leader(direct.give(ENGINE, Gone("killed"), 4.0))
    assert (type(met), type(lost)) == (MembersMet, GuestsLost)


def test_a_step_names_none_but_the_members_that_the_leader_said_last() -> None:
    direct = member()
    direct.give(LEADER, MeetMembers(GROUP, (MemberEngine(0, Address("engine", "lead"), b"a0"),)))
    direct.give(LEADER, open_guest(60))
    (refused,) = to_leader(direct.give(LEADER, group_step(1, [(GUEST, 20, 50)], [(0, 0, 20, 2)])))
    assert "member 2 is not one of [0]" in refused.refusal


def test_messages_of_other_groups_and_leaders_are_stale() -> None:
    direct = member()
    for sender, message in (
        (THIRD, open_guest(10)),
        (LEADER, GrowGuest(GROUP + 1, GUEST, 5)),
        (THIRD, CancelGroupSteps(GROUP, 9)),
        (LEADER, MeetMembers(GROUP - 1, ())),
    ):
        assert direct.give(sender, message) == []
    assert direct.core.report().stale_total == 4
    assert direct.core.report().guest_slots == 0


def test_what_a_leader_asks_before_it_hears_that_the_engine_is_lost_is_stale() -> None:
    direct = member()
    direct.give(ENGINE, Gone("died"))
    assert direct.give(LEADER, open_guest(10)) == []
    assert direct.core.report().stale_total == 1
    sends = direct.give(ENGINE, make_engine_ready(slots=SLOTS, agent=b"next"))
    assert [type(message) for message in to_leader(sends)] == [MemberReady]


def test_an_engine_names_none_that_it_was_not_told_of() -> None:
    """The leader told the engine before it, which had met them."""
    direct = member()
    direct.give(ENGINE, Gone("died"))
    direct.give(ENGINE, make_engine_ready(slots=SLOTS, agent=b"next"))
    direct.give(LEADER, open_guest(60))
    (refused,) = to_leader(direct.give(LEADER, group_step(1, [(GUEST, 20, 50)], [(0, 0, 20, 2)])))
    assert "member 2 is not one of []" in refused.refusal


# --- guests ---


def test_slots_are_reserved_when_set_aside_and_owned_once_bound() -> None:
    direct = member()
    opened = direct.give(LEADER, open_guest(50))
    assert only(Open, opened).sequence == GUEST
    assert to_leader(opened)[0] == GuestSlots(GROUP, GUEST, 50, SLOTS - 50)
    assert (use(direct), direct.core.report().guest_slots) == ((SLOTS - 50, 50, 0), 50)
    direct.give(LEADER, group_step(1, [(GUEST, 0, 30)]))
    assert use(direct) == (SLOTS - 50, 20, 30)
    assert to_leader(direct.give(LEADER, GrowGuest(GROUP, GUEST, 60)))[0].slots == 50 + 10
    assert use(direct) == (SLOTS - 60, 30, 30)
    assert direct.give(LEADER, GrowGuest(GROUP, GUEST, 10)) == []  # its step uses them
    first, fewer, *_ = to_leader(direct.give(ENGINE, answered(1)))
    assert (type(first), fewer.slots) == (GroupStepDone, 30)  # no fewer than are bound
    assert use(direct) == (SLOTS - 30, 0, 30)
    direct.give(LEADER, group_step(2, [(GUEST, 10, 30)]))
    assert direct.give(LEADER, close_guest()) == []
    closed = direct.give(ENGINE, answered(2))
    assert [type(message) for message in to_leader(closed)][:2] == [GroupStepDone, GuestClosed]
    assert only(Close, closed).sequence == GUEST
    assert use(direct) == (SLOTS, 0, 0)


def test_a_guest_for_which_there_is_no_room_is_refused_and_keeps_what_it_had() -> None:
    direct = member()
    direct.give(LEADER, replace(open_guest(100), request=5, attempt=3))
    (refused,) = of(GuestRefused, direct.give(LEADER, GrowGuest(GROUP, GUEST, SLOTS + 1)))
    assert (type(refused), refused.available_slots) == (GuestRefused, SLOTS - 100)
    assert (refused.dispatcher, refused.request, refused.attempt) == (DISPATCHER, 5, 3)
    for wrong in (open_guest(SLOTS, sequence=OTHER_GUEST), open_guest(5, 7, OTHER_GUEST, elsewhere_tokens=8)):
        sends = direct.give(LEADER, wrong)
        assert [type(message) for message in to_leader(sends)] == [GuestRefused]
        assert of(Open, sends) == []
    assert type(to_leader(direct.give(LEADER, GrowGuest(GROUP, OTHER_GUEST, 5)))[0]) is GuestRefused
    assert type(to_leader(direct.give(LEADER, close_guest(OTHER_GUEST)))[0]) is GuestClosed
    assert use(direct) == (SLOTS - 100, 100, 0)


@pytest.mark.parametrize(
    ("tokens", "most", "is_opened"), [(1, 20, True), (99, 100, True), (0, 20, False), (100, 100, False)]
)
def test_a_guest_has_a_token_and_may_grow(tokens: int, most: int, is_opened: bool) -> None:
    asked = open_guest(5, tokens, max_tokens=most - tokens)
    (answer,) = to_leader(member().give(LEADER, asked))
    assert type(answer) is (GuestSlots if is_opened else GuestRefused)


def test_a_guest_opened_anew_keeps_what_lies_here_of_its_tokens() -> None:
    direct = member()
    direct.give(LEADER, open_guest(80, elsewhere_tokens=20))
    direct.give(LEADER, group_step(1, [(GUEST, 20, 50)], [(0, 0, 20, 0)]))
    direct.give(ENGINE, answered(1))
    direct.give(LEADER, group_step(2, [(GUEST, 60, 90)], [(0, 0, 20, 0), (0, 50, 60, 2)]))
    starts, stops = i64([20, 60]), i64([50, 70])
    anew = open_guest(80, 101, prompt_tokens=100, elsewhere_tokens=70, held_start=starts, held_stop=stops)
    assert to_leader(direct.give(LEADER, anew)) == []  # not while a step computes it
    sends = direct.give(ENGINE, answered(2))
    assert [type(send.message) for send in sends if send.to == ENGINE] == [Close, Open]
    opened = only(Open, sends)
    # 20 elsewhere, 30 here, 10 elsewhere, 10 of the second block; the other 20 are void
    assert (list(opened.extent_start), list(opened.extent_length)) == ([-1, 0, -1, 30], [20, 30, 10, 10])
    assert use(direct) == (SLOTS - 80, 40, 40)
    anew = open_guest(80, 101, prompt_tokens=100, elsewhere_tokens=70, held_start=i64([30]), held_stop=i64([40]))
    opened = only(Open, direct.give(LEADER, anew))
    assert (list(opened.extent_start), list(opened.extent_length)) == ([-1, 10, -1], [30, 10, 30])
    assert use(direct) == (SLOTS - 80, 70, 10)


def test_a_guest_that_gets_no_more_slots_when_it_is_opened_anew_stays_as_it_was() -> None:
    direct = member()
    direct.give(LEADER, open_guest(60))
    direct.give(LEADER, group_step(1, [(GUEST, 0, 30)]))
    direct.give(ENGINE, answered(1))
    anew = open_guest(SLOTS + 1, elsewhere_tokens=30, held_start=i64([0]), held_stop=i64([30]))
    assert [type(send.message) for send in direct.give(LEADER, anew)] == [GuestRefused]
    assert use(direct) == (SLOTS - 60, 30, 30)
    assert of(Step, direct.give(LEADER, group_step(2, [(GUEST, 30, 40)])))


def test_guests_are_bounded_and_one_that_is_open_may_be_opened_anew() -> None:
    direct = member()
    for number in range(1, MAX_GUESTS + 1):
        direct.give(LEADER, open_guest(1, sequence=GROUP << 32 | number))
    (refused,) = of(GuestRefused, direct.give(LEADER, open_guest(1, sequence=GROUP << 32 | MAX_GUESTS + 1)))
    assert f"{MAX_GUESTS} guests are open" in refused.why.rejected[0].reason
    assert of(GuestSlots, direct.give(LEADER, open_guest(2)))


def test_what_is_asked_of_a_guest_is_done_in_its_order() -> None:
    """To open it anew waits for its step, so more slots wait for that; nothing is said to lie here but its own."""
    direct = member()
    direct.give(LEADER, open_guest(60))
    direct.give(LEADER, group_step(1, [(GUEST, 0, 30)]))
    anew = open_guest(80, elsewhere_tokens=30, held_start=i64([0]), held_stop=i64([30]))
    assert direct.give(LEADER, anew) == []
    assert direct.give(LEADER, GrowGuest(GROUP, GUEST, 100)) == []
    granted = of(GuestSlots, direct.give(ENGINE, answered(1)))
    assert [(each.slots, list(each.held_start)) for each in granted] == [(80, []), (100, [])]


@pytest.mark.parametrize("held", [([30], [30]), ([40, 30], [50, 35]), ([60], [71]), ([30], [])])
def test_a_guest_whose_held_tokens_are_not_in_order_is_not_opened(held: tuple[list[int], list[int]]) -> None:
    starts, stops = map(i64, held)
    (refused,) = to_leader(
        member().give(LEADER, open_guest(80, elsewhere_tokens=70, held_start=starts, held_stop=stops))
    )
    assert type(refused) is GuestRefused
