"""Copies that come from other nodes: reservation, acceptance, commit, and the end of the sender's stream."""

from dunlin.effects import Address, Send
from dunlin.messages.exchange import AcceptOffer, Offer, OfferRefused, RegionArrived, TransferAgent
from dunlin.messages.types import Why
from services.kvstore.regions.allocator import RangeAllocator
from services.kvstore.regions.catalog import RegionCatalog, RegionState
from services.kvstore.transfer.incoming import IncomingCopies
from services.kvstore.transfer.transport_commands import (
    TRANSPORT,
    CancelReceive,
    ExpectRegion,
    ReceiveReady,
    RegionReceived,
)
from tests.services.kvstore.bench import UNIT, ask

PEER = Address("kvstore", "far", 8)
AGENT = TransferAgent("a", b"m", 1, 2, 3, 4)
NAME = (1, 1)


def copies(units: int = 2, why_not: Why | None = None) -> tuple[IncomingCopies, RegionCatalog]:
    catalog = RegionCatalog(RangeAllocator(units * UNIT, UNIT, 9))
    return IncomingCopies(catalog, lambda offer: why_not), catalog


def expected() -> tuple[IncomingCopies, RegionCatalog]:
    """One offer, with room reserved."""
    incoming, catalog = copies()
    (effect,) = incoming.on_offer(0.0, PEER, Offer(5, ask(), checksum=42, agent=AGENT))
    assert isinstance(effect, Send)
    assert isinstance(effect.message, ExpectRegion)
    host = effect.message.payload.host
    assert (effect.to, effect.message.peer, effect.message.agent) == (TRANSPORT, PEER, AGENT)
    assert ((host.handle, host.generation), host.checksum) == (NAME, 42)
    return incoming, catalog


def test_an_offer_is_accepted_once_the_transport_is_ready() -> None:
    incoming, _ = expected()
    ready = ReceiveReady(*NAME, "far:9", b"token", AGENT)
    assert incoming.on_receive_ready(0.0, TRANSPORT, ready) == [
        Send(PEER, AcceptOffer(5, *NAME, "far:9", b"token", AGENT))
    ]
    assert incoming.on_receive_ready(0.0, TRANSPORT, ReceiveReady(9, 1, "far:9", b"")) == []


def test_without_room_it_is_refused_without_a_reason() -> None:
    incoming, catalog = copies(units=1)
    assert incoming.on_offer(0.0, PEER, Offer(5, ask(length_bytes=2 * UNIT), 42)) == [Send(PEER, OfferRefused(5))]
    assert (len(incoming), len(catalog)) == (0, 0)


def test_a_rule_against_the_offer_refuses_it_with_its_reason() -> None:
    why = Why("exchange", "refuse")
    incoming, catalog = copies(why_not=why)
    assert incoming.on_offer(0.0, PEER, Offer(5, ask(), 42)) == [Send(PEER, OfferRefused(5, why))]
    assert len(catalog) == 0


def test_a_received_region_is_committed_with_the_senders_checksum() -> None:
    incoming, catalog = expected()
    assert incoming.on_region_received(0.0, TRANSPORT, RegionReceived(*NAME)) == [Send(PEER, RegionArrived(5))]
    (entry,) = catalog.entries_of(PEER)
    assert (entry.state, entry.host.checksum) == (RegionState.COMMITTED, 42)
    assert len(incoming) == 0
    assert incoming.on_region_received(0.0, TRANSPORT, RegionReceived(*NAME)) == []


def test_a_failed_copy_frees_its_room_and_says_why() -> None:
    incoming, catalog = expected()
    sends = incoming.on_region_received(0.0, TRANSPORT, RegionReceived(*NAME, "checksum"))
    assert sends == [Send(PEER, RegionArrived(5, "checksum"))]
    assert len(catalog) == 0


def test_room_of_a_lost_sender_is_free_only_after_the_transport_has_stopped() -> None:
    incoming, catalog = expected()
    assert incoming.on_peer_gone(Address("kvstore", "else", 1)) == []
    assert incoming.on_peer_gone(PEER) == [Send(TRANSPORT, CancelReceive(*NAME))]
    assert incoming.on_peer_gone(PEER) == [], "it is cancelled once"
    assert len(catalog) == 1, "the transport may still write there"
    assert incoming.on_receive_ready(0.0, TRANSPORT, ReceiveReady(*NAME, "far:9", b"")) == []
    assert incoming.on_region_received(0.0, TRANSPORT, RegionReceived(*NAME)) == []
    assert len(catalog) == 0, "the arrival could not be reported"
    assert not incoming._gone, "nothing is kept of it"
