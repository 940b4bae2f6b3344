"""The published view and what waits for the next version: found by name, and told apart by urgency."""

from typing import Any

import pytest

from dunlin.effects import Address
from dunlin.messages.fleet import FleetView, InstanceReport, MemberView
from services.monitor.fleet_views import FleetViews, member_view

A, AGAIN, B = Address("instance", "a", 1), Address("instance", "a", 2), Address("instance", "b", 3)


def test_a_name_finds_what_is_published_or_waits_until_it_is_published_as_gone() -> None:
    views = FleetViews()
    views.put(MemberView(A))
    assert (views.incarnations("a"), views.incarnations("b")) == ([A], [])
    views.publish()
    views.put(MemberView(AGAIN))
    views.put(MemberView(B))
    assert (views.incarnations("a"), views.incarnations("b")) == ([A, AGAIN], [B])
    views.remove(A)
    views.remove(B)
    assert (views.incarnations("a"), views.incarnations("b")) == ([A, AGAIN], [])
    assert views.publish() == FleetView(3, (MemberView(AGAIN),), 2, (A,)), "what went before it was published is not"
    assert (views.incarnations("a"), views.incarnations("b")) == ([AGAIN], [])
    assert list(views._named) == ["a"], "names that come and go take no memory"


def test_slots_that_hold_unused_prefixes_count_as_free() -> None:
    report = InstanceReport(capacity_slots=9, free_slots=4, cached_slots=2)
    view = member_view(A, "node-a", report, suspect=False, why=None)
    assert view == MemberView(A, node="node-a", capacity_slots=9, free_slots=6)


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
    views = FleetViews()
    views.put(MemberView(A))
    views.publish()
    views.put(MemberView(A, **change))
    assert (views.changed, views.urgent) == (True, urgent)
    views.put(MemberView(A))
    assert (views.changed, views.urgent) == (False, False)


def test_what_comes_and_goes_between_two_versions_is_not_urgent() -> None:
    views = FleetViews()
    views.put(MemberView(A))
    assert views.urgent
    views.remove(A)
    assert (views.changed, views.urgent) == (False, False)
