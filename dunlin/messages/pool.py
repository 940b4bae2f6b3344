"""Instance ↔ kvstore: room in the node's host tier, and the catalog of what lies there.

The kvstore remembers regions by handle and generation and knows why of none. Bytes never cross this stream: the
engine copies them into and out of the shared memory that `TierReady` names.
"""

from dunlin.effects import Address
from dunlin.messages.declare import Parties, Subject, message, number
from dunlin.messages.types import I64, HostRegion, KeptRegion, Priority, Region, Why, i64

PARTIES = Parties("Pool", dialers=("instance",), acceptor="kvstore")


@message(event=2)
class TierReady:
    """The first message to an instance: where the host tier's shared memory is to be mapped."""

    path: str = number(1)
    size_bytes: int = number(2)


@message(command=2, about=Subject.DISPATCHERS_REQUEST)
class ReserveRegion:
    """Room for `region` of one attempt, `length_bytes` long. `ticket` is the asker's number for the answer.

    `key` is the request's public id, the same for every attempt and dispatcher; `chain` names the tokens up to the
    region's end. A reservation of `priority` CHECKPOINT leaves room for those of KV.
    """

    ticket: int = number(1)
    dispatcher: Address = number(2)
    request: int = number(3)
    attempt: int = number(4)
    region: Region = number(5)
    length_bytes: int = number(6)
    kv_dtype: str = number(7)
    weights_digest: str = number(8)
    why: Why | None = number(9, default=None)
    key: str = number(10, default="")
    chain: bytes = number(11, default=b"")
    priority: Priority = number(12, default=Priority.KV)


@message(event=3)
class RegionReserved:
    """The room: the writer copies, then commits; it is not read before."""

    ticket: int = number(1)
    host: HostRegion = number(2)


@message(event=4, about=Subject.TICKET)
class RegionRefused:
    """The tier has no room for this region."""

    ticket: int = number(1)
    why: Why | None = number(2, default=None)


@message(command=3)
class CommitRegion:
    """Data and hash are written: the catalog may hand the region out."""

    handle: int = number(1)
    generation: int = number(2)
    checksum: int = number(3)


@message(command=4)
class ReleaseRegion:
    """The room is free again. `corrupt`: the reader's copy did not match the checksum."""

    handle: int = number(1)
    generation: int = number(2)
    corrupt: bool = number(3, default=False)


@message(command=7)
class PendingWrites:
    """On a stream that follows a broken one: what the writer still writes from before, by handle and generation.

    Whatever else it had reserved then is free: the answer, or its word of the end, was lost with the stream.
    """

    handle: I64 = number(1, default_factory=i64)
    generation: I64 = number(2, default_factory=i64)


@message(command=5, about=Subject.DISPATCHERS_REQUEST)
class FindRegions:
    """Claim every committed region of the request `key`, written by any attempt.

    What an attempt of the same dispatcher that is newer than `attempt` has written is not found.
    """

    ticket: int = number(1)
    key: str = number(2)
    dispatcher: Address = number(3)
    request: int = number(4)
    attempt: int = number(5)
    weights_digest: str = number(6)
    kv_dtype: str = number(7)
    why: Why | None = number(8, default=None)


@message(event=5)
class RegionsFound:
    """The regions that belong to the asker from now on, by their start; it releases those that it cannot use.

    Their generations are new: their holders before can neither commit nor release them any more.
    """

    ticket: int = number(1)
    regions: tuple[KeptRegion, ...] = number(2, default=())


@message(event=7)
class RegionsRevoked:
    """Another attempt claimed these regions: their handles with these generations name nothing any more."""

    handle: I64 = number(1, default_factory=i64)
    generation: I64 = number(2, default_factory=i64)


@message(command=6, about=Subject.NOTHING)
class SendRegions:
    """Copy the asker's committed regions of `key` that `to` does not have yet to that kvstore, of another node.

    An instance there claims them with `FindRegions`. The asker's own stay what they are.
    """

    ticket: int = number(1)
    key: str = number(2)
    to: Address = number(3)
    priority: Priority = number(4, default=Priority.KV)
    why: Why | None = number(5, default=None)


@message(event=6)
class RegionsSent:
    """What of the key lies at the other kvstore now, in tokens from 0 on; `detail` says what stopped the rest."""

    ticket: int = number(1)
    tokens: int = number(2)
    detail: str = number(3, default="")
