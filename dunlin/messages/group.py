"""Instance ↔ instance: room for somebody else's regions, in bulk, ahead of steps. Cores answer, not engines."""

from dataclasses import dataclass

from dunlin.messages.types import Why


@dataclass(frozen=True, slots=True)
class Reserve:
    """Set slots aside for `tokens` tokens of the sender's sequence, for layers `[layer_start, layer_stop)`."""

    sequence: int
    tokens: int
    layer_start: int
    layer_stop: int
    epoch: int
    plan_version: int
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class Reserved:
    """The room is set aside under `handle` until released or filled."""

    sequence: int
    handle: int


@dataclass(frozen=True, slots=True)
class ReserveRefused:
    """No room, or the order is stale."""

    sequence: int
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Give the room under `handle` back."""

    handle: int


GROUP_COMMANDS = (Reserve, Release)
GROUP_EVENTS = (Reserved, ReserveRefused)

__all__ = ["GROUP_COMMANDS", "GROUP_EVENTS", "Release", "Reserve", "ReserveRefused", "Reserved"]
