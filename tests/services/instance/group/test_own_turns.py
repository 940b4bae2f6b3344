"""Whose turn an engine's next step is."""

from services.instance.group.own_turns import OwnTurns


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
