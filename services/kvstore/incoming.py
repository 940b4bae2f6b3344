"""Copies of other nodes' regions that come here: room is reserved, announced to the carrier, and committed when whole.

The sending kvstore is the writer in the catalog until an instance of this node claims them. Room is only used again
after the carrier said that nothing writes there any more.
"""

from collections.abc import Callable

from dunlin.effects import Address, Effect, Send
from dunlin.handlers import handles
from dunlin.messages.exchange import Arrived, Offer, OfferRefused, Take
from dunlin.messages.pool import ReserveRegion
from dunlin.messages.types import Why
from services.kvstore.carriage import TRANSPORT, Abandon, Expect, Expecting, Goods, Received
from services.kvstore.catalog import Catalog

Name = tuple[int, int]


class Incoming:
    """Owns what is expected: by room, who sends it under which of its tickets.

    `why_not` tells why an offer is to be refused, or None.
    """

    def __init__(self, catalog: Catalog, why_not: Callable[[Offer], Why | None]) -> None:
        self._catalog = catalog
        self._why_not = why_not
        self._expected: dict[Name, tuple[Address, Offer]] = {}
        self._gone: dict[Name, None] = {}

    def __len__(self) -> int:
        return len(self._expected)

    @handles
    def offered(self, now_s: float, sender: Address, message: Offer) -> list[Effect]:
        """Reserve room and have it expected, or refuse the offer."""
        why_not = self._why_not(message)
        asked: ReserveRegion = message.region
        entry = self._catalog.reserve(sender, asked) if why_not is None else None
        if entry is None:
            return [Send(sender, OfferRefused(message.ticket, why_not))]
        host = entry.host
        self._expected[host.handle, host.generation] = (sender, message)
        goods = Goods(entry.with_checksum(message.checksum), asked.region, asked.kv_dtype, asked.chain)
        return [Send(TRANSPORT, Expect(goods, sender, message.agent))]

    @handles
    def expecting(self, now_s: float, carrier: Address, message: Expecting) -> list[Effect]:
        """The carrier is ready for it."""
        name = (message.handle, message.generation)
        if name not in self._expected or name in self._gone:
            return []
        sender, offer = self._expected[name]
        return [Send(sender, Take(offer.ticket, *name, message.endpoint, message.token, message.agent))]

    @handles
    def received(self, now_s: float, carrier: Address, message: Received) -> list[Effect]:
        """It is there, or will not come."""
        name = (message.handle, message.generation)
        if name not in self._expected:
            return []
        sender, offer = self._expected.pop(name)
        is_gone = name in self._gone
        self._gone.pop(name, None)
        if message.detail or is_gone:
            self._catalog.release(sender, *name)
            return [] if is_gone else [Send(sender, Arrived(offer.ticket, message.detail))]
        self._catalog.commit(sender, *name, offer.checksum)
        return [Send(sender, Arrived(offer.ticket))]

    def gone(self, peer: Address) -> list[Effect]:
        """The sender's stream ended: nobody would hear that the rest arrived."""
        effects: list[Effect] = []
        for name, (sender, _) in self._expected.items():
            if sender == peer and name not in self._gone:
                self._gone[name] = None
                effects.append(Send(TRANSPORT, Abandon(*name)))
        return effects
