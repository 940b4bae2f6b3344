"""The leader of a group against members that answer as the contract says: exact times, exact tokens."""

import itertools

import pytest

from dunlin.messages.dispatch import (
    Accepted,
    Returned,
    Tokens,
)
from dunlin.messages.group import (
    CloseGuest,
    GrowGuest,
    JoinGroup,
    MeetMembers,
    OpenGuest,
)
from dunlin.messages.plan import AskMembers, ReturnMembers
from dunlin.messages.types import FinishReason, GroupKind, SamplingParams
from tests.services.instance.bench import ME
from tests.services.instance.group.leading.scripted_group import (
    STEP_S,
    ScriptedGroup,
    exchanges,
    figures,
    heard,
    member_address,
)
from tests.services.instance.group.leading.scripted_member import GROUP

# --- members ---


def test_members_are_dialed_join_and_meet() -> None:
    group = ScriptedGroup(20, 20, 20)
    assert group.dials == [member_address(1), member_address(2)]
    assert heard(group, 2, JoinGroup) == [JoinGroup(1, 1, GROUP, 2)]
    assert [each.member for each in heard(group, 2, MeetMembers)[-1].engines] == [0, 1]
    assert group.roster.taking_part == {0, 1, 2}


def test_a_member_that_does_not_answer_the_dial_is_dialed_again_a_few_times() -> None:
    group = ScriptedGroup(20, 20, start=False)
    group.members[member_address(1)].is_silent = True
    group.order(*group.members)
    group.run(60.0)
    assert len(group.dials) == 9
    group.order(*group.members)
    assert len(group.dials) == 10
    group.run(60.0)
    assert len(group.dials) == 18, "an order lets it be tried as often again"


def test_a_member_takes_part_once_it_can_reach_all_others() -> None:
    group = ScriptedGroup(20, 20, 20, start=False)
    group.members[member_address(2)].unreachable = {1}
    group.order(*group.members)
    group.run(0.1)
    assert group.roster.taking_part == {0, 1}
    group.members[member_address(2)].unreachable.clear()
    group.run(0.2)
    assert group.roster.taking_part == {0, 1, 2}


def test_engines_that_never_meet_are_left_alone_after_a_few_tries() -> None:
    group = ScriptedGroup(20, 20, start=False)
    group.members[member_address(1)].unreachable = {0}
    group.order(*group.members)
    group.run(60.0)
    assert len(heard(group, 1, MeetMembers)) == 9
    assert group.roster.taking_part == {0}


def test_a_prompt_is_spread_over_members_that_are_about_to_join() -> None:
    group = ScriptedGroup(60, 60, 60, start=False, groups__policy="widest")
    group.order(*group.members)
    attempt = group.place(tokens=30, max_tokens=4)
    group.run(1.0)
    assert len(exchanges(group)[0]) == 3
    assert attempt.tokens == attempt.expected


def test_members_that_do_not_join_are_not_waited_for_long() -> None:
    group = ScriptedGroup(60, 60, 60, start=False, groups__policy="widest")
    group.members[member_address(2)].is_silent = True
    group.order(*group.members)
    attempt = group.place(tokens=30, max_tokens=4)
    group.run(0.24)
    assert group.steps == []
    group.run(0.5)
    assert len(exchanges(group)[0]) == 2
    assert attempt.tokens == attempt.expected


def test_a_member_keeps_its_number_when_one_before_it_leaves() -> None:
    group = ScriptedGroup(20, 20, 20)
    one, two, other = member_address(1), member_address(2), member_address(3)
    group.order(ME, two)
    assert [(state.index, state.address) for state in group.roster.members] == [(0, ME), (2, two)]
    group.members[other] = type(group.members[one])(group, other, 20)
    group.order(ME, two, other)
    group.run(0.05)
    assert [(state.index, state.address) for state in group.roster.members] == [(0, ME), (1, other), (2, two)]
    assert group.roster.taking_part == {0, 1, 2}


# --- prompts and tokens ---


def test_a_prompt_longer_than_one_member_is_cut_into_even_blocks() -> None:
    group = ScriptedGroup(20, 20, 20)
    attempt = group.place(tokens=40, max_tokens=12)
    group.run(2.0)
    assert attempt.tokens == attempt.expected
    assert exchanges(group)[:2] == [
        {0: [(1, 0, 8)], 1: [(1, 8, 16)], 2: [(1, 16, 24)]},
        {0: [(1, 24, 29)], 2: [(1, 29, 35)], 1: [(1, 35, 40)]},
    ]
    assert group.is_quiet
    assert len(group.parts.sequences) == 0


def test_steps_follow_each_other_without_a_gap() -> None:
    group = ScriptedGroup(20, 20, 20)
    group.place(tokens=40, max_tokens=6)
    group.run(2.0)
    times = group.dispatcher.times(Tokens)
    placed_s = 0.05
    assert times[0] == pytest.approx(placed_s + 4 * 0.001 + 2 * STEP_S)
    assert [later - earlier for earlier, later in itertools.pairwise(times)] == pytest.approx([STEP_S] * 5)


def test_guests_have_one_number_and_the_reason_says_who_has_what() -> None:
    group = ScriptedGroup(20, 20, 20)
    group.place(tokens=40, max_tokens=12)
    group.run(0.01)
    assert group.said(Accepted)[0].sequence == (GROUP << 32) + 1
    opened = [heard(group, index, OpenGuest)[0] for index in range(3)]
    assert {each.sequence for each in opened} == {(GROUP << 32) + 1}
    assert [each.slots for each in opened] == [14, 15, 15]
    assert opened[0].why is not None
    assert opened[0].why.chosen == "slots: 14 at member 0, 15 at member 1, 15 at member 2"
    assert figures(opened[0].why)["members_used"] == 3


def test_several_sequences_decode_in_one_exchange_with_masters_of_their_own() -> None:
    group = ScriptedGroup(40, 40, 40, groups__policy="widest")
    attempts = [group.place(request, 12, max_tokens=10) for request in (1, 2, 3)]
    group.run(2.0)
    assert all(attempt.tokens == attempt.expected for attempt in attempts)
    together = [each for each in exchanges(group) if sum(map(len, each.values())) == 3]
    decode = [each for each in together if all(stop - start == 1 for rows in each.values() for _, start, stop in rows)]
    assert len(decode) >= 5
    assert all(len(rows) == 1 for each in decode for rows in each.values())


def test_a_chunk_rides_along_with_decode_rows() -> None:
    group = ScriptedGroup(60, 60)
    first = group.place(1, 10, max_tokens=20)
    group.run(0.05)
    second = group.place(2, 40, max_tokens=2)
    group.run(2.0)
    assert first.tokens == first.expected
    assert second.tokens == second.expected
    mixed = [sorted(row for rows in each.values() for row in rows) for each in exchanges(group)]
    assert any(rows[0][2] - rows[0][1] == 1 and rows[-1][2] - rows[-1][1] == 8 for rows in mixed if len(rows) > 1)


def test_no_member_computes_more_of_prompts_than_a_chunk_and_two_exchanges_are_out() -> None:
    group = ScriptedGroup(60, 60, groups__chunk_tokens=5)
    group.place(1, 30, max_tokens=2)
    group.place(2, 30, max_tokens=2)
    group.run(2.0)
    for each in exchanges(group):
        for rows in each.values():
            assert sum(stop - start for _, start, stop in rows if stop - start > 1) <= 5
    sent = sorted({step.exchange: now_s for now_s, _, step in group.steps}.values())
    assert len(sent) > 6
    assert all(later >= earlier + STEP_S for earlier, later in zip(sent, sent[2:], strict=False))


def test_a_sequence_goes_on_at_another_member_when_its_master_is_full() -> None:
    group = ScriptedGroup(18, 18)
    attempt = group.place(tokens=20, max_tokens=16)
    group.run(2.0)
    assert attempt.tokens == attempt.expected
    masters = [index for each in exchanges(group)[2:] for index, rows in each.items() if rows]
    assert masters == sorted(masters, key=lambda index: index != masters[0])
    assert len(set(masters)) == 2
    again = heard(group, masters[-1], OpenGuest)[-1]
    assert len(again.tokens) == again.elsewhere_tokens + 1 > 20


def test_room_is_asked_for_before_it_is_needed() -> None:
    group = ScriptedGroup(100)
    attempt = group.place(tokens=10, max_tokens=20)
    group.run(2.0)
    assert attempt.tokens == attempt.expected
    assert len(heard(group, 0, GrowGuest)) >= 4
    times = group.dispatcher.times(Tokens)
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) == pytest.approx(STEP_S)


def test_a_prompt_of_one_step_goes_round_and_is_kept_at_the_fewest_members() -> None:
    group = ScriptedGroup(60, 20, 20, groups__ring=True)
    attempt = group.place(tokens=23, max_tokens=10)
    group.run(0.02)
    assert [step.kind for _, _, step in group.steps[:3]] == [GroupKind.RING] * 3
    assert [heard(group, index, OpenGuest)[0].slots for index in range(3)] == [23 + 8, 8, 8]
    group.run(0.02)
    assert [len(group.at(index).guests) for index in range(3)] == [1, 0, 0]
    group.run(2.0)
    assert attempt.tokens == attempt.expected
    assert [set(each) for each in exchanges(group)] == [{0, 1, 2}, *[{0}] * 9]
    assert all(heard(group, index, CloseGuest) for index in (1, 2))
    assert group.dispatcher.times(Tokens)[0] == pytest.approx(0.05 + 4 * 0.001 + STEP_S)
    assert group.is_quiet


def test_a_ring_that_members_refuse_slots_for_goes_by_blocks() -> None:
    group = ScriptedGroup(60, 20, groups__ring=True)
    group.at(1).taken = 16
    attempt = group.place(tokens=16, max_tokens=10)
    group.run(2.0)
    assert attempt.tokens == attempt.expected
    assert {step.kind for _, _, step in group.steps} == {GroupKind.MASTERS}
    assert group.is_quiet


def test_members_are_asked_for_before_slots_run_out_and_used_without_moving_anything() -> None:
    group = ScriptedGroup(30, groups__ahead_tokens=12)
    attempt = group.place(tokens=10, max_tokens=40)
    group.run(0.2)
    (asked,) = group.wished(AskMembers)
    assert asked.slots > 0
    assert group.at(0).free + group.at(0).guests[(GROUP << 32) + 1].slots - len(attempt.tokens) - 10 > 0
    other = member_address(1)
    group.members[other] = type(group.at(0))(group, other, 30)
    group.order(*group.members)
    group.run(0.5)
    assert attempt.tokens == attempt.expected
    times = group.dispatcher.times(Tokens)
    assert max(later - earlier for earlier, later in itertools.pairwise(times)) < 3 * STEP_S
    assert len(heard(group, 0, OpenGuest)) == 1
    assert not group.wished(ReturnMembers)
    group.run(1.1)
    assert group.wished(ReturnMembers)[0].members == (other,)
    assert [each.slots > 0 for each in group.wished(AskMembers)] == [True, False]


def test_a_stop_token_ends_it() -> None:
    group = ScriptedGroup(20, 20)
    expected = group.place(1, 24, max_tokens=8).expected
    group.run(1.0)
    attempt = group.place(1, 24, max_tokens=8, attempt=2, stop_ids=group.ids(expected[2]))
    group.run(1.0)
    assert attempt.tokens == expected[:3]
    assert attempt.finish is FinishReason.STOP
    assert group.is_quiet


def test_no_step_names_a_member_that_others_cannot_reach_for_now() -> None:
    group = ScriptedGroup(40, 40, groups__policy="widest")
    attempt = group.place(tokens=30, max_tokens=8)
    group.run(0.06)
    master = next(index for index, rows in exchanges(group)[-1].items() if rows)
    holder = 1 - master
    group.at(master).unreachable = {holder}
    group.at(holder).engine += 1  # its agent is another one; its guests stay
    group.at(holder).say_ready()
    group.run(0.03)
    sent = len(group.steps)
    group.run(0.1)
    assert len(group.steps) == sent
    assert len(attempt.tokens) < 8
    group.at(master).unreachable.clear()
    group.run(1.0)
    assert attempt.tokens == attempt.expected


def test_a_guest_without_tokens_that_is_lost_is_opened_elsewhere() -> None:
    group = ScriptedGroup(40, 40, 40, groups__policy="widest")
    attempt = group.place(tokens=30, max_tokens=4)
    group.run(0.0009)
    group.at(1).lose_engine()  # before it hears of the guest, which it opens all the same
    group.run(2.0)
    assert attempt.tokens == attempt.expected
    assert not group.said(Returned)
    assert [len(heard(group, 1, kind)) for kind in (OpenGuest, CloseGuest)] == [1, 2]
    assert group.is_quiet


def test_logprobs_and_the_best_tokens_come_along() -> None:
    group = ScriptedGroup(40, 40, groups__policy="widest")
    for request in (1, 2):
        group.place(request, 12, max_tokens=3, sampling=SamplingParams(seed=request, logprobs=request))
    group.run(1.0)
    for message in group.said(Tokens):
        wanted = [request for request in message.request for _ in range(request)]
        assert list(message.top_count) == list(message.request)
        assert [token // 1000 for token in message.top_token] == wanted
        assert list(message.logprob) == [-1.0] * len(message.token)


def test_an_instance_that_leads_nothing_reports_no_long_requests() -> None:
    group = ScriptedGroup(30, start=False)
    found = group.leader.report_fields()
    assert (found["spread_waiting"], found["spread_running"], group.leader.group) == (0, 0, 0)
