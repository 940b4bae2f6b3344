"""What the leader believes of members' slots while requests for some are on their way."""

from dunlin.messages.group import GuestClosed, GuestRefused, GuestSlots, MemberReady, OpenGuest
from services.instance.group.leading.guest_requests import GuestRequests
from services.instance.group.leading.roster import GroupRoster
from services.instance.group.leading.spread import SpreadSequence
from services.instance.sequence.table import SequenceTable
from tests.services.instance.bench import ME, D, make_order, make_place


def make_requests() -> tuple[GuestRequests, SpreadSequence]:
    roster = GroupRoster(ME, set(), 1.0, lambda member, reason: [])
    roster.follow(make_order(group=7))
    roster.on_ready(ME, MemberReady(7, ME, b"a", 0, 100, 60, 1000, "w", "fp32"))
    requests = GuestRequests(roster)
    requests.set_free(0, 60)
    return requests, SpreadSequence(SequenceTable().add(D, make_place(group=7), number=5))


def test_what_is_asked_for_is_not_free() -> None:
    requests, spread = make_requests()
    requests.open(spread, 0, 20)
    assert requests.free(0) == 40
    requests.on_slots(spread, 0, GuestSlots(7, 5, 20, 38))
    assert requests.free(0) == 38
    requests.grow(spread, 0, 8)
    assert requests.free(0) == 30
    requests.on_refused(spread, 0, GuestRefused(7, 5, 6))
    assert requests.free(0) == 6
    assert spread.guests[0].slots == 20
    assert spread.refusals[0].reason == "8 slots asked for, 6 were free"


def test_a_member_that_refuses_what_it_says_is_free_is_not_asked_again_at_once() -> None:
    requests, spread = make_requests()
    requests.open(spread, 0, 20)
    requests.on_refused(spread, 0, GuestRefused(7, 5, 50))
    assert requests.free(0) == 0
    assert spread.guests == {}
    requests.forget_free()
    assert requests.free(0) == 100


def refused_growth() -> tuple[GuestRequests, SpreadSequence]:
    """Member 0 has 20 slots for a sequence, and refused 60 more."""
    requests, spread = make_requests()
    requests.open(spread, 0, 20)
    requests.on_slots(spread, 0, GuestSlots(7, 5, 20, 40))
    requests.grow(spread, 0, 60)
    requests.on_refused(spread, 0, GuestRefused(7, 5, 40))
    return requests, spread


def test_a_text_that_was_refused_with_its_slots_is_not_known() -> None:
    requests, spread = refused_growth()
    assert spread.guests[0].knows_text
    opened = requests.open(spread, 0, 60).message
    assert isinstance(opened, OpenGuest)
    assert opened.slots == 80
    requests.on_refused(spread, 0, GuestRefused(7, 5, 40))
    assert not spread.guests[0].knows_text


def test_what_a_member_refused_is_forgotten_once_it_has_slots() -> None:
    requests, spread = refused_growth()
    assert list(spread.refusals) == [0]
    requests.grow(spread, 0, 8)
    requests.on_slots(spread, 0, GuestSlots(7, 5, 28, 32))
    assert spread.refusals == {}


def test_an_answer_is_that_of_the_first_request_for_its_sequence() -> None:
    requests, spread = make_requests()
    other = SpreadSequence(SequenceTable().add(D, make_place(2, group=7), number=6))
    requests.open(spread, 0, 20)
    requests.open(other, 0, 8)
    requests.on_slots(other, 0, GuestSlots(7, 6, 8, 52))
    assert requests.free(0) == 52 - 20


def test_what_a_lost_member_was_asked_counts_no_more_when_it_is_back() -> None:
    requests, spread = make_requests()
    requests.open(spread, 0, 20)
    requests.lose(0)
    assert requests.free(0) == 0
    requests.set_free(0, 60)
    assert requests.free(0) == 60


def test_a_guest_that_was_opened_again_before_the_former_was_closed_stays() -> None:
    requests, spread = make_requests()
    requests.open(spread, 0, 20)
    requests.on_closed(spread, 0, GuestClosed(7, 5, 60))
    assert list(spread.guests) == [0]
    requests.close(spread, 0)
    requests.on_closed(spread, 0, GuestClosed(7, 5, 60))
    assert spread.guests == {}
