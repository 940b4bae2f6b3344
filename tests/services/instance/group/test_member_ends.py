"""What ends a member's part of a group, and the instance's own requests beside it."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.effects import Address, Gone, Joined
from dunlin.messages.dispatch import Suspected
from dunlin.messages.engine import (
    Close,
    EngineExited,
    Interrupt,
    Open,
    Remap,
    Step,
)
from dunlin.messages.group import (
    CancelGroupSteps,
    GroupStepDone,
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
from dunlin.messages.plan import GroupOrderRefused, RemapLayers
from dunlin.messages.types import i8, i32
from services.instance.group.guest_steps import MAX_WAITING
from services.instance.group.guests import MAX_KEPT
from simulator.engine.model import make_engine_ready
from tests.services.instance.bench import (
    ENGINE,
    MANAGER,
    ME,
    Attempt,
    Bench,
    D,
    Direct,
    Silent,
    make_order,
    make_place,
    of,
    only,
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


def test_what_a_gone_leader_asked_is_not_answered_when_it_is_back() -> None:
    direct = busy()
    direct.give(LEADER, Gone("killed"))
    direct.give(ENGINE, answered(1, left=(GUEST,)))
    direct.give(LEADER, Joined())
    direct.give(LEADER, JoinGroup(1, 2, GROUP, 1))
    assert [type(each) for each in to_leader(direct.give(LEADER, open_guest(10, 100, NEXT_GUEST)))] == [GuestSlots]


def test_another_member_that_is_gone_takes_nothing_with_it() -> None:
    direct = busy()
    assert direct.give(THIRD, Gone("killed")) == []
    (answer, *_) = to_leader(direct.give(ENGINE, answered(1)))
    assert answer.exchange == 1


NEXT_GUEST = GROUP << 32 | 3


def computed_without_its_leader(**opened: Any) -> Direct:
    """Tokens 20 to 60 of a guest of 100 are computed here, and token 100 after them; then its leader is gone, in the
    step after, and back.
    """
    direct = member()
    direct.give(LEADER, open_guest(70, 100, **opened))
    for exchange, start, stop in ((1, 20, 60), (2, 100, 101), (3, 101, 102)):
        spans = [(0, 0, 20, 2), (0, 60, 100, 2)] if start > 60 else [(0, 0, 20, 2)]
        direct.give(LEADER, group_step(exchange, [(GUEST, start, stop)], spans, sample=i8([start > 60])))
        if exchange < 3:
            direct.give(ENGINE, answered(exchange))
    direct.give(LEADER, Gone("killed"))
    direct.give(ENGINE, answered(3))
    direct.give(LEADER, Joined())
    direct.give(LEADER, JoinGroup(1, 2, GROUP, 1))
    direct.give(LEADER, MeetMembers(GROUP, (MemberEngine(0, Address("engine", "lead"), b"a0"),)))
    return direct


def test_what_a_gone_leader_s_guest_has_is_kept_for_the_next_attempt() -> None:
    """Of the text that its leader had told, and of no step that ran then; the slots count as free."""
    direct = computed_without_its_leader()
    assert direct.core.slot_table.free == SLOTS - 40
    assert use(direct)[1:] == (0, 40)
    assert direct.core.lifecycle.kv_cache.available_slots == SLOTS
    sends = direct.give(LEADER, open_guest(30, 100, NEXT_GUEST))
    slots = only(GuestSlots, sends)
    assert (slots.slots, list(slots.held_start), list(slots.held_stop)) == (40, [20], [60])
    opened = only(Open, sends)
    assert (opened.extent_start[0], list(opened.extent_length)) == (-1, [20, 40])
    assert use(direct) == (SLOTS - 40, 0, 40)
    direct.give(LEADER, close_guest(NEXT_GUEST))
    assert use(direct) == (SLOTS, 0, 0)


def test_what_is_kept_outlasts_a_request_for_more_slots_than_there_are() -> None:
    """A leader asks for what was free when it heard last, or for all; then for what the refusal says."""
    direct = computed_without_its_leader()
    refused = only(GuestRefused, direct.give(LEADER, open_guest(SLOTS + 1, 100, NEXT_GUEST)))
    assert refused.available_slots == SLOTS
    assert use(direct) == (SLOTS - 40, 0, 40)
    slots = only(GuestSlots, direct.give(LEADER, open_guest(SLOTS, 100, NEXT_GUEST)))
    assert (slots.slots, list(slots.held_start), list(slots.held_stop)) == (SLOTS, [20], [60])
    direct.give(LEADER, close_guest(NEXT_GUEST))
    assert use(direct) == (SLOTS, 0, 0)


@pytest.mark.parametrize("difference", ["text", "key", "adapter", "none", "last token"])
def test_only_the_same_text_of_the_same_request_goes_on_with_it(difference: str) -> None:
    direct = computed_without_its_leader()
    text = i32([at % 90 + 1 for at in range(100)])
    if difference == "text":
        text[50] = 99
    tokens = text[:41] if difference == "last token" else text
    changed = {"key": {"key": "other"}, "adapter": {"adapter": "aa"}}.get(difference, {})
    asked = replace(open_guest(60, 100, NEXT_GUEST, **changed), tokens=tokens, prompt_tokens=len(tokens))
    slots = only(GuestSlots, direct.give(LEADER, asked))
    stop = {"text": 50, "key": 20, "adapter": 20, "last token": 40, "none": 60}[difference]
    assert list(slots.held_stop) == ([stop] if stop > 20 else [])
    assert slots.slots == 60


def partly_computed(tokens: int = 40, **opened: Any) -> Direct:
    """The first tokens of a guest of 100 are computed here."""
    direct = member()
    direct.give(LEADER, open_guest(70, 100, **opened))
    direct.give(LEADER, group_step(1, [(GUEST, 0, tokens)]))
    direct.give(ENGINE, answered(1))
    return direct


def test_what_a_step_was_to_compute_that_no_leader_waits_for_is_not_kept() -> None:
    """Its rows may have left it."""
    direct = partly_computed(20)
    direct.give(LEADER, group_step(2, [(GUEST, 20, 40)]))
    direct.give(LEADER, Gone("killed"))
    direct.give(ENGINE, answered(2, left=(GUEST,)))
    assert use(direct)[1:] == (0, 20)


def test_what_a_guest_has_is_kept_when_its_group_ends() -> None:
    direct = partly_computed()
    direct.give(MANAGER, elastic(3, THIRD, ME, group=GROUP + 1))
    assert use(direct)[1:] == (0, 40)
    direct.give(THIRD, JoinGroup(1, 3, GROUP + 1, 1))
    slots = only(GuestSlots, direct.give(THIRD, replace(open_guest(50, 100, NEXT_GUEST), group=GROUP + 1)))
    assert list(slots.held_stop) == [40]


def test_nothing_is_kept_when_layers_are_about_to_change() -> None:
    direct = partly_computed()
    direct.give(MANAGER, RemapLayers(1, 9, i32([0])))
    assert use(direct) == (SLOTS, 0, 0)


def test_of_two_guests_of_one_request_the_later_one_is_kept() -> None:
    direct = partly_computed(10)
    direct.give(LEADER, open_guest(70, 100, OTHER_GUEST))
    direct.give(LEADER, group_step(2, [(OTHER_GUEST, 0, 20)]))
    direct.give(ENGINE, answered(2))
    direct.give(LEADER, Gone("killed"))
    assert use(direct)[1:] == (0, 20)


def test_of_many_guests_the_newest_are_kept() -> None:
    direct, guests = member(), [GROUP << 32 | number for number in range(1, MAX_KEPT + 3)]
    for exchange, guest in enumerate(guests, 1):
        direct.give(LEADER, open_guest(5, 10, guest, key=f"k{guest}"))
        direct.give(LEADER, group_step(exchange, [(guest, 0, 5)]))
        direct.give(ENGINE, answered(exchange))
    direct.give(LEADER, Gone("killed"))
    assert direct.core.slot_table.free == SLOTS - 5 * MAX_KEPT
    direct.give(LEADER, Joined())
    direct.give(LEADER, JoinGroup(1, 2, GROUP, 1))
    for guest, is_kept in ((guests[1], False), (guests[2], True), (guests[-1], True)):
        again = open_guest(5, 10, NEXT_GUEST, key=f"k{guest}")
        assert len(only(GuestSlots, direct.give(LEADER, again)).held_start) == is_kept
        direct.give(LEADER, close_guest(NEXT_GUEST))


def test_what_is_kept_goes_first_where_slots_are_needed() -> None:
    direct = computed_without_its_leader()
    direct.give(LEADER, open_guest(SLOTS, 100, OTHER_GUEST, key="other"))
    assert use(direct) == (0, SLOTS, 0)
    direct.give(LEADER, close_guest(OTHER_GUEST))
    slots = only(GuestSlots, direct.give(LEADER, open_guest(30, 100, NEXT_GUEST)))
    assert (slots.slots, list(slots.held_start)) == (30, [])


def test_nothing_is_kept_beyond_the_engine_that_computed_it() -> None:
    direct = computed_without_its_leader()
    direct.give(ENGINE, EngineExited(0, signal=9))
    direct.give(ENGINE, Gone("killed"))
    assert direct.core.lifecycle.kv_cache.cached_slots == 0


def test_a_request_without_a_key_leaves_nothing() -> None:
    assert use(computed_without_its_leader(key="")) == (SLOTS, 0, 0)


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


def test_a_step_with_a_member_that_the_order_took_away_is_refused() -> None:
    """Its leader has not heard of the order yet. The one that comes back later is computed with again."""
    direct = member()
    direct.give(LEADER, open_guest(60))
    direct.give(MANAGER, elastic(3, LEADER, ME))
    (refused,) = to_leader(direct.give(LEADER, group_step(1, [(GUEST, 20, 50)], [(0, 0, 20, 2)])))
    assert "member 2 is not one of [0]" in refused.refusal
    direct.give(MANAGER, elastic(4, LEADER, ME, THIRD))
    assert len(only(Step, direct.give(LEADER, group_step(2, [(GUEST, 20, 50)], [(0, 0, 20, 2)]))).peers) == 1


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


@pytest.mark.parametrize(
    ("exited", "suspects"),
    [({"signal": 11}, [GUEST]), ({"code": 1}, [GUEST]), ({"signal": 9}, []), ({"code": 1, "ended_by_us": True}, [])],
    ids=str,
)
def test_the_guests_of_the_step_that_ran_are_suspects_of_a_crash(exited: dict[str, Any], suspects: list[int]) -> None:
    direct = busy()
    direct.give(ENGINE, EngineExited(**{"code": 0, "incarnation": 0, **exited}))
    (lost,) = to_leader(direct.give(ENGINE, Gone("died")))
    assert (lost.exchange, list(lost.suspects)) == (1 if suspects else 0, suspects)


@pytest.mark.parametrize("let_go", [Gone("killed"), elastic(3, group=GROUP + 1)], ids=["leader gone", "other group"])
def test_the_dispatcher_hears_of_a_crash_in_a_step_that_no_leader_waits_for(let_go: Any) -> None:
    direct = busy()
    direct.give(LEADER if isinstance(let_go, Gone) else MANAGER, let_go)
    direct.give(ENGINE, EngineExited(0, incarnation=0, signal=11))
    sends = direct.give(ENGINE, Gone("died"))
    assert to_leader(sends) == []
    (told,) = [send for send in sends if isinstance(send.message, Suspected)]
    assert (told.to, told.message.request, told.message.attempt) == (DISPATCHER, 1, 1)
    assert told.message.is_alone, "the other guest has no part in the step"
    assert use(direct) == (SLOTS, 0, 0)


def test_the_next_leader_hears_of_no_step_of_the_one_before() -> None:
    direct = busy()
    direct.give(MANAGER, elastic(3, THIRD, ME, group=GROUP + 1))
    direct.give(THIRD, JoinGroup(1, 3, GROUP + 1, 1))
    direct.give(ENGINE, EngineExited(0, incarnation=0, signal=11))
    lost = only(GuestsLost, direct.give(ENGINE, Gone("died")))
    assert (lost.group, lost.exchange, list(lost.suspects)) == (GROUP + 1, 0, [])


def test_such_a_step_is_suspected_of_a_crash_only_while_it_runs() -> None:
    direct = busy()
    direct.give(LEADER, Gone("killed"))
    direct.give(ENGINE, answered(1, left=(GUEST,)))
    direct.give(ENGINE, EngineExited(0, incarnation=0, signal=11))
    assert of(Suspected, direct.give(ENGINE, Gone("died"))) == []
    direct = busy()
    direct.give(LEADER, Gone("killed"))
    direct.give(ENGINE, EngineExited(0, incarnation=0, signal=9))
    assert of(Suspected, direct.give(ENGINE, Gone("died"))) == []


def test_guests_of_one_dropped_step_are_each_others_company() -> None:
    direct = member()
    direct.give(LEADER, open_guest(60))
    direct.give(LEADER, open_guest(60, sequence=OTHER_GUEST))
    direct.give(LEADER, group_step(1, [(GUEST, 0, 30), (OTHER_GUEST, 0, 30)]))
    direct.give(LEADER, Gone("killed"))
    direct.give(ENGINE, EngineExited(0, incarnation=0, signal=11))
    assert [each.is_alone for each in of(Suspected, direct.give(ENGINE, Gone("died")))] == [False, False]


def test_guests_are_no_suspects_while_a_step_of_the_instance_itself_runs() -> None:
    direct = member()
    direct.give(D, make_place(1, 10))
    direct.give(LEADER, open_guest(60))
    direct.give(LEADER, group_step(1, [(GUEST, 0, 30)]))
    assert direct.core.steps.outstanding == 2
    direct.give(ENGINE, EngineExited(1, incarnation=0))
    (lost,) = to_leader(direct.give(ENGINE, Gone("died")))
    assert (lost.exchange, list(lost.suspects)) == (0, [])


def test_meetings_under_way_are_answered_when_the_engine_is_lost() -> None:
    direct = member()
    direct.give(LEADER, MeetMembers(GROUP, (MemberEngine(0, Address("engine", "lead"), b"other"),), 7))
    met, lost = to_leader(direct.give(ENGINE, Gone("died")))
    assert (type(met), list(met.met), met.question, type(lost)) == (MembersMet, [], 7, GuestsLost)
    (ready,) = to_leader(direct.give(ENGINE, make_engine_ready(slots=SLOTS, agent=b"next")))
    assert isinstance(ready, MemberReady), "the next engine answers no question that the last one was asked"


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


# --- beside the instance's own requests ---


def beside_own_requests() -> tuple[Bench, Silent, list[Attempt]]:
    """Two own requests run, and a scripted leader has a guest with a step under way."""
    bench, leader = Bench(engine={"slots": SLOTS, "agent": AGENT}), Silent()
    bench.world.add(LEADER, leader)
    bench.world.post(MANAGER, ME, elastic())
    bench.world.connect(LEADER, ME)
    own = [bench.place(number, tokens=30, max_tokens=40) for number in (1, 2)]
    bench.run(0.05)
    messages: list[Any] = [JoinGroup(1, 2, GROUP, 1), open_guest(90), group_step(1, [(GUEST, 0, 30)])]
    for at, message in enumerate([*messages, group_step(2, [(GUEST, 30, 90)])]):
        bench.world.post(LEADER, ME, message, 0.002 * at)
    return bench, leader, own


def heard(leader: Silent, kind: type[Any]) -> list[Any]:
    return [message for _, message in leader.heard if isinstance(message, kind)]


def test_own_requests_and_a_guests_steps_share_the_engine() -> None:
    bench, leader, own = beside_own_requests()
    bench.run_until_quiet()
    assert [attempt.tokens for attempt in own] == [attempt.expected for attempt in own]
    assert [answer.done.tokens_computed for answer in heard(leader, GroupStepDone)] == [30, 60]
    bench.world.post(LEADER, ME, close_guest())
    bench.run(0.05)
    assert len(heard(leader, GuestClosed)) == 1
    bench.check_empty()


def test_own_requests_go_on_in_the_next_engine_and_guests_do_not() -> None:
    bench, leader, own = beside_own_requests()
    bench.run(0.012)
    assert bench.core.steps.is_group_step(bench.core.steps.last_step) or bench.core.steps.outstanding == 2
    bench.seat.crash()
    bench.run_until_quiet()
    assert [attempt.tokens for attempt in own] == [attempt.expected for attempt in own]
    assert len(heard(leader, GuestsLost)) == 1
    assert [type(message) for _, message in leader.heard][-1] is MemberReady
    bench.check_empty()


def test_commands_that_wait_are_bounded() -> None:
    direct = member()
    direct.give(LEADER, open_guest(60))
    direct.give(LEADER, group_step(1, [(GUEST, 0, 30)]))
    for exchange in range(2, MAX_WAITING + 2):
        assert direct.give(LEADER, group_step(exchange, [(GUEST, 30, 40)])) == []
    (refused,) = to_leader(direct.give(LEADER, group_step(999, [(GUEST, 30, 40)])))
    assert f"{MAX_WAITING} commands wait" in refused.refusal
    assert type(to_leader(direct.give(LEADER, open_guest(5, sequence=OTHER_GUEST)))[0]) is GuestRefused
    ended = to_leader(direct.give(LEADER, CancelGroupSteps(GROUP, 999)))
    assert len(ended) == MAX_WAITING


def test_a_guest_can_be_closed_however_many_commands_wait() -> None:
    direct = member()
    direct.give(LEADER, open_guest(60))
    for exchange in range(1, MAX_WAITING + 2):
        direct.give(LEADER, group_step(exchange, [(GUEST, 0, 30)]))
    assert direct.give(LEADER, close_guest()) == []
    direct.give(LEADER, CancelGroupSteps(GROUP, MAX_WAITING + 1))
    assert of(GuestClosed, direct.give(ENGINE, answered(1, left=(GUEST,))))
    assert use(direct) == (SLOTS, 0, 0)


def test_a_guest_gets_no_slots_that_running_sequences_need_soon() -> None:
    direct = member(scheduler__allocate_ahead_tokens=16)
    direct.give(D, make_place(1, 10))
    (said,) = of(GuestRefused, direct.give(LEADER, open_guest(SLOTS)))
    free = direct.core.report().free_slots
    assert said.available_slots == free - 8
    assert of(GuestSlots, direct.give(LEADER, open_guest(free - 8)))


def test_an_engine_that_dies_in_a_groups_step_blames_no_own_sequence() -> None:
    direct = member()
    direct.give(LEADER, open_guest(60))
    direct.give(LEADER, group_step(1, [(GUEST, 0, 30)]))
    direct.give(D, make_place(1, 10))
    assert direct.core.steps.outstanding == 2
    assert direct.core.steps.executing_rows() == []
    direct.give(ENGINE, answered(1))
    assert [stop for _, stop in direct.core.steps.executing_rows()] == [10]
