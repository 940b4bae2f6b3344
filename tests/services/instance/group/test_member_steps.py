"""A member's steps of the group: members become peers, positions slots; what waits, what is refused, what ends."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.engine import (
    Interrupt,
    Interrupted,
    Step,
    Unsupported,
)
from dunlin.messages.group import (
    CancelGroupSteps,
    GroupStep,
    GroupStepDone,
    GrowGuest,
    GuestClosed,
)
from dunlin.messages.types import GroupKind, GroupRole, Verdict, i8, i32, i64
from tests.services.instance.bench import (
    ENGINE,
    D,
    Direct,
    done,
    make_place,
    of,
    only,
)
from tests.services.instance.group.member_bench import (
    GROUP,
    GUEST,
    LEADER,
    OTHER_GUEST,
    SLOTS,
    Part,
    answered,
    close_guest,
    group_step,
    member,
    open_guest,
    to_leader,
    use,
)

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


def test_a_guest_that_the_engine_refuses_ends_nothing() -> None:
    direct = member()
    direct.give(LEADER, open_guest(60))
    assert direct.give(ENGINE, Unsupported("Open", "4096 sequences are open")) == []
    direct.give(LEADER, group_step(1, [(GUEST, 0, 30)]))
    (answer,) = to_leader(direct.give(ENGINE, replace(answered(1), dropped=i64([GUEST]))))
    assert list(answer.done.dropped) == [GUEST]
    assert use(direct) == (SLOTS - 60, 60, 0)


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


def test_a_guest_in_several_pieces_of_the_cache_is_kept_and_served_piece_by_piece() -> None:
    direct = member()
    direct.give(LEADER, open_guest(30))
    direct.give(LEADER, open_guest(10, sequence=OTHER_GUEST))
    direct.give(LEADER, GrowGuest(GROUP, GUEST, 80))
    kept: dict[str, Any] = {"keep_row": i32([0]), "keep_start": i64([10]), "keep_stop": i64([50])}
    columns = {"kind": GroupKind.RING, "stride": i64([2]), "span_stride": i64([2]), **kept}
    keep = only(Step, direct.give(LEADER, group_step(1, [(GUEST, 1, 50)], [(0, 0, 50, 0)], **columns))).keep
    assert (list(keep.start), list(keep.stop), list(keep.slot)) == ([10, 40], [40, 50], [0, 40])
    direct.give(ENGINE, answered(1))
    step = only(Step, direct.give(LEADER, group_step(2, [], parts=[(GUEST, 60, 70, 2, [(10, 50)])])))
    serve = step.serve
    assert (list(serve.span_start), list(serve.span_stop), list(serve.slot)) == ([10, 40], [40, 50], [0, 40])


def held_around_a_hole(slots: int) -> Direct:
    """Of a guest tokens 20 to 50 and 60 to 70 lie here, as its leader said; it has so many slots."""
    direct = member()
    direct.give(LEADER, open_guest(80, elsewhere_tokens=20))
    direct.give(LEADER, group_step(1, [(GUEST, 20, 50)], [(0, 0, 20, 0)]))
    direct.give(ENGINE, answered(1))
    direct.give(LEADER, group_step(2, [(GUEST, 60, 90)], [(0, 0, 20, 0), (0, 50, 60, 2)]))
    direct.give(ENGINE, answered(2))
    direct.give(LEADER, open_guest(80, elsewhere_tokens=70, held_start=i64([20, 60]), held_stop=i64([50, 70])))
    direct.give(LEADER, GrowGuest(GROUP, GUEST, slots))
    return direct


def test_a_row_leaves_what_the_leader_said_lies_after_it() -> None:
    direct = held_around_a_hole(80)
    assert use(direct) == (SLOTS - 80, 40, 40)
    assert of(Step, direct.give(LEADER, group_step(3, [(GUEST, 50, 60)], [(0, 0, 20, 0)])))
    assert use(direct) == (SLOTS - 80, 30, 50)
    direct.give(ENGINE, answered(3))
    assert of(Step, direct.give(LEADER, group_step(4, [(GUEST, 70, 80)], [(0, 0, 20, 0)])))


def test_what_lies_after_a_row_counts_in_the_slots_that_it_needs() -> None:
    direct = held_around_a_hole(45)
    (refused,) = to_leader(direct.give(LEADER, group_step(3, [(GUEST, 50, 60)], [(0, 0, 20, 0)])))
    assert "50 slots are needed, 45 are set aside" in refused.refusal


def test_a_later_chunk_goes_round_beside_what_lies_elsewhere_and_what_is_served() -> None:
    """Tokens 0 to 20 lie here, 20 to 30 at the third member, which is asked; the leader asks for those here."""
    direct = member()
    direct.give(LEADER, open_guest(60))
    direct.give(LEADER, group_step(2, [(GUEST, 0, 20)]))
    direct.give(ENGINE, answered(1))
    kept: dict[str, Any] = {"keep_row": i32([0]), "keep_start": i64([40]), "keep_stop": i64([50])}
    asked = group_step(
        3, [(GUEST, 31, 60)], [(0, 20, 30, 2), (0, 30, 60, 0)], [(GUEST, 30, 60, 0, [(0, 20)])], kind=GroupKind.RING,
        stride=i64([2]), span_stride=i64([1, 2]), span_asked=i8([1, 0]), serve_stride=i64([2]), **kept,
    )  # fmt: skip
    step = only(Step, direct.give(LEADER, asked))
    assert (list(step.span_asked), list(step.span_holder)) == ([1, 0], [1, 0])
    assert (list(step.serve.stride), list(step.serve.slot)) == ([2], [0])
    assert (list(step.keep.start), list(step.keep.stop), list(step.keep.slot)) == ([40], [50], [20])
    assert use(direct) == (SLOTS - 60, 30, 30)
    direct.give(ENGINE, answered(2))
    beyond = replace(asked, exchange=4, span_stop=i64([35, 60]))
    assert "reach beyond token 30" in to_leader(direct.give(LEADER, beyond))[0].refusal
    kept_whole = replace(group_step(5, [(GUEST, 40, 45)], [(0, 20, 40, 2)]), kind=GroupKind.RING, **kept)
    kept_whole = replace(kept_whole, span_asked=i8([1]))
    assert "does not go round" in to_leader(direct.give(LEADER, kept_whole))[0].refusal


def ring_step(parts: list[Part] | None = None, **columns: Any) -> GroupStep:
    """Every second token of 30 to 50, the others at member 0."""
    rows, spans = [(GUEST, 31, 50)], [(0, 30, 50, 0)]
    return group_step(2, rows, spans, parts, kind=GroupKind.RING, stride=i64([2]), span_stride=i64([2]), **columns)


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
    "a gap": group_step(2, [(GUEST, 50, 60)], [(0, 40, 50, 0)]),
    "served before the row": group_step(2, [(GUEST, 50, 60)], [(0, 30, 50, 0)], [(GUEST, 60, 70, 2, [(40, 60)])]),
    "uneven spans": group_step(2, [(GUEST, 30, 40)], [(0, 20, 30, 0)], span_member=i32()),
    "uneven asked": group_step(2, [(GUEST, 30, 40)], [(0, 20, 30, 0)], span_asked=i8([1, 1])),
    "uneven parts": group_step(2, [], parts=[(GUEST, 50, 60, 0, [(0, 20)])], serve_member=i32()),
    "uneven served": group_step(2, [], parts=[(GUEST, 50, 60, 0, [(0, 20)])], serve_span_stop=i64()),
    "uneven kept": group_step(2, [(GUEST, 30, 40)], keep_row=i32([0])),
    "no part": group_step(2, [], parts=[(GUEST, 50, 60, 0, [(0, 20)])], serve_span_part=i32([1])),
    "no stride": group_step(2, [(GUEST, 30, 40)], stride=i64([0])),
    "an empty span": group_step(2, [(GUEST, 30, 40)], [(0, 20, 20, 0)]),
    "served empty": group_step(2, [], parts=[(GUEST, 50, 60, 0, [(20, 20)])]),
    "kept of no row": ring_step(keep_row=i32([1]), keep_start=i64([30]), keep_stop=i64([40])),
    "kept empty": ring_step(keep_row=i32([0]), keep_start=i64([30]), keep_stop=i64([30])),
    "kept outside": ring_step(keep_row=i32([0]), keep_start=i64([20]), keep_stop=i64([40])),
    "kept twice": ring_step(keep_row=i32([0, 0]), keep_start=i64([30, 35]), keep_stop=i64([40, 38])),
    "served of its stripes": ring_step([(GUEST, 50, 60, 0, [(30, 40)])], serve_stride=i64([1])),
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


def test_a_step_after_those_that_are_cancelled_runs_on() -> None:
    direct = member()
    direct.give(LEADER, open_guest(60))
    direct.give(LEADER, group_step(1, [(GUEST, 0, 30)]))
    direct.give(ENGINE, answered(1))
    direct.give(LEADER, group_step(2, [(GUEST, 30, 60)]))
    assert direct.give(LEADER, CancelGroupSteps(GROUP, 1)) == []
    (answer,) = to_leader(direct.give(ENGINE, answered(2)))
    assert answer.exchange == 2


def test_a_guest_of_a_step_that_is_refused_is_closed_at_once() -> None:
    direct = member()
    direct.give(LEADER, open_guest(60))
    for exchange, start in ((1, 0), (2, 30)):
        direct.give(LEADER, group_step(exchange, [(GUEST, start, start + 30)]))
    assert direct.give(LEADER, close_guest()) == []
    first, second, closed, *_ = to_leader(direct.give(ENGINE, answered(1, left=(GUEST,))))
    assert (first.exchange, bool(second.refusal), type(closed)) == (1, True, GuestClosed)


def test_a_guest_is_not_closed_while_a_step_reads_it_and_is_a_suspect_of_that() -> None:
    direct = member()
    for guest in (GUEST, OTHER_GUEST):
        direct.give(LEADER, open_guest(60, sequence=guest))
    direct.give(LEADER, group_step(1, [(OTHER_GUEST, 0, 30)]))
    direct.give(ENGINE, answered(1))
    direct.give(LEADER, group_step(2, [(GUEST, 0, 30)], parts=[(OTHER_GUEST, 50, 60, 2, [(0, 30)])]))
    assert direct.give(LEADER, close_guest(OTHER_GUEST)) == []
    assert direct.core.group_member.steps.suspects() == (2, i64([GUEST, OTHER_GUEST]))
    assert of(GuestClosed, direct.give(ENGINE, answered(2)))


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
