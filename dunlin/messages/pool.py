"""Instance ↔ kvstore: room in the node's host tier, and the catalog of what lies there.

The kvstore remembers regions by handle and generation and knows why of none. Bytes never cross this stream: the
engine copies them into and out of the shared memory that `Tier` names.
"""

from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.types import HostRegion, Region, Why


@dataclass(frozen=True, slots=True)
class Tier:
    """The first message to an instance: where the host tier's shared memory is to be mapped."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ReserveRegion:
    """Room for `region` of one attempt, `length_bytes` long. `ticket` is the asker's number for the answer."""

    ticket: int
    dispatcher: Address
    request: int
    attempt: int
    region: Region
    length_bytes: int
    kv_dtype: str
    weights_digest: str
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class RegionReserved:
    """The room: the writer copies, then commits; nobody reads it before."""

    ticket: int
    host: HostRegion


@dataclass(frozen=True, slots=True)
class RegionRefused:
    """The tier has no room for this region."""

    ticket: int
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class CommitRegion:
    """Data and hash are written: the catalog may hand the region out."""

    handle: int
    generation: int
    checksum: int


@dataclass(frozen=True, slots=True)
class ReleaseRegion:
    """The room is free again. `corrupt`: the reader's copy did not match the checksum."""

    handle: int
    generation: int
    corrupt: bool = False


POOL_COMMANDS = (ReserveRegion, CommitRegion, ReleaseRegion)
POOL_EVENTS = (Tier, RegionReserved, RegionRefused)

__all__ = [
    "POOL_COMMANDS",
    "POOL_EVENTS",
    "CommitRegion",
    "RegionRefused",
    "RegionReserved",
    "ReleaseRegion",
    "ReserveRegion",
    "Tier",
]
