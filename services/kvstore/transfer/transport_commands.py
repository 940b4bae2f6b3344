"""What this core says to whoever carries bytes between nodes for it, and hears back. Never crosses a wire."""

from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.exchange import TransferAgent
from dunlin.messages.types import HostRegion, Priority, Region

TRANSPORT = Address("transport", "")
"""Takes `ExpectRegion`, `CancelReceive`, `PushRegion` and `ForgetPeer`; answers `ReceiveReady`, `RegionReceived`
and `RegionPushed`."""


@dataclass(frozen=True, slots=True)
class RegionPayload:
    """A region as both sides name it. `host` is its room on the side that speaks, with the checksum."""

    host: HostRegion
    region: Region
    kv_dtype: str
    chain: bytes


@dataclass(frozen=True, slots=True)
class ExpectRegion:
    """This region will be pushed here by `peer`, whose agent for one-sided writes is `agent` if it has one;
    `RegionReceived`
    tells what became of it, always.
    """

    payload: RegionPayload
    peer: Address
    agent: TransferAgent | None = None


@dataclass(frozen=True, slots=True)
class ReceiveReady:
    """Where it is to be pushed, and what must be shown there: to `agent` if there is one, else to `endpoint`."""

    handle: int
    generation: int
    endpoint: str
    token: bytes
    agent: TransferAgent | None = None


@dataclass(frozen=True, slots=True)
class CancelReceive:
    """It is not wanted any more."""

    handle: int
    generation: int


@dataclass(frozen=True, slots=True)
class RegionReceived:
    """Nothing writes into this room any more; without `detail` the bytes are there and match their checksum."""

    handle: int
    generation: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PushRegion:
    """Send this region of ours to `peer`'s `agent` or else its `endpoint`, for its room `handle`."""

    ticket: int
    peer: Address
    endpoint: str
    token: bytes
    handle: int
    generation: int
    payload: RegionPayload
    priority: Priority
    agent: TransferAgent | None = None


@dataclass(frozen=True, slots=True)
class ForgetPeer:
    """The stream to this peer ended: nothing comes from it and nothing goes there."""

    peer: Address


@dataclass(frozen=True, slots=True)
class RegionPushed:
    """The parcel is out of our hands; `detail` says what went wrong."""

    ticket: int
    detail: str = ""
