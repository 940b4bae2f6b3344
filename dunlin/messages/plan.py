"""Global manager ↔ instance: which group an instance is in, which sequences move away; and what tools ask a manager.

Orders are ordered by (epoch, plan version), moves by (epoch, ticket); older ones change nothing.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from dunlin.effects import Address
from dunlin.messages.types import I32, GroupKind, Part, Why, i32


@dataclass(frozen=True, slots=True)
class Order:
    """Be `part` of group `group`, whose members step together in this order; the first is the leader.

    `layers` empty means: hold every layer.
    """

    epoch: int
    plan_version: int
    group: int
    kind: GroupKind
    part: Part
    members: tuple[Address, ...]
    layers: I32 = field(default_factory=i32)
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class OrderDone:
    """The member is what the order says."""

    epoch: int
    plan_version: int


@dataclass(frozen=True, slots=True)
class OrderRefused:
    """The order was stale or asks for what the member cannot do; it stays what it was."""

    epoch: int
    plan_version: int
    reason: str
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class Shed:
    """Move sequences that hold (or wait for) about `slots` slots to `target`, while they run.

    The instance chooses which: the cheapest to move first. `ticket` numbers the moves of a term.
    """

    epoch: int
    ticket: int
    target: Address
    slots: int
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class ShedDone:
    """Every sequence that was chosen has left, ended, or stays after all; `detail` says why those stay."""

    epoch: int
    ticket: int
    moved: int = 0
    moved_slots: int = 0
    stayed: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Drain:
    """Take nothing new from now on, until `Undrain`; what runs goes on, and leaves by `Shed`."""

    epoch: int
    ticket: int
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class Undrain:
    """Take requests again."""

    epoch: int
    ticket: int
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """An instance that may take sequences over, and the slots that were free there when the manager looked."""

    address: Address
    free_slots: int
    capacity_slots: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """Hand sequences over to one of these once they have their first token; a newer one of the term replaces it.

    Empty: nobody takes any. It is not answered: what leaves is seen in the reports.
    """

    epoch: int
    ticket: int
    rooms: tuple[Room, ...] = ()
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class DrainDone:
    """Whether the instance drains now; `detail` is not empty when it did not do what it was told."""

    epoch: int
    ticket: int
    draining: bool
    detail: str = ""


class DrainOutcome(IntEnum):
    """What a manager says to a tool that wants an instance drained."""

    ORDERED = 0
    ALREADY = 1
    NOT_LEADER = 2
    UNKNOWN_INSTANCE = 3
    NOWHERE_TO_GO = 4


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """A tool's wish: empty the instance called `instance`, or (`undo`) let it take requests again."""

    instance: str
    undo: bool = False


@dataclass(frozen=True, slots=True)
class DrainReply:
    """What became of the wish; progress is the instance's own report. `others` may take what it holds."""

    outcome: DrainOutcome
    detail: str = ""
    instance: Address | None = None
    others: tuple[Address, ...] = ()


PLAN_COMMANDS = (Order, Shed, Drain, Undrain, HandOver)
PLAN_EVENTS = (OrderDone, OrderRefused, ShedDone, DrainDone)

__all__ = [
    "PLAN_COMMANDS",
    "PLAN_EVENTS",
    "Drain",
    "DrainDone",
    "DrainOutcome",
    "DrainReply",
    "DrainRequest",
    "HandOver",
    "Order",
    "OrderDone",
    "OrderRefused",
    "Room",
    "Shed",
    "ShedDone",
    "Undrain",
]
