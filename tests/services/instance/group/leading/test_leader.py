"""The leader of a group against members that answer as the contract says: exact times, exact tokens."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from dunlin.kv import prefix_hash
from dunlin.messages.dispatch import (
    Accepted,
    Adopt,
    Adopted,
    AdoptedElsewhere,
    Ended,
    Refusal,
    Returned,
    Tokens,
)
from dunlin.messages.group import (
    CancelGroupSteps,
    CloseGuest,
    GroupStep,
    GrowGuest,
    JoinGroup,
    MeetMembers,
    OpenGuest,
)
from dunlin.messages.plan import AskMembers, Drain, ReturnMembers
from dunlin.messages.types import FinishReason, GroupKind, GroupRole, SamplingParams, Why
from services.instance.adoption import SequenceAdoption
from services.instance.migration.evacuation import Evacuations
from tests.services.instance.bench import MANAGER, ME, OTHER
from tests.services.instance.group.leading.scripted_group import GROUP, STEP_S, ScriptedGroup, member_address


def rows_of(step: GroupStep) -> list[tuple[int, int, int]]:
    """(n of the sequence in its group, start, stop) of each row."""
    return [(a & 0xFFFF, b, c) for a, b, c in zip(step.sequence, step.start, step.stop, strict=True)]


def exchanges(group: ScriptedGroup) -> list[dict[int, list[tuple[int, int, int]]]]:
    """The rows by member of each exchange."""
    found: dict[int, dict[int, list[tuple[int, int, int]]]] = {}
    for _, to, step in group.steps:
        found.setdefault(step.exchange, {})[group.members[to].index] = rows_of(step)
    return list(found.values())


def heard(group: ScriptedGroup, index: int, kind: type[Any]) -> list[Any]:
    return [message for message in group.at(index).heard if isinstance(message, kind)]


def figures(why: Why | None) -> Mapping[str, float]:
    assert why is not None
    return {figure.name: figure.value for figure in why.figures}


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
    assert [heard(group, index, OpenGuest)[0].slots for index in range(3)] == [23 + 8, 8, 7]
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
    group = ScriptedGroup(20, 20)
    attempt = group.place(tokens=30, max_tokens=8)
    group.run(0.06)
    group.members[member_address(0)].unreachable = {1}
    group.at(1).engine += 1  # its agent is another one; its guests stay
    group.at(1).say_ready()
    group.run(0.03)
    sent = len(group.steps)
    group.run(0.1)
    assert len(group.steps) == sent
    group.members[member_address(0)].unreachable.clear()
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
    assert [len(heard(group, 1, kind)) for kind in (OpenGuest, CloseGuest)] == [1, 1]
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


# --- what cannot be taken, and what waits ---


def test_attempts_that_cannot_run_are_refused() -> None:
    group = ScriptedGroup(20, 20, groups__max_waiting=1)
    assert group.refusal(1, tokens=10, max_tokens=4, group=GROUP + 1) is Refusal.NOT_IN_PLAN
    assert group.refusal(2, tokens=41, max_tokens=4) is Refusal.TOO_LONG
    assert group.refusal(3, tokens=10, max_tokens=4000) is Refusal.TOO_LONG
    group.at(0).taken = group.at(1).taken = 20
    group.at(0).say_ready()
    group.at(1).say_ready()
    group.run(0.01)
    assert group.refusal(4, tokens=30, max_tokens=4) is None
    assert group.refusal(5, tokens=10, max_tokens=4) is Refusal.FULL


def test_what_does_not_fit_waits_and_members_are_asked_for() -> None:
    group = ScriptedGroup(20, 20)
    first = group.place(1, 30, max_tokens=8)
    second = group.place(2, 24, max_tokens=8)
    group.run(0.02)
    assert group.leader.report_fields() == {"spread_waiting": 1, "spread_running": 1}
    (asked,) = group.wished(AskMembers)
    assert (asked.group, asked.plan_version, asked.slots) == (GROUP, 1, 22)
    assert figures(asked.why) == {"slots": 22, "members": 2, "waiting": 1}
    other = member_address(2)
    group.members[other] = type(group.at(1))(group, other, 40)
    group.order(*group.members)
    group.run(0.02)
    assert group.leader.report_fields() == {"spread_waiting": 0, "spread_running": 2}
    group.run(2.0)
    assert first.tokens == first.expected
    assert second.tokens == second.expected
    assert [each.slots for each in group.wished(AskMembers)] == [22, 0]


def test_what_waits_starts_when_another_ends_and_the_wish_is_taken_back() -> None:
    group = ScriptedGroup(20, 20)
    attempts = [group.place(request, 30, max_tokens=4) for request in (1, 2)]
    group.run(2.0)
    assert all(attempt.tokens == attempt.expected for attempt in attempts)
    assert [each.slots > 0 for each in group.wished(AskMembers)] == [True, False]


def test_members_slots_that_became_free_without_a_word_are_found() -> None:
    group = ScriptedGroup(40)
    group.at(0).taken = 35
    group.at(0).say_ready()
    group.run(0.01)
    attempt = group.place(tokens=20, max_tokens=4)
    group.run(1.0)
    assert attempt.tokens == []
    group.at(0).taken = 0
    group.run(1.5)
    assert attempt.tokens == attempt.expected


def test_what_never_gets_room_goes_back() -> None:
    group = ScriptedGroup(40)
    group.at(0).taken = 35
    group.at(0).say_ready()
    group.run(0.01)
    group.place(tokens=20, max_tokens=4)
    group.run(20.0)
    (returned,) = group.said(Returned)
    assert group.dispatcher.times(Returned)[0] == pytest.approx(5.06, abs=1.3)
    assert figures(returned.why)["limit_s"] == 5.0
    assert group.is_quiet


def test_when_no_sequence_gets_a_slot_the_youngest_makes_room() -> None:
    group = ScriptedGroup(24, groups__ahead_tokens=2)
    first, second = group.place(1, 9, max_tokens=12), group.place(2, 9, max_tokens=12)
    group.run(20.0)
    assert [(each.request, each.attempt) for each in group.said(Returned)] == [(2, 1)]
    assert first.tokens == first.expected
    assert 0 < len(second.tokens) < 12
    assert group.is_quiet


def test_members_without_tokens_are_given_back() -> None:
    group = ScriptedGroup(200, 20, 20)
    group.place(tokens=6, max_tokens=190)
    group.run(1.1)
    (returned,) = group.wished(ReturnMembers)
    assert returned.members == (member_address(1), member_address(2))
    assert figures(returned.why)["members"] == 3
    group.order(*group.members)
    group.run(0.9)
    assert len(group.wished(ReturnMembers)) == 1
    group.run(0.2)
    assert len(group.wished(ReturnMembers)) == 2


def test_a_member_that_was_given_back_is_not_used_until_an_order_names_it_again() -> None:
    group = ScriptedGroup(20, 20)
    group.run(1.1)
    assert group.wished(ReturnMembers)[0].members == (member_address(1),)
    attempt = group.place(tokens=30, max_tokens=4)
    group.run(0.1)
    assert attempt.tokens == []
    assert group.wished(AskMembers)[-1].slots == 13
    group.order(*group.members)
    group.run(2.0)
    assert attempt.tokens == attempt.expected


# --- ends ---


def test_a_lost_member_returns_what_lay_there_and_nothing_else() -> None:
    group = ScriptedGroup(60, 30, 30, groups__policy="fewest")
    stays = group.place(1, 30, max_tokens=20)
    group.run(0.005)
    goes = group.place(2, 50, max_tokens=20)
    group.run(0.03)
    group.lose(2)
    group.run(0.005)
    (returned,) = group.said(Returned)
    assert (returned.request, figures(returned.why)["member"]) == (2, 2)
    assert len(heard(group, 1, CancelGroupSteps)) == 1
    assert heard(group, 1, CloseGuest)
    group.run(2.0)
    assert stays.tokens == stays.expected
    assert not goes.tokens
    assert group.is_quiet


def test_a_cancelled_prompt_is_ended_everywhere_before_its_dispatcher_hears() -> None:
    group = ScriptedGroup(60, 60)
    group.place(tokens=100, max_tokens=4)
    group.run(0.02)
    group.cancel()
    assert not group.said(Ended)
    group.run(0.01)
    assert heard(group, 1, CancelGroupSteps)
    assert len(group.said(Ended)) == 1
    assert group.dispatcher.times(Ended)[0] == pytest.approx(0.07 + 2 * 0.001)
    assert group.is_quiet


@pytest.mark.parametrize("part", ["other group", "local"])
def test_another_order_returns_all_at_once(part: str) -> None:
    group = ScriptedGroup(20, 20)
    group.place(1, 30, max_tokens=4)
    group.place(2, 30, max_tokens=4)
    group.run(0.02)
    local = {"kind": GroupKind.LOCAL, "part": GroupRole.LOCAL}
    group.order(ME, **({"group": GROUP + 1} if part == "other group" else local))
    assert [each.request for each in group.said(Returned)] == [1, 2]
    assert len(group.parts.sequences) == 0
    group.run(1.0)
    assert group.is_quiet
    assert group.leader.group == (GROUP + 1 if part == "other group" else 0)


def test_refused_steps_are_sent_again_a_few_times() -> None:
    group = ScriptedGroup(20, 20)
    group.at(1).refuses_steps = 3
    attempt = group.place(tokens=30, max_tokens=4)
    group.run(3.0)
    assert attempt.tokens == attempt.expected
    again = [each for each in exchanges(group) if (1, 0, 8) in each.get(0, []) + each.get(1, [])]
    assert len(again) == 3
    assert again[0] == again[1] == again[2]


def test_a_sequence_whose_steps_are_always_refused_goes_back() -> None:
    group = ScriptedGroup(20, 20)
    group.at(1).refuses_steps = 100
    group.place(tokens=30, max_tokens=4)
    group.run(5.0)
    (returned,) = group.said(Returned)
    assert returned.why is not None
    assert returned.why.rejected[0].reason == "not today"
    assert group.is_quiet


def test_a_leader_that_is_emptied_returns_what_has_not_begun() -> None:
    group = ScriptedGroup(20, 20)
    first = group.place(1, 30, max_tokens=4)
    group.place(2, 30, max_tokens=4)
    group.run(0.02)
    evacuations = next(part for part in group.parts.with_handlers if isinstance(part, Evacuations))
    evacuations.drain(group.now_s, MANAGER, Drain(1, 1))
    group.run(2.0)
    assert [each.request for each in group.said(Returned)] == [2]
    assert first.tokens == first.expected


def test_another_dispatcher_goes_on_with_a_spread_sequence() -> None:
    group = ScriptedGroup(20, 20)
    attempt = group.place(tokens=28, max_tokens=12, key="name")
    group.run(0.08)
    had = [*attempt.place.tokens, *attempt.tokens[:1]]
    chain = prefix_hash.chain_of(prefix_hash.chain_root("", ""), had, len(had))
    adoption = next(part for part in group.parts.with_handlers if isinstance(part, SequenceAdoption))
    adopt = Adopt(5, 3, "name", "", len(had), 1, chain)
    group.do(adoption.adopt(group.now_s, OTHER, adopt))
    group.run(2.0)
    assert len(group.said(AdoptedElsewhere)) == 1
    adopted, *later = group.others[OTHER]
    assert isinstance(adopted, Adopted)
    assert adopted.sequence == (GROUP << 32) + 1
    said = [token for message in later if isinstance(message, Tokens) for token in message.token]
    assert [*attempt.tokens[:1], *adopted.tokens, *said] == attempt.expected
    assert group.is_quiet


def test_a_word_of_an_older_group_is_stale() -> None:
    group = ScriptedGroup(20, 20)
    group.order(ME, member_address(1), group=GROUP + 1)
    group.at(1).say_ready()
    group.run(0.01)
    assert group.leader.stale_total >= 1
