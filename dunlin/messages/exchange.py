"""Kvstore ↔ kvstore of another node: which regions are offered, wanted and there. Bytes travel through `transport/`.

One stream serves both directions: whichever side dialled, either may offer and either may seek.
"""

from dunlin.messages.declare import Parties, Subject, message, number
from dunlin.messages.pool import FindRegions, ReserveRegion
from dunlin.messages.types import Why

PARTIES = Parties("Exchange", dialers=("kvstore",), acceptor="kvstore")


@message()
class TransferAgent:
    """How a process is reached by one-sided writes: the agent's name and what its library needs to know of it.

    Its staging memory begins at `address` and has `lanes` of `depth` chunks of `chunk_bytes` each.
    """

    name: str = number(1)
    metadata: bytes = number(2)
    address: int = number(3)
    lanes: int = number(4)
    depth: int = number(5)
    chunk_bytes: int = number(6)


@message(command=2, event=2)
class Offer:
    """A committed region of the sender that the receiver may have a copy of; `ticket` is the sender's number for it.

    With an `agent` the sender can write it one-sidedly.
    """

    ticket: int = number(1)
    region: ReserveRegion = number(2)
    checksum: int = number(3)
    agent: TransferAgent | None = number(4, default=None)


@message(command=3, event=3)
class AcceptOffer:
    """Room is set aside and expected to be filled: push the bytes with `token`, to `agent` if there is one, else to
    `endpoint`.
    """

    ticket: int = number(1)
    handle: int = number(2)
    generation: int = number(3)
    endpoint: str = number(4)
    token: bytes = number(5)
    agent: TransferAgent | None = number(6, default=None)


@message(command=4, event=4, about=Subject.NOTHING)
class OfferRefused:
    """There is no room."""

    ticket: int = number(1)
    why: Why | None = number(2, default=None)


@message(command=5, event=5)
class RegionArrived:
    """The region is whole and entered; `detail` says what went wrong if not."""

    ticket: int = number(1)
    detail: str = number(2, default="")


@message(command=6, event=6)
class DropCopies:
    """The request is over at the sender: the copies that were not claimed are not needed."""

    key: str = number(1)


@message(command=7, event=7)
class RequestCopies:
    """Send whatever of this request could be claimed here to the asker's kvstore; `CopiesSent` answers."""

    ticket: int = number(1)
    find: FindRegions = number(2)


@message(command=8, event=8)
class CopiesSent:
    """So many tokens of it, from the first on, lie at the asker's kvstore now."""

    ticket: int = number(1)
    tokens: int = number(2)
