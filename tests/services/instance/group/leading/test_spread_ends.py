"""How often a sequence of a group may fail or lose members, what is cancelled with it, and who hears of its end."""

from dunlin.kv import prefix_hash
from dunlin.messages.dispatch import Adopt, Adopted, Continued, Ended, Failed, Returned
from dunlin.messages.group import CancelGroupSteps
from dunlin.messages.lifecycle import MissCause
from dunlin.messages.types import GroupKind, GroupRole
from services.instance.adoption import SequenceAdoption
from tests.services.instance.bench import ME, OTHER
from tests.services.instance.group.leading.scripted_group import ScriptedGroup, exchanges, heard

# --- what is counted, and until when ---


def test_steps_that_come_to_nothing_are_counted_in_a_row() -> None:
    group = ScriptedGroup(80)
    attempt = group.place(tokens=10, max_tokens=40)
    for _ in range(5):
        group.run(0.06)
        group.at(0).leaves = set(group.at(0).guests)
        while group.at(0).leaves:
            group.run(0.01)
    group.run(2.0)
    assert not group.said(Returned)
    assert attempt.tokens == attempt.expected


def test_members_lost_before_the_last_token_count_no_more() -> None:
    group = ScriptedGroup(90, 90, groups__policy="widest")
    attempt = group.place(tokens=40, max_tokens=60)
    for _ in range(4):
        group.run(0.12)
        group.at(1).lose_engine()
        group.run(0.01)
        group.at(0).lose_engine()
    group.run(3.0)
    assert len(group.said(Continued)) >= 4
    assert not group.said(Returned)
    assert attempt.tokens == attempt.expected


def test_members_that_are_lost_at_once_count_as_one() -> None:
    group = ScriptedGroup(90, 40, 40, groups__policy="widest")
    attempt = group.place(tokens=100, max_tokens=4)
    for _ in range(2):
        group.run(0.025)
        assert attempt.tokens == []
        group.at(1).lose_engine()
        group.at(2).lose_engine()
    group.run(3.0)
    assert len(group.said(Continued)) == 3
    assert not group.said(Returned)
    assert attempt.tokens == attempt.expected


# --- what is cancelled ---


def test_a_step_that_computes_a_prompt_of_another_goes_on_when_one_is_cancelled() -> None:
    group = ScriptedGroup(90, 90, groups__policy="widest")
    group.place(1, tokens=36, max_tokens=4)
    group.place(2, tokens=60, max_tokens=4)
    group.run(0.025)
    assert exchanges(group)[2] == {0: [(1, 32, 34), (2, 6, 12)], 1: [(1, 34, 36), (2, 0, 6)]}
    group.cancel(1)
    group.run(0.05)
    assert [len(heard(group, index, CancelGroupSteps)) for index in (0, 1)] == [0, 0]
    assert len(group.said(Ended)) == 1


def test_a_step_of_one_token_is_not_cancelled() -> None:
    group = ScriptedGroup(60)
    group.place(tokens=10, max_tokens=30)
    group.run(0.1)
    group.cancel()
    group.run(0.05)
    assert not heard(group, 0, CancelGroupSteps)
    assert len(group.said(Ended)) == 1


def test_members_end_all_steps_of_a_group_that_is_over() -> None:
    group = ScriptedGroup(60, 60)
    group.place(tokens=90, max_tokens=4)
    group.run(0.02)
    newest = group.steps[-1][2].exchange
    assert len({step.exchange for step in group.at(1).queue}) == 2
    group.order(ME, kind=GroupKind.LOCAL, part=GroupRole.LOCAL)
    group.run(0.002)
    assert [each.exchange for each in heard(group, 1, CancelGroupSteps)] == [newest]


# --- what is said of it ---


def test_a_sequence_without_a_next_token_fails_and_no_other() -> None:
    group = ScriptedGroup(80, 80, groups__policy="widest")
    failing, other = group.place(1, tokens=20, max_tokens=20), group.place(2, tokens=20, max_tokens=20)
    group.run(0.1)
    for member in group.members.values():
        member.fails = {group.spreads[0].number}
    group.run(2.0)
    assert [each.request for each in group.said(Failed)] == [1]
    assert 0 < len(failing.tokens) < 20
    assert other.tokens == other.expected
    assert not group.said(Returned)
    assert group.is_quiet


def test_an_answer_that_has_ended_is_there_for_the_next_dispatcher() -> None:
    group = ScriptedGroup(20, 20)
    attempt = group.place(tokens=28, max_tokens=4, key="name")
    group.run(2.0)
    prompt = list(attempt.place.tokens)
    chain = prefix_hash.chain_of(prefix_hash.chain_root("", ""), prompt, len(prompt))
    adoption = next(part for part in group.parts.with_handlers if isinstance(part, SequenceAdoption))
    group.do(adoption.adopt(group.now_s, OTHER, Adopt(5, 3, "name", "", len(prompt), 0, chain)))
    adopted = group.others[OTHER][0]
    assert isinstance(adopted, Adopted)
    assert list(adopted.tokens) == attempt.expected


def test_a_late_first_token_says_that_it_waited_for_slots() -> None:
    group = ScriptedGroup(40)
    group.at(0).taken = 30
    attempt = group.place(tokens=20, max_tokens=4, ttft_objective_s=0.2, key="name")
    group.run(0.6)
    group.at(0).taken = 0
    group.run(2.0)
    assert attempt.tokens == attempt.expected
    assert [(each.is_first, each.cause) for each in group.missed] == [(True, MissCause.SLOTS)]


def test_a_late_token_says_that_its_steps_came_to_nothing() -> None:
    group = ScriptedGroup(40)
    attempt = group.place(tokens=20, max_tokens=12, tpot_objective_s=0.1, key="name")
    group.run(0.08)
    group.at(0).refuses_steps = 3
    group.run(2.0)
    assert attempt.tokens == attempt.expected
    assert [(each.is_first, each.cause) for each in group.missed] == [(False, MissCause.INTERRUPTED)]
