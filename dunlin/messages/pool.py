"""Instance ↔ kvstore: room in the node's host tier, and the catalog of what lies there.

The kvstore remembers regions by handle and generation and knows why of none. Bytes never cross this stream: the
engine copies them into and out of the shared memory that `Tier` names.
"""

from dataclasses import dataclass, field

from dunlin.effects import Address
from dunlin.messages.types import I64, HostRegion, KeptRegion, Priority, Region, Why, i64


@dataclass(frozen=True, slots=True)
class Tier:
    """The first message to an instance: where the host tier's shared memory is to be mapped."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ReserveRegion:
    """Room for `region` of one attempt, `length_bytes` long. `ticket` is the asker's number for the answer.

    `key` is the request's public id, the same for every attempt and dispatcher; `chain` names the tokens up to the
    region's end. A reservation of `priority` CHECKPOINT leaves room for those of KV.
    """

    ticket: int
    dispatcher: Address
    request: int
    attempt: int
    region: Region
    length_bytes: int
    kv_dtype: str
    weights_digest: str
    why: Why | None = None
    key: str = ""
    chain: bytes = b""
    priority: Priority = Priority.KV


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


@dataclass(frozen=True, slots=True)
class Writing:
    """On a stream that follows a broken one: what the writer still writes from before, by handle and generation.

    Whatever else it had reserved then is free: the answer, or its word of the end, was lost with the stream.
    """

    handle: I64 = field(default_factory=i64)
    generation: I64 = field(default_factory=i64)


@dataclass(frozen=True, slots=True)
class FindRegions:
    """Claim every committed region of the request `key`, whoever wrote it.

    What an attempt of the same dispatcher that is newer than `attempt` has written is not handed out.
    """

    ticket: int
    key: str
    dispatcher: Address
    request: int
    attempt: int
    weights_digest: str
    kv_dtype: str
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class RegionsFound:
    """The regions that belong to the asker from now on, by their start; it releases those that it cannot use.

    Their generations are new: whoever had them before can neither commit nor release them any more.
    """

    ticket: int
    regions: tuple[KeptRegion, ...] = ()


@dataclass(frozen=True, slots=True)
class RegionsTaken:
    """To whom they belonged: an attempt claimed them, and these names, by handle and generation, mean nothing now."""

    handle: I64 = field(default_factory=i64)
    generation: I64 = field(default_factory=i64)


@dataclass(frozen=True, slots=True)
class SendRegions:
    """Copy the asker's committed regions of `key` that `to` does not have yet to that kvstore, of another node.

    An instance there claims them with `FindRegions`. The asker's own stay what they are.
    """

    ticket: int
    key: str
    to: Address
    priority: Priority = Priority.KV
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class RegionsSent:
    """What of the key lies at the other kvstore now, in tokens from 0 on; `detail` says what stopped the rest."""

    ticket: int
    tokens: int
    detail: str = ""


POOL_COMMANDS = (ReserveRegion, CommitRegion, ReleaseRegion, FindRegions, SendRegions, Writing)
POOL_EVENTS = (Tier, RegionReserved, RegionRefused, RegionsFound, RegionsSent, RegionsTaken)

__all__ = [
    "POOL_COMMANDS",
    "POOL_EVENTS",
    "CommitRegion",
    "FindRegions",
    "RegionRefused",
    "RegionReserved",
    "RegionsFound",
    "RegionsSent",
    "RegionsTaken",
    "ReleaseRegion",
    "ReserveRegion",
    "SendRegions",
    "Tier",
    "Writing",
]
