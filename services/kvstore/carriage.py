"""What this core says to whoever carries bytes between nodes for it, and hears back. Never crosses a wire."""

from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.types import HostRegion, Priority, Region

TRANSPORT = Address("transport", "")
"""Takes `Expect`, `Abandon` and `Push`; answers `Expecting`, `Received` and `Pushed`."""


@dataclass(frozen=True, slots=True)
class Goods:
    """A region as both sides name it. `host` is its room on the side that speaks, with the checksum."""

    host: HostRegion
    region: Region
    kv_dtype: str
    chain: bytes


@dataclass(frozen=True, slots=True)
class Expect:
    """This region will be pushed here; `Received` tells what became of it, always."""

    goods: Goods


@dataclass(frozen=True, slots=True)
class Expecting:
    """Where it is to be pushed, and what must be shown there."""

    handle: int
    generation: int
    endpoint: str
    token: bytes


@dataclass(frozen=True, slots=True)
class Abandon:
    """It is not wanted any more."""

    handle: int
    generation: int


@dataclass(frozen=True, slots=True)
class Received:
    """Nothing writes into this room any more; without `detail` the bytes are there and match their checksum."""

    handle: int
    generation: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Push:
    """Send this region of ours to `peer`'s `endpoint`, for its room `handle`."""

    ticket: int
    peer: Address
    endpoint: str
    token: bytes
    handle: int
    generation: int
    goods: Goods
    priority: Priority


@dataclass(frozen=True, slots=True)
class Pushed:
    """The parcel is out of our hands; `detail` says what went wrong."""

    ticket: int
    detail: str = ""
