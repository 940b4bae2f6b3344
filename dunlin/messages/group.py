"""Instance ↔ instance: room for a peer's regions, in bulk, ahead of steps. Cores answer, not engines.

The instance that needs a peer dials it; either side may then ask on the one stream that joins them. `DialPeer` is
local: it asks this process's own dialing for such a stream and never crosses a wire.
"""

from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.declare import Parties, Subject, message, number
from dunlin.messages.types import I64, KeptRegion, Region, Why

PARTIES = Parties("Group", dialers=("instance",), acceptor="instance")


@message(command=2, event=6, about=Subject.DISPATCHERS_REQUEST)
class Reserve:
    """Set slots aside for `tokens` tokens of the sender's sequence, for layers `[layer_start, layer_stop)`.

    `key`, `dispatcher`, `request` and `attempt` name the attempt that the tokens belong to; only a newer attempt of
    that request may start from them. `longest` is what the sequence may grow to.
    """

    sequence: int = number(1)
    tokens: int = number(2)
    layer_start: int = number(3)
    layer_stop: int = number(4)
    epoch: int = number(5)
    plan_version: int = number(6)
    why: Why | None = number(7, default=None)
    key: str = number(8, default="")
    dispatcher: Address | None = number(9, default=None)
    request: int = number(10, default=0)
    attempt: int = number(11, default=0)
    longest: int = number(12, default=0)
    weights_digest: str = number(13, default="")
    kv_dtype: str = number(14, default="")


@message()
class PeerRoom:
    """Where reserved slots lie, for an engine of the same node that writes straight into them.

    The extents name slots of `engine` in order of position, in its `layout`; `agent` is what it said of its memory.
    """

    engine: Address = number(1)
    agent: bytes = number(2)
    layout: int = number(3)
    extent_start: I64 = number(4)
    extent_length: I64 = number(5)


@message(command=5, event=2)
class Reserved:
    """The room is set aside under `handle` until released or used. `keeper` is the kvstore that it fills from.

    A sender that was told a `room` may write into it until it says `Release`, whatever became of the handle.
    """

    sequence: int = number(1)
    handle: int = number(2)
    keeper: Address | None = number(3, default=None)
    room: PeerRoom | None = number(4, default=None)


@message(command=6, event=3, about=Subject.NOTHING)
class ReserveRefused:
    """No room, or the order is stale."""

    sequence: int = number(1)
    why: Why | None = number(2, default=None)


@message(command=4, event=8)
class Fill:
    """Copy the host regions that cover tokens up to `tokens`, after those filled before, into the room.

    `keeper` is the kvstore that has them; where it is another node's than the sender's, `regions` is empty and the
    receiver claims them there by the key.
    """

    handle: int = number(1)
    tokens: int = number(2)
    regions: tuple[KeptRegion, ...] = number(3, default=())
    keeper: Address | None = number(4, default=None)


@message(command=9, event=9)
class Written:
    """The sender's engine has written the KV of `region` into the room; `Filled` answers once the receiver's has
    compared what lies there with `checksum`. `chain` names the tokens up to the region's end.
    """

    handle: int = number(1)
    region: Region = number(2)
    checksum: int = number(3)
    chain: bytes = number(4)


@message(command=7, event=4)
class Filled:
    """The first `tokens` tokens' KV lie in the room. Fewer than were sent: `detail` says why, and no more can come."""

    handle: int = number(1)
    tokens: int = number(2)
    detail: str = number(3, default="")


@message(command=3, event=7)
class Release:
    """Give the room under `handle` back."""

    handle: int = number(1)


@message(command=8, event=5, about=Subject.NOTHING)
class ReservationLost:
    """The receiver lost the room (its engine is gone, or it was not filled or used in time)."""

    handle: int = number(1)
    why: Why | None = number(2, default=None)


DIALING = Address("dialing", "")
"""Where a core sends `DialPeer`: the dialer of its own process."""


@dataclass(frozen=True, slots=True)
class DialPeer:
    """To `DIALING`: open a stream to `peer` unless there is one. `Joined` or nothing answers."""

    peer: Address
