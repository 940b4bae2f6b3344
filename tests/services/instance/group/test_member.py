"""The member's side of an elastic group: whose commands it follows, its guests' slots, and the steps of its engine."""

from typing import Any

import pytest

from dunlin.effects import Address, Gone, Joined
from dunlin.messages.engine import (
    Close,
    EngineExited,
    Interrupt,
    Interrupted,
    Meet,
    Met,
    Open,
    Remap,
    Step,
    Unsupported,
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
from dunlin.messages.plan import GroupOrderDone, GroupOrderRefused, RemapLayers
from dunlin.messages.types import GroupKind, GroupRole, Verdict, i8, i32, i64
from simulator.engine.model import make_engine_ready
from tests.services.instance.bench import ENGINE, MANAGER, ME, D, done, make_order, make_place, of, only, ready_core
from tests.services.instance.group.member_bench import (
    AGENT,
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


def test_what_changed_is_said_anew_and_small_changes_are_not() -> None:
    direct = member()
    assert of(MemberReady, direct.give(LEADER, open_guest(SLOTS // 8 - 1))) == []
    (said,) = of(MemberReady, direct.give(LEADER, GrowGuest(GROUP, GUEST, SLOTS // 4)))
    assert said.available_slots == SLOTS - SLOTS // 4
    (said,) = of(MemberReady, direct.give(ENGINE, Met(ENGINE, agent=b"anew")))
    assert said.agent == b"anew"


def test_meetings_are_answered_in_order_once_all_engines_are() -> None:
    direct = ready_core(engine={"slots": SLOTS, "agent": AGENT})
    direct.give(MANAGER, elastic())
    direct.give(LEADER, JoinGroup(1, 2, GROUP, 1))
    lead, third = MemberEngine(0, Address("engine", "lead"), b"a"), MemberEngine(2, Address("engine", "third"), b"b")
    asked = direct.give(LEADER, MeetMembers(GROUP, (lead,))) + direct.give(LEADER, MeetMembers(GROUP, (lead, third)))
    assert [meet.peer for meet in of(Meet, asked)] == [lead.engine, third.engine]
    assert direct.give(ENGINE, Met(third.engine, "another node")) == []
    first, second = to_leader(direct.give(ENGINE, Met(lead.engine)))
    assert (list(first.met), first.detail) == ([0], "")
    assert (list(second.met), second.detail) == ([0], "members [2] cannot be reached")
    (again,) = to_leader(direct.give(LEADER, MeetMembers(GROUP, (lead,))))
    assert list(again.met) == [0]


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
    direct.give(LEADER, open_guest(100))
    (refused,) = of(GuestRefused, direct.give(LEADER, GrowGuest(GROUP, GUEST, SLOTS + 1)))
    assert (type(refused), refused.available_slots) == (GuestRefused, SLOTS - 100)
    for wrong in (open_guest(SLOTS, sequence=OTHER_GUEST), open_guest(5, 7, OTHER_GUEST, elsewhere_tokens=8)):
        sends = direct.give(LEADER, wrong)
        assert [type(message) for message in to_leader(sends)] == [GuestRefused]
        assert of(Open, sends) == []
    assert type(to_leader(direct.give(LEADER, GrowGuest(GROUP, OTHER_GUEST, 5)))[0]) is GuestRefused
    assert type(to_leader(direct.give(LEADER, close_guest(OTHER_GUEST)))[0]) is GuestClosed
    assert use(direct) == (SLOTS - 100, 100, 0)


def test_a_guest_opened_anew_keeps_what_lies_here_of_its_tokens() -> None:
    direct = member()
    direct.give(LEADER, open_guest(80, elsewhere_tokens=20))
    direct.give(LEADER, group_step(1, [(GUEST, 20, 50)], [(0, 0, 20, 0)]))
    direct.give(ENGINE, answered(1))
    direct.give(LEADER, group_step(2, [(GUEST, 60, 90)], [(0, 0, 20, 0), (0, 50, 60, 2)]))
    anew = open_guest(80, 101, prompt_tokens=100, elsewhere_tokens=70)
    assert to_leader(direct.give(LEADER, anew)) == []  # not while a step computes it
    sends = direct.give(ENGINE, answered(2))
    assert [type(send.message) for send in sends if send.to == ENGINE] == [Close, Open]
    opened = only(Open, sends)
    # 20 elsewhere, 30 here, 10 elsewhere, 10 of the second block; the other 20 are void
    assert (list(opened.extent_start), list(opened.extent_length)) == ([-1, 0, -1, 30], [20, 30, 10, 10])
    assert use(direct) == (SLOTS - 80, 40, 40)


# --- steps ---


def test_members_become_peers_and_positions_slots() -> None:
    direct = member()
    direct.give(LEADER, open_guest(60))
    direct.give(LEADER, open_guest(40, sequence=OTHER_GUEST))
    direct.give(LEADER, group_step(5, [(OTHER_GUEST, 0, 10), (GUEST, 0, 20)], sample=i8([0, 1])))
    direct.give(ENGINE, answered(1))
    spans = [(0, 20, 30, 2), (0, 30, 45, 0)]
    parts = [(OTHER_GUEST, 40, 50, 2, [(2, 8)]), (GUEST, 60, 70, 2, [(10, 20), (45, 60)])]
    step = only(Step, direct.give(LEADER, group_step(6, [(GUEST, 45, 60)], spans, parts)))
    assert (step.step, step.exchange, step.group, step.part) == (2, 6, GroupKind.MASTERS, GroupRole.MEMBER)
    assert step.peers == (Address("engine", "lead"), Address("engine", "third"))
    assert (list(step.own_room), list(step.peer_room)) == ([1, 3], [2, 2])
    assert (list(step.span_holder), list(step.span_start)) == ([1, 0], [20, 30])
    assert (list(step.extent_start), list(step.extent_length)) == ([20], [15])
    serve = step.serve
    assert (list(serve.sequence), list(serve.master)) == ([OTHER_GUEST, GUEST], [1, 1])
    assert (list(serve.span_part), list(serve.span_start), list(serve.slot)) == ([0, 1, 1], [2, 10, 45], [62, 10, 20])


def test_a_step_of_one_member_alone_has_no_peers() -> None:
    direct = member()
    direct.give(LEADER, open_guest(60))
    step = only(Step, direct.give(LEADER, group_step(5, [(GUEST, 0, 20)])))
    assert (step.group, step.peers, step.serve) == (GroupKind.LOCAL, (), None)


def test_a_ring_has_slots_for_its_stripes_and_for_what_stays() -> None:
    direct = member()
    direct.give(LEADER, open_guest(50))
    kept: dict[str, Any] = {"keep_row": i32([0]), "keep_start": i64([10]), "keep_stop": i64([30])}
    spans = [(0, 0, 60, 0), (0, 2, 60, 2)]
    asked = group_step(
        3, [(GUEST, 1, 60)], spans, kind=GroupKind.RING, stride=i64([3]), span_stride=i64([3, 3]), **kept
    )
    step = only(Step, direct.give(LEADER, asked))
    assert (list(step.extent_start), list(step.extent_length)) == ([30], [20])  # the last spare ones
    assert (list(step.keep.start), list(step.keep.stop), list(step.keep.slot)) == ([10], [30], [0])
    assert (list(step.keep.layer_start), list(step.stride)) == ([0], [3])
    assert use(direct) == (SLOTS - 50, 30, 20)
    direct.give(ENGINE, answered(1, left=(GUEST,)))
    assert use(direct) == (SLOTS - 50, 50, 0)
    refused = to_leader(direct.give(LEADER, group_step(
        4, [(GUEST, 1, 100)], [(0, 0, 100, 0)], kind=GroupKind.RING, stride=i64([2]), span_stride=i64([2]), **kept
    )))  # fmt: skip
    assert "70 slots are needed, 50 are set aside" in refused[0].refusal


REFUSED = {
    "not open": group_step(2, [(OTHER_GUEST, 0, 5)]),
    "nowhere": group_step(2, [(GUEST, 50, 60)], [(0, 0, 30, 0)]),
    "not known": group_step(2, [(GUEST, 30, 40)], [(0, 0, 10, 5)]),
    "itself": group_step(2, [(GUEST, 40, 50)], [(0, 30, 40, 1)]),
    "served nowhere": group_step(2, [], parts=[(GUEST, 50, 60, 0, [(20, 40)])]),
    "served after the row": group_step(2, [(GUEST, 30, 40)], parts=[(GUEST, 50, 60, 0, [(30, 41)])]),
    "no guest served": group_step(2, [], parts=[(OTHER_GUEST, 50, 60, 0, [(0, 5)])]),
    "too few slots": group_step(2, [(GUEST, 30, 61)]),
    "overlap": group_step(2, [(GUEST, 40, 50)], [(0, 30, 36, 0), (0, 35, 40, 2)]),
    "nothing": group_step(2, []),
    "uneven": group_step(2, [(GUEST, 30, 40)], sample=i8()),
    "twice": group_step(2, [(GUEST, 30, 40), (GUEST, 40, 50)]),
    "local": group_step(2, [(GUEST, 30, 40)], kind=GroupKind.LOCAL),
    "empty": group_step(2, [(GUEST, 30, 30)]),
    "no row": group_step(2, [(GUEST, 30, 40)], [(1, 0, 30, 0)]),
}


@pytest.mark.parametrize("asked", REFUSED.values(), ids=REFUSED)
def test_a_step_that_cannot_be_computed_here_is_refused_and_changes_nothing(asked: Any) -> None:
    direct = member()
    direct.give(LEADER, open_guest(60))
    direct.give(LEADER, group_step(1, [(GUEST, 0, 30)]))
    direct.give(ENGINE, answered(1))
    before = use(direct)
    sends = direct.give(LEADER, asked)
    (answer,) = to_leader(sends)
    assert (type(answer), answer.exchange, answer.done) == (GroupStepDone, 2, None)
    assert answer.refusal
    assert (of(Step, sends), use(direct)) == ([], before)


def test_a_step_waits_for_the_one_before_and_is_refused_if_that_left_what_it_reads() -> None:
    direct = member()
    direct.give(LEADER, open_guest(60))
    direct.give(LEADER, group_step(1, [(GUEST, 0, 30)]))
    assert direct.give(LEADER, group_step(2, [], parts=[(GUEST, 30, 40, 0, [(0, 30)])])) == []
    first, second = to_leader(direct.give(ENGINE, answered(1, left=(GUEST,))))
    assert list(first.done.left) == [GUEST]
    assert "tokens 0 to 30 do not lie here" in second.refusal
    assert use(direct) == (SLOTS - 60, 60, 0)
    step = only(Step, direct.give(LEADER, group_step(3, [(GUEST, 0, 30)])))
    assert (list(step.extent_start), list(step.extent_length)) == ([0], [30])


def test_local_steps_and_the_groups_alternate() -> None:
    direct = member(scheduler__budget_tokens=20)
    direct.give(LEADER, open_guest(90))
    for exchange in (1, 2, 3):
        direct.give(LEADER, group_step(exchange, [(GUEST, 30 * exchange - 30, 30 * exchange)]))
    direct.give(D, make_place(1, 100))
    kinds = []
    for number in range(1, 7):
        assert direct.core.steps.outstanding == 2
        is_group = direct.core.steps.is_group_step(number)
        kinds.append(is_group)
        direct.give(ENGINE, answered(number) if is_group else done(number))
    assert kinds == [True, False, True, False, True, False]


def test_a_groups_step_goes_before_the_next_local_one() -> None:
    direct = member(scheduler__budget_tokens=20)
    direct.give(LEADER, open_guest(90))
    direct.give(D, make_place(1, 100))
    assert direct.core.steps.outstanding == 2
    assert of(Step, direct.give(LEADER, group_step(1, [(GUEST, 0, 30)]))) == []
    (step,) = of(Step, direct.give(ENGINE, done(1)))
    assert direct.core.steps.is_group_step(step.step)


def test_a_step_that_the_engine_refuses_is_the_leaders() -> None:
    direct = member()
    direct.give(LEADER, open_guest(60))
    direct.give(LEADER, group_step(1, [(GUEST, 0, 30)]))
    (answer,) = to_leader(direct.give(ENGINE, Unsupported("Step", "no such room", step=1)))
    assert answer == GroupStepDone(GROUP, 1, refusal="no such room")
    assert (use(direct), direct.core.steps.outstanding) == ((SLOTS - 60, 60, 0), 0)
    direct.give(ENGINE, answered(1))
    assert direct.core.report().stale_total == 1


def test_cancelled_steps_end_and_are_answered() -> None:
    direct = member()
    direct.give(LEADER, open_guest(90))
    for exchange in (1, 2, 3):
        direct.give(LEADER, group_step(exchange, [(GUEST, 30 * exchange - 30, 30 * exchange)]))
    sends = direct.give(LEADER, CancelGroupSteps(GROUP, 2))
    (answer,) = to_leader(sends)
    assert (answer.exchange, list(answer.done.left)) == (2, [GUEST])
    interrupt = only(Interrupt, sends)
    assert (interrupt.step, list(interrupt.sequence), interrupt.verdict) == (1, [], Verdict.DISCARD)
    assert direct.give(LEADER, CancelGroupSteps(GROUP, 2)) == []
    gone = Interrupted(i64([GUEST]), interrupt.ticket, i64([1]), i32([0]), i32([0]), i8([0]))
    assert direct.give(ENGINE, gone) == []
    first, third = to_leader(direct.give(ENGINE, answered(1, left=(GUEST,))))
    assert (first.exchange, list(first.done.left)) == (1, [GUEST])
    assert (third.exchange, bool(third.refusal)) == (3, True)  # its tokens before are not here any more
    assert direct.core.report().outstanding_steps == 0


# --- what ends it ---


def busy() -> Any:
    """A member with a running step, one that waits, and guests."""
    direct = member()
    direct.give(LEADER, open_guest(60))
    direct.give(LEADER, open_guest(40, sequence=OTHER_GUEST))
    direct.give(LEADER, group_step(1, [(GUEST, 20, 50)], [(0, 0, 20, 2)]))
    direct.give(LEADER, group_step(2, [(GUEST, 50, 60)], [(0, 0, 20, 2)]))
    return direct


def test_a_leader_that_is_gone_has_no_guests_once_its_step_has_ended() -> None:
    direct = busy()
    sends = direct.give(LEADER, Gone("killed"))
    assert to_leader(sends) == []
    assert {each.sequence for each in of(Close, sends)} == {GUEST, OTHER_GUEST}
    assert only(Interrupt, sends).step == 1
    assert use(direct)[0] == SLOTS - 100
    assert direct.give(ENGINE, answered(1, left=(GUEST,))) == []
    assert use(direct) == (SLOTS, 0, 0)
    direct.give(LEADER, Joined())
    (ready,) = to_leader(direct.give(LEADER, JoinGroup(1, 2, GROUP, 1)))
    assert ready.available_slots == SLOTS


@pytest.mark.parametrize(
    "order", [make_order(plan_version=3), elastic(3, THIRD, ME), elastic(3, group=GROUP + 1)], ids=str
)
def test_an_order_of_another_group_drops_all_guests(order: Any) -> None:
    direct = busy()
    sends = direct.give(MANAGER, order)
    (lost,) = to_leader(sends)
    assert (type(lost), lost.group) == (GuestsLost, GROUP)
    assert only(Interrupt, sends).step == 1
    direct.give(ENGINE, answered(1, left=(GUEST,)))
    assert use(direct) == (SLOTS, 0, 0)


def test_an_order_with_other_members_ends_only_what_needs_those_that_went() -> None:
    direct = busy()
    assert of(Interrupt, direct.give(MANAGER, elastic(3, LEADER, ME, THIRD, Address("instance", "new", 9)))) == []
    assert of(Interrupt, direct.give(MANAGER, elastic(4, LEADER, ME, THIRD))) == []
    sends = direct.give(MANAGER, elastic(5, LEADER, ME))
    assert only(Interrupt, sends).step == 1
    assert use(direct)[0] == SLOTS - 100
    first, second = to_leader(direct.give(ENGINE, answered(1, left=(GUEST,))))
    assert (first.exchange, second.exchange) == (1, 2)


def test_a_lost_engine_takes_the_guests_and_the_next_one_is_ready() -> None:
    direct = busy()
    direct.give(ENGINE, EngineExited(1, incarnation=0))
    (lost,) = to_leader(direct.give(ENGINE, Gone("died")))
    assert isinstance(lost, GuestsLost)
    assert (direct.core.steps.outstanding, use(direct)) == (0, (SLOTS, 0, 0))
    (ready,) = to_leader(direct.give(ENGINE, make_engine_ready(slots=SLOTS, agent=b"next")))
    assert ready.agent == b"next"
    direct.give(LEADER, group_step(3, [(GUEST, 0, 5)]))
    assert use(direct) == (SLOTS, 0, 0)


def test_meetings_under_way_are_answered_when_the_engine_is_lost() -> None:
    direct = member()
    direct.give(LEADER, MeetMembers(GROUP, (MemberEngine(0, Address("engine", "lead"), b"other"),)))
    met, lost = to_leader(direct.give(ENGINE, Gone("died")))
    assert (type(met), list(met.met), type(lost)) == (MembersMet, [], GuestsLost)


def test_a_change_of_layers_drops_the_guests_first() -> None:
    direct = busy()
    sends = direct.give(MANAGER, RemapLayers(1, 9, i32([0])))
    assert isinstance(to_leader(sends)[0], GuestsLost)
    assert only(Remap, sends)
    direct.give(ENGINE, answered(1, left=(GUEST,)))
    assert use(direct) == (SLOTS, 0, 0)
    assert isinstance(
        next(send.message for send in direct.give(MANAGER, elastic(6, group=GROUP + 1)) if send.to == MANAGER),
        GroupOrderRefused,
    )
