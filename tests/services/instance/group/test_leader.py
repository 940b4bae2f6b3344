"""The leader of a group against members that answer as the contract says: exact times, exact tokens."""

from dunlin.messages.dispatch import Accepted
from tests.services.instance.group.scripted_group import ScriptedGroup


def test_a_prompt_longer_than_one_member_is_answered_by_three() -> None:
    group = ScriptedGroup(20, 20, 20)
    attempt = group.place(tokens=40, max_tokens=12)
    group.run(2.0)
    assert group.said(Accepted)
    assert attempt.tokens == attempt.expected
    assert group.is_quiet
