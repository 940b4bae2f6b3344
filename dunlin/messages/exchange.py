"""Kvstore ↔ kvstore of another node: which regions are offered, wanted and there. Bytes travel through `transport/`.

One stream serves both directions: whichever side dialled, either may offer and either may seek.
"""

from dataclasses import dataclass

from dunlin.messages.pool import FindRegions, ReserveRegion
from dunlin.messages.types import Why


@dataclass(frozen=True, slots=True)
class TransferAgent:
    """How a process is reached by one-sided writes: the agent's name and what its library needs to know of it.

    Its staging memory begins at `address` and has `lanes` of `depth` chunks of `chunk_bytes` each.
    """

    name: str
    metadata: bytes
    address: int
    lanes: int
    depth: int
    chunk_bytes: int


@dataclass(frozen=True, slots=True)
class Offer:
    """A committed region of the sender that the receiver may have a copy of; `ticket` is the sender's number for it.

    With an `agent` the sender can write it one-sidedly.
    """

    ticket: int
    region: ReserveRegion
    checksum: int
    agent: TransferAgent | None = None


@dataclass(frozen=True, slots=True)
class Take:
    """Room is set aside and expected to be filled: push the bytes with `token`, to `agent` if there is one, else to
    `endpoint`.
    """

    ticket: int
    handle: int
    generation: int
    endpoint: str
    token: bytes
    agent: TransferAgent | None = None


@dataclass(frozen=True, slots=True)
class OfferRefused:
    """There is no room."""

    ticket: int
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class Arrived:
    """The region is whole and entered; `detail` says what went wrong if not."""

    ticket: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DropCopies:
    """The request is over at the sender: the copies that nobody claimed are not needed."""

    key: str


@dataclass(frozen=True, slots=True)
class Seek:
    """Send whatever of this request could be claimed here to the asker's kvstore; `Sought` answers."""

    ticket: int
    find: FindRegions


@dataclass(frozen=True, slots=True)
class Sought:
    """So many tokens of it, from the first on, lie at the asker's kvstore now."""

    ticket: int
    tokens: int


EXCHANGE_COMMANDS = (Offer, Take, OfferRefused, Arrived, DropCopies, Seek, Sought)
EXCHANGE_EVENTS = EXCHANGE_COMMANDS

__all__ = [
    "EXCHANGE_COMMANDS",
    "EXCHANGE_EVENTS",
    "Arrived",
    "DropCopies",
    "Offer",
    "OfferRefused",
    "Seek",
    "Sought",
    "Take",
    "TransferAgent",
]
