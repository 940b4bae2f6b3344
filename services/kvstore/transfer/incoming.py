"""Copies of other nodes' regions that come here: room is reserved, the transport prepared, the region committed.

The sending kvstore is the writer in the catalog until an instance of this node claims them. Room is only used again
after the transport has said that nothing writes there any more.
"""

from collections.abc import Callable

from dunlin.cores.handlers import handles
from dunlin.effects import Address, Effect, Send
from dunlin.messages.exchange import AcceptOffer, Offer, OfferRefused, RegionArrived
from dunlin.messages.pool import ReserveRegion
from dunlin.messages.types import Why
from services.kvstore.regions.catalog import RegionCatalog
from services.kvstore.transfer.transport_commands import (
    TRANSPORT,
    CancelReceive,
    ExpectRegion,
    ReceiveReady,
    RegionPayload,
    RegionReceived,
)

RegionId = tuple[int, int]


class IncomingCopies:
    """Owns the expected regions: by room, the sender and its ticket.

    `why_not` tells why an offer is to be refused, or None.
    """

    def __init__(self, catalog: RegionCatalog, why_not: Callable[[Offer], Why | None]) -> None:
        self._catalog = catalog
        self._why_not = why_not
        self._expected: dict[RegionId, tuple[Address, Offer]] = {}
        self._gone: dict[RegionId, None] = {}

    def __len__(self) -> int:
        return len(self._expected)

    @handles
    def on_offer(self, now_s: float, sender: Address, message: Offer) -> list[Effect]:
        """Reserve room and have the transport expect the region, or refuse the offer."""
        why_not = self._why_not(message)
        asked: ReserveRegion = message.region
        entry = self._catalog.reserve(sender, asked) if why_not is None else None
        if entry is None:
            return [Send(sender, OfferRefused(message.ticket, why_not))]
        host = entry.host
        self._expected[host.handle, host.generation] = (sender, message)
        goods = RegionPayload(entry.with_checksum(message.checksum), asked.region, asked.kv_dtype, asked.chain)
        return [Send(TRANSPORT, ExpectRegion(goods, sender, message.agent))]

    @handles
    def on_receive_ready(self, now_s: float, carrier: Address, message: ReceiveReady) -> list[Effect]:
        """The transport is ready to receive the region."""
        name = (message.handle, message.generation)
        if name not in self._expected or name in self._gone:
            return []
        sender, offer = self._expected[name]
        return [Send(sender, AcceptOffer(offer.ticket, *name, message.endpoint, message.token, message.agent))]

    @handles
    def on_region_received(self, now_s: float, carrier: Address, message: RegionReceived) -> list[Effect]:
        """The region was received, or failed: commit it or free its room."""
        name = (message.handle, message.generation)
        if name not in self._expected:
            return []
        sender, offer = self._expected.pop(name)
        is_gone = name in self._gone
        self._gone.pop(name, None)
        if message.detail or is_gone:
            self._catalog.release(sender, *name)
            return [] if is_gone else [Send(sender, RegionArrived(offer.ticket, message.detail))]
        self._catalog.commit(sender, *name, offer.checksum)
        return [Send(sender, RegionArrived(offer.ticket))]

    def on_peer_gone(self, peer: Address) -> list[Effect]:
        """The sender's stream ended: cancel the rest, whose arrival could not be reported."""
        effects: list[Effect] = []
        for name, (sender, _) in self._expected.items():
            if sender == peer and name not in self._gone:
                self._gone[name] = None
                effects.append(Send(TRANSPORT, CancelReceive(*name)))
        return effects
