"""The published view and what waits for the next version: found by name, and told apart by urgency."""

from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.fleet import MemberView
from services.monitor.views import Views

A, AGAIN, B = Address("instance", "a", 1), Address("instance", "a", 2), Address("instance", "b", 3)


def test_a_name_finds_what_is_published_or_waits_until_it_is_published_as_gone() -> None:
    views = Views()
    views.put(MemberView(A))
    assert (views.named("a"), views.named("b")) == ([A], [])
    views.publish()
    views.put(MemberView(AGAIN))
    views.put(MemberView(B))
    assert (views.named("a"), views.named("b")) == ([A, AGAIN], [B])
    views.drop(A)
    views.drop(B)
    assert (views.named("a"), views.named("b")) == ([A, AGAIN], [])
    assert views.publish().removed == (A,)
    assert (views.named("a"), views.named("b")) == ([AGAIN], [])


@pytest.mark.parametrize(
    ("change", "urgent"),
    [
        ({"free_slots": 3}, False),
        ({"running": 3}, False),
        ({"waiting": 3}, False),
        ({"leaving": 1}, False),
        ({"ready": True}, True),
        ({"suspect": True}, True),
        ({"plan_version": 2}, True),
        ({"capacity_slots": 9}, True),
        ({"draining": True}, True),
    ],
)
def test_only_load_can_wait(change: dict[str, Any], urgent: bool) -> None:
    views = Views()
    views.put(MemberView(A))
    views.publish()
    views.put(MemberView(A, **change))
    assert (views.changed, views.urgent) == (True, urgent)
    views.put(MemberView(A))
    assert (views.changed, views.urgent) == (False, False)
