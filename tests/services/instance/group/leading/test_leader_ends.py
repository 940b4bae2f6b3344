"""What a leader does when slots are short, and when requests, members or the group itself end."""

import itertools

import pytest

from dunlin.kv import prefix_hash
from dunlin.messages.dispatch import (
    Adopt,
    Adopted,
    AdoptedElsewhere,
    Continued,
    Ended,
    Refusal,
    Returned,
    Tokens,
)
from dunlin.messages.group import (
    CancelGroupSteps,
    GroupStep,
    OpenGuest,
    group_of,
)
from dunlin.messages.plan import AskMembers, Drain, ReturnMembers
from dunlin.messages.types import GroupKind, GroupRole, RejectedOption, Why
from services.instance.adoption import SequenceAdoption
from services.instance.migration.evacuation import Evacuations
from tests.services.instance.bench import MANAGER, ME, OTHER
from tests.services.instance.group.leading.scripted_group import (
    ScriptedGroup,
    exchanges,
    figures,
    heard,
    member_address,
    rows_of,
)
from tests.services.instance.group.leading.scripted_member import GROUP

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
    assert group.leader.report_fields().items() >= {"spread_waiting": 1, "spread_running": 1}.items()
    (asked,) = group.wished(AskMembers)
    assert (asked.group, asked.plan_version, asked.slots) == (GROUP, 1, 22)
    assert figures(asked.why) == {"slots": 22, "members": 2, "waiting": 1}
    other = member_address(2)
    group.members[other] = type(group.at(1))(group, other, 40)
    group.order(*group.members)
    group.run(0.02)
    assert group.leader.report_fields().items() >= {"spread_waiting": 0, "spread_running": 2}.items()
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


def test_a_later_request_takes_no_slots_that_an_earlier_one_lacks() -> None:
    group = ScriptedGroup(20, 20)
    group.at(1).taken = 15
    first = group.place(1, 30, max_tokens=4)
    group.run(0.01)
    second = group.place(2, 3, max_tokens=4)
    group.run(0.2)
    assert group.leader.report_fields().items() >= {"spread_waiting": 1, "spread_running": 1}.items()
    group.at(1).taken = 0
    group.run(2.0)
    assert first.tokens == first.expected
    assert second.tokens == second.expected


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


def test_what_lay_at_a_lost_member_is_computed_again_and_nothing_else() -> None:
    group = ScriptedGroup(60, 60, 30, groups__policy="fewest")
    stays = group.place(1, 30, max_tokens=20)
    group.run(0.005)
    goes = group.place(2, 80, max_tokens=20)
    group.run(0.1)
    had = list(goes.tokens)
    group.lose(2)
    group.run(0.005)
    (continued,) = group.said(Continued)
    assert (continued.request, figures(continued.why)["member"]) == (2, 2)
    assert 0 < continued.recomputed_tokens < len(had) + 80
    assert len(heard(group, 1, CancelGroupSteps)) == 1
    group.run(2.0)
    assert stays.tokens == stays.expected
    assert goes.tokens == goes.expected
    assert had
    assert not group.said(Returned)
    assert group.is_quiet


def rows_since(group: ScriptedGroup, steps: int) -> list[tuple[int, int]]:
    """The (start, stop) of all rows after so many steps were sent, in order."""
    return sorted({row[1:] for _, _, step in group.steps[steps:] for row in rows_of(step)})


def test_a_hole_alone_is_computed_again_and_what_follows_it_stays() -> None:
    """48 tokens in blocks of 8 at three members in turn; one that holds blocks in the middle is lost."""
    group = ScriptedGroup(40, 40, 40, groups__policy="widest")
    attempt = group.place(tokens=48, max_tokens=30)
    group.run(0.1)
    (spread,) = group.spreads
    lost = [(block.start, block.stop) for block in spread.blocks if block.member == 1 and block.start < 48]
    had, sent = len(attempt.tokens), len(group.steps)
    assert had > 0
    assert lost == [(8, 16), (32, 40)]
    group.lose(1)
    group.run(3.0)
    (continued,) = group.said(Continued)
    assert continued.recomputed_tokens == 16
    prompt_rows = [row for row in rows_since(group, sent) if row[0] < 48]
    assert prompt_rows[0][0] == 8
    assert all(any(first <= start and stop <= last for first, last in lost) for start, stop in prompt_rows)
    assert attempt.tokens == attempt.expected
    assert group.is_quiet


def test_two_holes_of_two_members_lost_at_once_are_computed_again() -> None:
    group = ScriptedGroup(90, 40, 40, 40, groups__policy="widest")
    attempt = group.place(tokens=60, max_tokens=30)
    group.run(0.1)
    group.lose(1)
    group.lose(2)
    group.run(3.0)
    assert attempt.tokens == attempt.expected
    assert group.is_quiet


def test_what_earlier_attempts_left_at_members_is_not_computed_again() -> None:
    """Members 1 and 2 say what they kept when the guest is opened; what both have counts at one of them."""
    group = ScriptedGroup(40, 40, 40, groups__policy="widest")
    group.at(1).kept["name"] = ((8, 32), (16, 40))
    group.at(2).kept["name"] = ((16, 30), (24, 34))
    attempt = group.place(tokens=48, max_tokens=30, key="name")
    group.run(3.0)
    computed = [position for start, stop in rows_since(group, 0) for position in range(start, min(stop, 48))]
    assert computed == [*range(8), *range(24, 30), *range(40, 48)]
    assert attempt.tokens == attempt.expected
    assert group.is_quiet


@pytest.mark.parametrize(("tenant", "first"), [("a", 0), ("b", 24)])
def test_what_another_tenant_s_attempts_left_at_members_is_not_taken(tenant: str, first: int) -> None:
    """A client names its request's key itself, and another's can be guessed."""
    group = ScriptedGroup(40, 40, groups__policy="widest")
    group.at(1).kept["b/name"] = ((0,), (24,))
    attempt = group.place(tokens=48, max_tokens=4, key="name", tenant=tenant)
    group.run(1.0)
    assert rows_since(group, 0)[0][0] == first
    assert ("b/name" in group.at(1).kept) == (tenant == "a")
    assert attempt.tokens == attempt.expected


def test_a_leader_that_lost_a_member_asks_for_another_before_an_order_takes_that_away() -> None:
    group = ScriptedGroup(30, 30)
    attempt = group.place(tokens=50, max_tokens=4)
    group.run(0.03)
    group.lose(1)
    group.run(0.01)
    (asked,) = group.wished(AskMembers)
    assert asked.slots == 23, "all that the leader itself has not"
    other = member_address(2)
    group.members[other] = type(group.at(0))(group, other, 30)
    group.order(*group.members)
    group.run(0.5)
    assert attempt.tokens == attempt.expected


def test_a_request_that_goes_back_with_its_group_says_why_that_ended() -> None:
    group = ScriptedGroup(60, 60)
    group.place(tokens=90, max_tokens=8)
    group.run(0.03)
    why = Why("elastic", "alone", rejected=(RejectedOption("group 7", "too small"),))
    group.order(ME, kind=GroupKind.LOCAL, part=GroupRole.LOCAL, group=8, why=why)
    (returned,) = group.said(Returned)
    assert returned.why is not None
    assert returned.why.rejected[0].reason == "group 7 is led here no more: too small"


def test_members_that_have_not_joined_yet_are_awaited_before_others_are_asked_for() -> None:
    group = ScriptedGroup(30, 30, start=False)
    group.members[member_address(1)].is_silent = True
    group.order(*group.members)
    group.run(0.01)
    group.place(tokens=50, max_tokens=4)
    group.run(0.5)
    assert not group.wished(AskMembers)


def test_changes_of_how_many_members_compute_a_sequence_are_counted() -> None:
    """Two compute it, then one, once its only other member is lost, and two again where the order has another."""
    group = ScriptedGroup(60, 60, groups__policy="widest")
    group.place(tokens=40, max_tokens=40)
    group.run(0.08)
    assert group.leader.report_fields()["dop_changes_total"] == 0
    group.order(ME)
    group.run(0.1)
    assert group.leader.report_fields()["dop_changes_total"] == 1


def test_a_member_that_an_order_takes_away_is_lost() -> None:
    group = ScriptedGroup(60, 60, groups__policy="widest")
    attempt = group.place(tokens=40, max_tokens=8)
    group.run(0.03)
    gone = group.at(1)
    group.order(ME)
    assert len(group.said(Continued)) == 1
    group.run(2.0)
    assert attempt.tokens == attempt.expected
    assert not gone.guests


def test_a_sequence_that_loses_members_again_and_again_goes_back() -> None:
    group = ScriptedGroup(40, 40)
    group.place(tokens=60, max_tokens=8)
    for _ in range(3):
        group.run(0.03)
        assert not group.said(Returned)
        group.at(1).lose_engine()
    group.run(0.01)
    assert len(group.said(Continued)) == 2
    assert len(group.said(Returned)) == 1
    group.run(1.0)
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


def test_a_group_that_is_led_anew_gets_new_numbers() -> None:
    """A newer manager may form the group of that number again before it hears that its leader left it."""
    group = ScriptedGroup(20, 20)
    group.place(1, 30, max_tokens=4)
    group.run(0.02)
    group.order(ME, kind=GroupKind.LOCAL, part=GroupRole.LOCAL)
    group.run(1.0)
    group.order(*group.members)
    attempt = group.place(2, 30, max_tokens=4)
    group.run(3.0)
    assert attempt.tokens == attempt.expected
    for numbers in (
        [step.exchange for step in heard(group, 1, GroupStep)],
        [opened.sequence for opened in heard(group, 1, OpenGuest)],
    ):
        assert numbers == sorted(set(numbers))
        assert {group_of(number) for number in numbers} == {GROUP}


def test_refused_steps_are_sent_again_a_few_times() -> None:
    group = ScriptedGroup(20, 20)
    group.at(1).refuses_steps = 3
    attempt = group.place(tokens=30, max_tokens=4)
    group.run(3.0)
    assert attempt.tokens == attempt.expected
    again = [each for each in exchanges(group) if (1, 0, 8) in each.get(0, []) + each.get(1, [])]
    assert len(again) == 3
    assert again[0] == again[1] == again[2]


def test_what_comes_to_nothing_is_sent_again_at_once_and_then_later_each_time() -> None:
    group = ScriptedGroup(20, 20)
    group.at(1).refuses_steps = 4
    group.place(tokens=30, max_tokens=4)
    group.run(3.0)
    found = {step.exchange: now_s for now_s, _, step in group.steps if (1, 0, 8) in rows_of(step)}
    waits = [after - before for before, after in itertools.pairwise(found.values())]
    assert waits == [pytest.approx(0.0, abs=0.01), pytest.approx(0.25, abs=0.01)]


def test_a_sequence_whose_steps_are_always_refused_goes_back() -> None:
    group = ScriptedGroup(20, 20)
    group.at(1).refuses_steps = 100
    group.place(tokens=30, max_tokens=4)
    group.run(5.0)
    (returned,) = group.said(Returned)
    assert returned.why is not None
    assert returned.why.rejected[0].reason == "not today"
    assert figures(returned.why)["failures"] == 4
    assert len([each for each in exchanges(group) if (1, 0, 8) in each.get(0, []) + each.get(1, [])]) == 4
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
    group.run(0.005)
    opened = [guest.opened for member in group.members.values() for guest in member.guests.values()]
    assert {(each.dispatcher, each.request, each.attempt) for each in opened} == {(OTHER, 5, 3)}
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
