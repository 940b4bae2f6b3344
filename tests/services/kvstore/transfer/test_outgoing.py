"""Copies that go to other nodes: what a job offers, how it ends, and which remote copies are dropped."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.exchange import AcceptOffer, DropCopies, Offer, OfferRefused, RegionArrived
from dunlin.messages.group import DIALING, DialPeer
from dunlin.messages.pool import FindRegions
from dunlin.messages.types import Priority, Region
from services.kvstore.regions.allocator import RangeAllocator
from services.kvstore.regions.catalog import RegionCatalog, RegionEntry
from services.kvstore.transfer.outgoing import WINDOW, CopyJobTimeout, OutgoingCopies
from services.kvstore.transfer.transport_commands import TRANSPORT, PushRegion, RegionPushed
from tests.services.kvstore.bench import OTHER, UNIT, WRITER, ask

PEER = Address("kvstore", "far", 8)
ELSE = Address("kvstore", "else", 9)


class Jobs:
    """Outgoing copies of a catalog with regions of two tokens each, and the results of the jobs."""

    def __init__(self, regions: int = 2, most: int = 3, joined: bool = True) -> None:
        self.catalog = RegionCatalog(RangeAllocator(16 * UNIT, UNIT, 16))
        self.outgoing = OutgoingCopies(self.catalog, 5.0, most)
        self.results: list[tuple[int, str]] = []
        for number in range(regions):
            self.commit(2 * number)
        if joined:
            self.outgoing.on_peer_joined(PEER)

    def commit(self, start: int, writer: Address = WRITER, priority: Priority = Priority.KV) -> RegionEntry:
        asked = ask(key="r", region=Region(0, 2, start, start + 2), priority=priority)
        entry = self.catalog.reserve(writer, asked)
        assert entry is not None
        assert self.catalog.commit(writer, entry.host.handle, entry.host.generation, 10 + start)
        return entry

    def start(self, to: Address = PEER, priority: Priority = Priority.KV) -> list[Effect]:
        return self.outgoing.start("r", to, priority, lambda entry: True, self._over)

    def arrive(self, *tickets: int) -> list[Effect]:
        effects: list[Effect] = []
        for ticket in tickets:
            effects += self.outgoing.on_region_arrived(0.0, PEER, RegionArrived(ticket))
        return effects

    def _over(self, tokens: int, detail: str) -> list[Effect]:
        self.results.append((tokens, detail))
        return []


def sent(effects: list[Effect], kind: type[Any]) -> list[Any]:
    return [one.message for one in effects if isinstance(one, Send) and isinstance(one.message, kind)]


def starts(effects: list[Effect]) -> dict[int, int]:
    """Ticket of each offer, and the first token of its region."""
    return {offer.ticket: offer.region.region.start for offer in sent(effects, Offer)}


def test_a_job_offers_a_window_of_regions_in_the_order_of_their_tokens() -> None:
    jobs = Jobs(regions=WINDOW + 2)
    first = starts(jobs.start())
    assert list(first.values()) == [0, 2, 4, 6]
    assert list(starts(jobs.arrive(min(first))).values()) == [8]


def test_a_job_ends_with_the_tokens_that_lie_there_without_a_gap() -> None:
    jobs = Jobs(regions=3)
    jobs.arrive(*starts(jobs.start()))
    assert (jobs.results, len(jobs.outgoing)) == ([(6, "")], 0)
    jobs.commit(8)  # tokens 6 and 7 are missing
    jobs.arrive(*starts(jobs.start()))
    assert jobs.results == [(6, ""), (6, "")]
    assert starts(jobs.start()) == {}, "what lies there is not offered again"


@pytest.mark.parametrize(("kept", "wanted"), [(Priority.CHECKPOINT, Priority.KV), (Priority.KV, Priority.CHECKPOINT)])
def test_a_copy_gets_the_room_for_what_it_is_for_whatever_its_original_got(kept: Priority, wanted: Priority) -> None:
    """A checkpoint of a sequence that moves is waited for; the second copy of what was preempted is not."""
    jobs = Jobs(regions=0)
    entry = jobs.commit(0, priority=kept)
    (offer,) = sent(jobs.start(priority=wanted), Offer)
    assert offer.region == replace(entry.request, priority=wanted)


def test_without_a_stream_the_peer_is_dialled_first() -> None:
    jobs = Jobs(joined=False)
    effects = jobs.start()
    assert effects == [Send(DIALING, DialPeer(PEER)), After(5.0, CopyJobTimeout(1, 1))]
    assert list(starts(jobs.outgoing.on_peer_joined(PEER)).values()) == [0, 2]


def test_a_peer_that_was_gone_is_dialled_again() -> None:
    jobs = Jobs()
    jobs.outgoing.on_peer_gone(PEER)
    assert jobs.start() == [Send(DIALING, DialPeer(PEER)), After(5.0, CopyJobTimeout(1, 1))]


def test_two_jobs_have_nothing_in_common() -> None:
    jobs = Jobs(regions=1)
    jobs.outgoing.on_peer_joined(ELSE)
    (first,), (second,) = starts(jobs.start()), starts(jobs.start(ELSE))
    assert (len(jobs.outgoing), first != second) == (2, True)
    jobs.arrive(first)
    assert (jobs.results, jobs.outgoing.is_busy("r", ELSE)) == ([(2, "")], True)


def test_no_more_jobs_than_the_limit_run_at_once() -> None:
    jobs = Jobs(most=1)
    jobs.start()
    assert jobs.outgoing.is_busy("r", PEER)
    assert not jobs.outgoing.is_busy("r", ELSE)
    assert jobs.start(ELSE) == []
    assert jobs.results == [(0, "1 requests are being copied already")]


def test_an_accepted_offer_is_pushed_to_the_room_of_the_receiver() -> None:
    jobs = Jobs(regions=1)
    (ticket,) = starts(jobs.start())
    accept = AcceptOffer(ticket, 6, 3, "far:1", b"token")
    assert jobs.outgoing.on_offer_accepted(0.0, ELSE, accept) == []
    (effect,) = jobs.outgoing.on_offer_accepted(0.0, PEER, accept)
    assert isinstance(effect, Send)
    assert isinstance(effect.message, PushRegion)
    push = effect.message
    assert (effect.to, push.handle, push.generation, push.endpoint, push.token) == (TRANSPORT, 6, 3, "far:1", b"token")
    assert (push.payload.host.checksum, push.priority) == (10, Priority.KV)


FAILURES: list[tuple[Callable[[OutgoingCopies, int], object], str]] = [
    (lambda copies, one: copies.on_offer_refused(0.0, PEER, OfferRefused(one)), "far has no room"),
    (lambda copies, one: copies.on_region_pushed(0.0, TRANSPORT, RegionPushed(one, "reset")), "reset"),
    (lambda copies, one: copies.on_region_arrived(0.0, PEER, RegionArrived(one, "corrupt")), "corrupt"),
    (lambda copies, one: copies.on_peer_gone(PEER), "far is gone"),
    (lambda copies, one: copies.on_timeout(0.0, PEER, CopyJobTimeout(1, 2)), "nothing heard of far for 5 s"),
]


@pytest.mark.parametrize(("fail", "detail"), FAILURES)
def test_the_first_failure_ends_the_job_with_its_reason(
    fail: Callable[[OutgoingCopies, int], object], detail: str
) -> None:
    jobs = Jobs(regions=2)
    first, second = starts(jobs.start())
    jobs.arrive(first)
    fail(jobs.outgoing, second)
    assert (jobs.results, len(jobs.outgoing)) == ([(2, detail)], 0)


def test_an_old_timer_and_a_push_without_a_failure_change_nothing() -> None:
    jobs = Jobs()
    first, _ = starts(jobs.start())
    jobs.arrive(first)
    assert jobs.outgoing.on_timeout(0.0, PEER, CopyJobTimeout(1, 1)) == []
    assert jobs.outgoing.on_region_pushed(0.0, TRANSPORT, RegionPushed(2)) == []
    assert (jobs.results, len(jobs.outgoing)) == ([], 1)


def test_copies_are_dropped_with_the_last_original() -> None:
    jobs = Jobs(regions=2)
    jobs.arrive(*starts(jobs.start()))
    first, second = jobs.catalog.entries_of(WRITER)
    jobs.catalog.release(WRITER, first.host.handle, first.host.generation)
    assert jobs.outgoing.on_region_released("r") == []
    jobs.catalog.release(WRITER, second.host.handle, second.host.generation)
    assert jobs.outgoing.on_region_released("r") == [Send(PEER, DropCopies("r"))]
    assert jobs.outgoing.on_region_released("r") == [], "it is said once"
    assert not jobs.outgoing._remote_copies, "requests that are over take no memory"


def test_a_copy_that_arrives_after_its_job_is_dropped_if_it_has_no_original() -> None:
    jobs = Jobs(regions=1)
    (ticket,) = starts(jobs.start())
    jobs.outgoing.on_timeout(0.0, PEER, CopyJobTimeout(1, 1))
    (entry,) = jobs.catalog.entries_of(WRITER)
    jobs.catalog.release(WRITER, entry.host.handle, entry.host.generation)
    assert jobs.outgoing.on_region_arrived(0.0, ELSE, RegionArrived(ticket)) == []
    jobs = Jobs(regions=1)
    (ticket,) = starts(jobs.start())
    jobs.outgoing.on_timeout(0.0, PEER, CopyJobTimeout(1, 1))
    (entry,) = jobs.catalog.entries_of(WRITER)
    jobs.catalog.release(WRITER, entry.host.handle, entry.host.generation)
    assert jobs.arrive(ticket) == [Send(PEER, DropCopies("r"))]


@pytest.mark.parametrize("end", ["another peer is gone", "its peer was gone", "refused"])
def test_only_what_may_still_arrive_after_its_job_is_awaited(end: str) -> None:
    jobs = Jobs(regions=1)
    (ticket,) = starts(jobs.start())
    jobs.outgoing.on_timeout(0.0, PEER, CopyJobTimeout(1, 1))
    if end == "refused":
        assert jobs.outgoing.on_offer_refused(0.0, PEER, OfferRefused(ticket)) == []
    else:
        gone = ELSE if end == "another peer is gone" else PEER
        jobs.outgoing.on_peer_gone(gone)
        jobs.outgoing.on_peer_joined(gone)
    (entry,) = jobs.catalog.entries_of(WRITER)
    jobs.catalog.release(WRITER, entry.host.handle, entry.host.generation)
    assert jobs.arrive(ticket) == ([Send(PEER, DropCopies("r"))] if end == "another peer is gone" else [])


def test_an_original_that_was_claimed_under_a_new_name_keeps_its_copies() -> None:
    jobs = Jobs(regions=1)
    jobs.arrive(*starts(jobs.start()))
    wanted = FindRegions(1, "r", Address("dispatcher", "d", 1), 1, 2, "w", "fp32")
    assert len(jobs.catalog.claim(OTHER, wanted)) == 1
    assert jobs.outgoing.on_region_released("r") == []


def test_a_region_of_another_node_is_no_original_of_what_was_sent_there() -> None:
    jobs = Jobs(regions=1)
    jobs.arrive(*starts(jobs.start()))
    (entry,) = jobs.catalog.entries_of(WRITER)
    jobs.commit(0, writer=PEER)
    jobs.catalog.release(WRITER, entry.host.handle, entry.host.generation)
    assert jobs.outgoing.on_region_released("r") == [Send(PEER, DropCopies("r"))]
