"""Instance ↔ instance: room for somebody else's regions, in bulk, ahead of steps. Cores answer, not engines.

Whoever needs a peer dials it; either side may then ask on the one stream that joins them. `Reach` is local: it asks
this process's own dialing for such a stream and never crosses a wire.
"""

from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.types import KeptRegion, Why


@dataclass(frozen=True, slots=True)
class Reserve:
    """Set slots aside for `tokens` tokens of the sender's sequence, for layers `[layer_start, layer_stop)`.

    `key`, `dispatcher`, `request` and `attempt` name whose tokens come; only a newer attempt of that request may start
    from them. `longest` is what the sequence may grow to.
    """

    sequence: int
    tokens: int
    layer_start: int
    layer_stop: int
    epoch: int
    plan_version: int
    why: Why | None = None
    key: str = ""
    dispatcher: Address | None = None
    request: int = 0
    attempt: int = 0
    longest: int = 0
    weights_digest: str = ""
    kv_dtype: str = ""


@dataclass(frozen=True, slots=True)
class Reserved:
    """The room is set aside under `handle` until released or used. `keeper` is the kvstore that it fills from."""

    sequence: int
    handle: int
    keeper: Address | None = None


@dataclass(frozen=True, slots=True)
class ReserveRefused:
    """No room, or the order is stale."""

    sequence: int
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class Fill:
    """Copy the host regions that cover tokens up to `tokens`, after those filled before, into the room.

    `keeper` is the kvstore that has them; where it is another node's than the sender's, `regions` is empty and the
    receiver claims them there by the key.
    """

    handle: int
    tokens: int
    regions: tuple[KeptRegion, ...] = ()
    keeper: Address | None = None


@dataclass(frozen=True, slots=True)
class Filled:
    """The first `tokens` tokens' KV lie in the room. Fewer than were sent: `detail` says why, and no more can come."""

    handle: int
    tokens: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Release:
    """Give the room under `handle` back."""

    handle: int


@dataclass(frozen=True, slots=True)
class Vacated:
    """The receiver lost the room (its engine is gone, or nobody filled or used it in time)."""

    handle: int
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class Reach:
    """To `Address("dialing", "")`: open a stream to `peer` unless there is one. `Joined` or nothing answers."""

    peer: Address


GROUP_COMMANDS = (Reserve, Release, Fill, Reserved, ReserveRefused, Filled, Vacated)
GROUP_EVENTS = (Reserved, ReserveRefused, Filled, Vacated, Reserve, Release, Fill)

__all__ = [
    "GROUP_COMMANDS",
    "GROUP_EVENTS",
    "Fill",
    "Filled",
    "Reach",
    "Release",
    "Reserve",
    "ReserveRefused",
    "Reserved",
    "Vacated",
]
