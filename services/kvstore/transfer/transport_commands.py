"""Commands of the core to the transport that copies bytes between nodes, and its answers. Never on a wire."""

from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.exchange import TransferAgent
from dunlin.messages.types import HostRegion, Priority, Region

TRANSPORT = Address("transport", "")
"""Takes `ExpectRegion`, `CancelReceive`, `PushRegion` and `ForgetPeer`; answers `ReceiveReady`, `RegionReceived`
and `RegionPushed`."""


@dataclass(frozen=True, slots=True)
class RegionPayload:
    """A region as both nodes name it. `host` is its room on this node, with the checksum."""

    host: HostRegion
    region: Region
    kv_dtype: str
    chain: bytes


@dataclass(frozen=True, slots=True)
class ExpectRegion:
    """`peer` will push this region here; `agent` is its agent for one-sided writes, if it has one.

    Always answered by `RegionReceived`.
    """

    payload: RegionPayload
    peer: Address
    agent: TransferAgent | None = None


@dataclass(frozen=True, slots=True)
class ReceiveReady:
    """Where to push the region: to `agent` if there is one, else to `endpoint`; `token` authorizes the push."""

    handle: int
    generation: int
    endpoint: str
    token: bytes
    agent: TransferAgent | None = None


@dataclass(frozen=True, slots=True)
class CancelReceive:
    """The region is not wanted any more."""

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
    """The push ended, and the bytes are not read any more; `detail` says what went wrong."""

    ticket: int
    detail: str = ""
