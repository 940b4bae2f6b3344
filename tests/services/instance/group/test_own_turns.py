"""Whose turn an engine's next step is."""

from dataclasses import replace

from dunlin.effects import Gone
from dunlin.messages.engine import EngineExited, Step
from dunlin.messages.group import JoinGroup
from services.instance.group.own_turns import OwnTurns
from simulator.engine.model import make_engine_ready
from tests.services.instance.bench import ENGINE, MANAGER, ME, D, Direct, done, make_order, make_place, of
from tests.services.instance.group.member_bench import (
    GROUP,
    GUEST,
    LEADER,
    SLOTS,
    answered,
    elastic,
    group_step,
    member,
    open_guest,
)


def after_a_step(share: float = 0.5) -> OwnTurns:
    """A step of the group has run from 1 s to 1.2 s."""
    turns = OwnTurns(share)
    turns.begin(1.0)
    turns.note(1.1, is_running=True)
    turns.note(1.2, is_running=False)
    return turns


def test_own_steps_have_their_share_of_what_the_group_took() -> None:
    turns = after_a_step()
    assert turns.is_own(1.2, 1)
    assert turns.is_own(1.29, 2)
    assert not turns.is_own(1.31, 2)


def test_nothing_waits_without_own_steps_or_without_a_share() -> None:
    assert not after_a_step().is_own(1.2, 0)
    assert not after_a_step(0.0).is_own(1.2, 1)
    assert not OwnTurns(0.5).is_own(1.2, 1)


def test_looking_again_changes_nothing() -> None:
    turns = after_a_step()
    turns.note(9.0, is_running=False)
    assert not turns.is_own(1.31, 1)


def joined_again(direct: Direct, now_s: float, version: int = 3) -> list[Step]:
    """The member follows LEADER in another group and gets a step of that beside those of a request of its own; what
    its engine gets as soon as one of these is answered.
    """
    own = of(Step, direct.give(D, make_place(1, 10, max_tokens=40), now_s))[0]
    direct.give(MANAGER, elastic(version, LEADER, ME, group=GROUP + 1), now_s)
    direct.give(LEADER, JoinGroup(1, version, GROUP + 1, 1), now_s)
    direct.give(LEADER, replace(open_guest(60), group=GROUP + 1), now_s)
    direct.give(LEADER, replace(group_step(9, [(GUEST, 0, 30)]), group=GROUP + 1), now_s)
    return of(Step, direct.give(ENGINE, done(own.step, (own.sequence[0], 70)), now_s + 0.01))


def a_group_s_step_runs() -> Direct:
    direct = member()
    direct.give(LEADER, open_guest(60), 1.0)
    assert of(Step, direct.give(LEADER, group_step(1, [(GUEST, 0, 30)]), 1.0))
    return direct


def test_the_next_step_of_the_group_waits_for_own_ones_half_as_long_as_the_last_one_took() -> None:
    direct = a_group_s_step_runs()
    (own,) = of(Step, direct.give(D, make_place(1, 10, max_tokens=40), 1.1))
    direct.give(LEADER, group_step(2, [(GUEST, 30, 60)]), 1.1)
    direct.give(ENGINE, answered(1), 1.2)
    for now_s, token, next_one in ((1.25, 70, own.sequence[0]), (1.31, 71, GUEST)):
        answer = done(direct.core.steps.oldest_step, (own.sequence[0], token))
        assert list(of(Step, direct.give(ENGINE, answer, now_s))[0].sequence) == [next_one]


def test_the_time_between_two_groups_is_no_step_of_the_first() -> None:
    direct = a_group_s_step_runs()
    direct.give(MANAGER, make_order(plan_version=3, group=90), 1.1)
    direct.give(ENGINE, answered(1, left=(GUEST,)), 1.2)
    assert list(joined_again(direct, 61.0, version=4)[0].sequence) == [GUEST]


def test_the_time_until_the_next_engine_is_no_step_of_the_last() -> None:
    direct = a_group_s_step_runs()
    direct.give(ENGINE, EngineExited(0, incarnation=0, signal=9), 1.1)
    direct.give(ENGINE, Gone("killed"), 1.1)
    direct.give(ENGINE, make_engine_ready(slots=SLOTS, agent=b"next"), 31.0)
    assert list(joined_again(direct, 31.0)[0].sequence) == [GUEST]
