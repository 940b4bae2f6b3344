"""Global manager ↔ instance: which group an instance is in.

Orders are ordered by (epoch, plan version); older ones change nothing.
"""

from dataclasses import dataclass, field

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


PLAN_COMMANDS = (Order,)
PLAN_EVENTS = (OrderDone, OrderRefused)

__all__ = ["PLAN_COMMANDS", "PLAN_EVENTS", "Order", "OrderDone", "OrderRefused"]
