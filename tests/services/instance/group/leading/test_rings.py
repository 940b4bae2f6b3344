"""Prompts that go round chunk by chunk: who answers, what stays, and what a loss costs."""

import itertools

import pytest

from dunlin.messages.dispatch import Continued, Tokens
from dunlin.messages.group import CloseGuest, OpenGuest
from dunlin.messages.types import GroupKind
from tests.services.instance.group.leading.scripted_group import (
    STEP_S,
    ScriptedGroup,
    exchanges,
    figures,
    heard,
    member_address,
)
from tests.services.instance.group.leading.step_checks import asked_spans, kept_of


def make_group(*slots: int) -> ScriptedGroup:
    return ScriptedGroup(*slots, groups__ring=True)


def test_chunks_go_round_all_members_and_stay_at_one() -> None:
    group = make_group(80, 50, 50)
    attempt = group.place(tokens=60, max_tokens=6)
    group.run(2.0)
    assert attempt.tokens == attempt.expected
    rings = [(to, step) for _, to, step in group.steps if step.kind is GroupKind.RING]
    assert [set(each) for each in exchanges(group)] == [{0, 1, 2}] * 3 + [{0}] * 5
    assert len(rings) == 9
    assert {position for to, step in rings if to == member_address(0) for position in kept_of(step, 0)} == set(
        range(60)
    )
    assert [step.kind for _, _, step in group.steps[9:]] == [GroupKind.MASTERS] * 5
    counts = group.leader.report_fields()
    assert (counts["ring_tokens_total"], counts["ring_releases_total"]) == (60, 2)
    assert group.is_quiet


def test_every_member_answers_for_a_piece_of_the_chunks_before() -> None:
    """The one that keeps all of it attends to a third."""
    group = make_group(80, 50, 50)
    group.place(tokens=60, max_tokens=6)
    group.run(2.0)
    second = {group.members[to].index: step for _, to, step in group.steps[3:6]}
    spans = {index: [span[1:] for span in asked_spans(step)] for index, step in second.items()}
    assert spans == {
        0: [(8, 14, 1), (14, 20, 2)],
        1: [(0, 8, 0), (14, 20, 2)],
        2: [(0, 8, 0), (8, 14, 1)],
    }


def test_copies_are_closed_when_the_prompt_is_computed() -> None:
    group = make_group(80, 50, 50)
    group.place(tokens=60, max_tokens=30)
    group.run(0.004 + 3.5 * STEP_S)
    assert all(heard(group, index, CloseGuest) for index in (1, 2))
    assert [len(group.at(index).guests) for index in range(3)] == [1, 0, 0]
    why = heard(group, 0, OpenGuest)[0].why
    assert why.chosen == "round members 0, 1, 2, kept at 0"
    assert (figures(why)["members_used"], figures(why)["members_kept"]) == (3, 1)


def test_a_member_that_keeps_nothing_takes_nothing_with_it() -> None:
    """It is lost between two chunks: the rest goes round the others."""
    group = make_group(90, 60, 60)
    attempt = group.place(tokens=60, max_tokens=6)
    group.run(0.004 + 1.5 * STEP_S)
    group.lose(1)
    group.run(2.0)
    assert attempt.tokens == attempt.expected
    assert group.said(Continued) == []
    rings = [(to, step) for _, to, step in group.steps if step.kind is GroupKind.RING]
    assert [{to for to, _ in rings[-2 * at :][:2]} for at in (1, 2, 3)] == [{member_address(0), member_address(2)}] * 3
    assert min(start for _, step in rings[-6:] for start in step.start) == 20
    guests = [type(each) for each in group.at(2).heard if isinstance(each, OpenGuest | CloseGuest)]
    assert guests == [OpenGuest, CloseGuest, OpenGuest, CloseGuest]  # what it had answered for is void
    assert group.is_quiet


def test_a_row_behind_a_ring_that_came_to_nothing_is_not_computed_before_the_prompt() -> None:
    """Seed 15006848: the ring's only other member, which was to keep nothing, is lost while a token follows already."""
    group = make_group(90, 60)
    attempt = group.place(tokens=12, max_tokens=6)
    group.run(0.004 + 0.5 * STEP_S)
    (spread,) = group.spreads
    assert (spread.blocks[0].member, spread.sequence.issued, spread.sequence.in_steps) == (0, 13, 2)
    group.lose(1)
    group.run(2.0)
    assert attempt.tokens == attempt.expected
    assert group.said(Continued) == []
    assert group.is_quiet


def test_of_what_a_lost_member_kept_the_second_copies_count() -> None:
    """The first chunk is kept at one member; the other two have a copy of a third of it each."""
    group = make_group(90, 90, 60)
    attempt = group.place(tokens=60, max_tokens=6)
    group.run(0.004 + 1.5 * STEP_S)
    (spread,) = group.spreads
    (keeper,) = {block.member for block in spread.blocks}
    copied = sum(block.stop - block.start for block in spread.copies if block.member != keeper and block.stop <= 20)
    group.lose(keeper)
    group.run(0.002)
    (continued,) = group.said(Continued)
    assert 0 < continued.recomputed_tokens == 20 - copied
    group.run(3.0)
    assert attempt.tokens == attempt.expected
    assert group.is_quiet


def kept_bounds(group: ScriptedGroup, index: int) -> set[int]:
    return {stop for _, to, step in group.steps if to == member_address(index) for stop in step.keep_stop}


def test_a_chunk_of_which_a_row_leaves_goes_round_again() -> None:
    group = make_group(80, 50, 50)
    attempt = group.place(tokens=60, max_tokens=6)
    group.run(0.004 + 1.5 * STEP_S)
    group.at(2).leaves = set(group.at(2).guests)
    group.run(3.0)
    assert attempt.tokens == attempt.expected
    assert [set(each) for each in exchanges(group)] == [{0, 1, 2}] * 5 + [{0}] * 5
    assert group.is_quiet


def test_tokens_of_others_ride_along() -> None:
    group = make_group(120, 60, 60)
    decoding = group.place(1, tokens=10, max_tokens=30)
    group.run(0.1)
    before = len(decoding.tokens)
    going = group.place(2, tokens=60, max_tokens=4)
    group.run(0.004 + 2.5 * STEP_S)
    assert before < len(decoding.tokens) < 30
    assert {step.kind for _, _, step in group.steps[-3:]} == {GroupKind.RING}
    group.run(2.0)
    assert (decoding.tokens, going.tokens) == (decoding.expected, going.expected)
    times = group.dispatcher.times(Tokens)
    assert max(b - a for a, b in itertools.pairwise(times)) == pytest.approx(STEP_S + 0.001)
    assert group.is_quiet


def test_a_prompt_that_earlier_attempts_computed_in_part_does_not_go_round() -> None:
    group = make_group(60, 60)
    group.at(1).kept["name"] = ((8,), (32,))
    attempt = group.place(tokens=48, max_tokens=4, key="name")
    group.run(2.0)
    assert attempt.tokens == attempt.expected
    assert {step.kind for _, _, step in group.steps} == {GroupKind.MASTERS}
