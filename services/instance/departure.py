"""One sequence on its way to another instance: how far it is, and what lies where. Sends and decides nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from dunlin.effects import Address
from dunlin.messages.engine import EngineReady
from dunlin.messages.types import Why
from services.instance.sequences import Sequence


class Stage(Enum):
    """How far a departure is. `HANDED`: the dispatcher was told; its next attempt decides."""

    REACHING = "no stream to the target"
    RESERVING = "no answer about room"
    COPYING = "copying"
    SWITCHING = "copying the tail"
    HANDED = "no next attempt"


@dataclass(frozen=True, slots=True)
class DepartureDue:
    """The departure has been in one stage for too long, unless a newer timer runs."""

    number: int
    counter: int


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a stage may last without progress; how many tokens may be left to copy when the row stops."""

    stage_s: float = 5.0
    tail_tokens: int = 32


@dataclass(frozen=True, slots=True)
class Sender:
    """What the target must know of this instance: its engine and the plan that it follows."""

    ready: EngineReady
    epoch: int
    plan_version: int


Ended = Callable[["Departure", str], None]
"""Told once per departure: why the sequence stays, or nothing when it left."""


@dataclass(slots=True, eq=False)
class Departure:
    """One sequence on its way. `asked` tokens were to be copied out, `sent` offered to the target, `filled` lie there;
    `told` is who heard `Ready`.

    `is_cut`: no more can be filled; what is missing is computed at the target, or (`needs_kv`) the sequence stays.
    `is_crossing`: the kvstores are at it.
    """

    number: int
    sequence: Sequence
    target: Address
    why: Why | None
    ended: Ended
    needs_kv: bool = False
    stage: Stage = Stage.REACHING
    counter: int = 0
    handle: int = 0
    keeper: Address | None = None
    told: Address | None = None
    asked: int = 0
    sent: int = 0
    filled: int = 0
    is_cut: bool = False
    is_crossing: bool = False

    @property
    def wanted(self) -> int:
        """Tokens whose KV is worth having at the target, now."""
        return max(self.sequence.answered, self.sequence.kept_tokens)
