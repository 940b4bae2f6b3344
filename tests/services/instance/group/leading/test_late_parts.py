"""Parts of a group's steps that are late: who is told to end them, who is lost, and who is believed."""

from typing import Any

import pytest

from dunlin.messages.dispatch import Continued
from dunlin.messages.group import CancelGroupSteps
from dunlin.messages.plan import AskMembers, ReturnMembers
from dunlin.messages.types import GroupKind, GroupRole
from tests.services.instance.bench import ME
from tests.services.instance.group.leading.scripted_group import ScriptedGroup, heard, member_address


def stopped(at_s: float, **config: Any) -> ScriptedGroup:
    """Two members decode; member 1 is stopped at that time, its stream stays open."""
    group = ScriptedGroup(60, 60, groups__policy="widest", **config)
    group.place(tokens=40, max_tokens=60)
    group.run(at_s)
    group.at(1).stop()
    return group


def stopped_again(took_s: float) -> ScriptedGroup:
    """`stopped`, and once more after a step that took so long."""
    group = stopped(0.2)
    group.run(took_s)
    group.at(1).go_on()
    group.run(0.1)
    group.at(1).stop()
    return group


def test_who_does_not_end_a_late_step_is_lost_and_joins_again_when_it_answers() -> None:
    """Steps of 10 ms: late after 0.5 s, lost after 0.5 s more; what lay at the other one stays."""
    group = stopped(0.2)
    (spread,) = group.spreads
    lost = sum(block.stop - block.start for block in spread.blocks if block.member == 1)
    at_s = group.now_s
    group.run(0.49)
    assert not group.said(Continued)
    assert not heard(group, 0, CancelGroupSteps)
    group.run(0.05)
    assert heard(group, 0, CancelGroupSteps)
    assert not group.said(Continued)
    group.run(0.5)
    (continued,) = group.said(Continued)
    assert group.dispatcher.times(Continued)[0] == pytest.approx(at_s + 1.0, abs=0.02)
    assert 0 < continued.recomputed_tokens <= lost
    group.run(1.0)
    assert group.roster.taking_part == {0}
    group.at(1).go_on()
    group.run(0.1)
    assert group.roster.taking_part == {0, 1}
    group.run(3.0)
    assert group.is_quiet


def test_a_step_that_lost_a_member_does_not_tell_how_long_the_next_may_take() -> None:
    group = ScriptedGroup(80, 80, 80, groups__policy="widest")
    group.place(tokens=40, max_tokens=100)
    group.run(0.2)
    group.at(1).stop()
    group.run(0.45)
    group.lose(1)
    group.run(0.2)
    cancelled = len(heard(group, 0, CancelGroupSteps))
    group.at(2).stop()
    group.run(0.6)
    assert len(heard(group, 0, CancelGroupSteps)) > cancelled


def test_a_member_that_ends_a_late_step_is_not_lost_and_its_next_one_may_take_as_long() -> None:
    group = stopped_again(0.6)
    group.run(1.0)
    assert len(heard(group, 0, CancelGroupSteps)) == 1
    group.at(1).go_on()
    group.run(3.0)
    assert not group.said(Continued)
    assert group.is_quiet


def test_after_one_that_was_ended_a_step_is_late_after_twice_its_time() -> None:
    """Which was 0.6 s, and counts for 0.54 s ten exchanges later."""
    group = stopped_again(0.6)
    group.run(1.05)
    assert len(heard(group, 0, CancelGroupSteps)) == 1
    group.run(0.1)
    assert len(heard(group, 0, CancelGroupSteps)) == 2


def test_a_step_is_late_after_four_times_the_slowest_of_its_size() -> None:
    """Which took 0.4 s, and counts for 0.36 s ten exchanges later."""
    group = stopped_again(0.4)
    group.run(1.4)
    assert not heard(group, 0, CancelGroupSteps)
    group.run(0.2)
    assert heard(group, 0, CancelGroupSteps)


def test_what_waits_behind_another_step_takes_no_longer_for_that() -> None:
    """Steps of 10 ms, each sent while the one before it runs: late after 40 ms."""
    group = stopped(0.2, groups__late_s=0.01)
    group.run(0.06)
    assert heard(group, 0, CancelGroupSteps)


def test_all_that_members_have_is_ended_with_the_step_that_is_late() -> None:
    group = stopped(0.2)
    group.run(0.6)
    (ended,) = heard(group, 0, CancelGroupSteps)
    assert ended.exchange == group.steps[-1][2].exchange
    assert group.at(0).queue == []


def test_one_that_was_told_to_end_a_step_for_another_reason_has_time_to_do_so() -> None:
    """It is the first of its size, and late after 5 s; its prompt is cancelled after 3 s."""
    group = stopped(0.003)
    group.run(3.0)
    group.cancel()
    group.run(0.6)
    assert group.roster.taking_part == {0, 1}
    group.run(0.6)
    assert group.roster.taking_part == {0}


def test_a_leader_that_comes_late_itself_judges_nobody() -> None:
    """It was stopped with the member, for 3 s: what was said meanwhile is heard after the look."""
    group = stopped(0.2)
    group.sleep(3.0)
    group.run(0.01)
    assert not heard(group, 0, CancelGroupSteps)
    group.at(1).go_on()
    group.run(3.0)
    assert not heard(group, 0, CancelGroupSteps)
    assert not group.said(Continued)


def test_the_first_step_of_its_size_has_more_time() -> None:
    group = stopped(0.003)
    group.run(4.9)
    assert not heard(group, 0, CancelGroupSteps)
    group.run(0.2)
    assert heard(group, 0, CancelGroupSteps)


def test_the_next_group_knows_how_long_exchanges_took() -> None:
    group = stopped(0.2)
    group.at(1).go_on()
    group.run(3.0)
    group.order(ME, kind=GroupKind.LOCAL, part=GroupRole.LOCAL)
    assert group.leader.led is None
    group.order(*group.members)
    group.run(0.05)
    group.place(2, tokens=40, max_tokens=60)
    group.run(0.003)
    group.at(1).stop()
    group.run(0.6)
    assert heard(group, 0, CancelGroupSteps)


@pytest.mark.parametrize("who", [0, 1], ids=["the leader", "the member"])
def test_who_is_silent_while_slots_are_short_is_given_back_at_once_after_the_wish(who: int) -> None:
    group = ScriptedGroup(60, 60, groups__policy="widest")
    group.place(tokens=90, max_tokens=20)
    group.run(0.2)
    group.at(who).stop()
    group.run(0.9)
    assert group.manager == []
    group.run(0.2)
    (wish,), (returned,) = group.wished(AskMembers), group.wished(ReturnMembers)
    assert [message for _, message in group.manager] == [wish, returned]
    assert (returned.members, returned.cannot_join) == ((member_address(who),), True)
    assert wish.slots > 30
    group.run(1.0)
    assert len(group.wished(ReturnMembers)) == 1, "it is said once"
    group.order(*group.members)
    group.run(0.01)
    assert len(group.wished(ReturnMembers)) == 2, "the manager had not heard it when it sent that order"


def test_who_is_silent_is_not_given_back_where_the_others_have_the_slots() -> None:
    group = ScriptedGroup(60, 60, groups__policy="widest")
    group.place(tokens=40, max_tokens=20)
    group.run(0.1)
    group.at(1).stop()
    group.run(5.0)
    assert group.roster.taking_part == {0}
    assert not group.wished(ReturnMembers)


def test_who_was_given_back_for_its_silence_and_answers_is_used_again_before_the_manager_takes_it() -> None:
    group = ScriptedGroup(60, 60, groups__policy="widest")
    attempt = group.place(tokens=90, max_tokens=20)
    group.run(0.2)
    group.at(1).stop()
    group.run(1.1)
    assert group.wished(ReturnMembers)
    group.at(1).go_on()
    group.run(3.0)
    assert attempt.tokens == attempt.expected
