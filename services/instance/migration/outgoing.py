"""One sequence on its way to another instance: how far it is, and what lies where. Sends and decides nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from dunlin.effects import Address
from dunlin.messages.engine import EngineReady
from dunlin.messages.types import Why
from services.instance.sequence.table import Sequence


class MigrationStage(Enum):
    """How far a departure is. `HANDED`: the dispatcher was told; its next attempt decides."""

    REACHING = "no stream to the target"
    RESERVING = "no answer about room"
    COPYING = "copying"
    SWITCHING = "copying the tail"
    HANDED = "no next attempt"


@dataclass(frozen=True, slots=True)
class MigrateOutTimeout:
    """The departure has been in one stage for too long, unless a newer timer runs."""

    number: int
    counter: int


@dataclass(frozen=True, slots=True)
class MigrationLimits:
    """How long a stage may last without progress; how many tokens may be left to copy when the row stops."""

    stage_s: float = 5.0
    tail_tokens: int = 32


@dataclass(frozen=True, slots=True)
class MigrationSource:
    """What the target must know of this instance: its engine and the plan that it follows."""

    ready: EngineReady
    epoch: int
    plan_version: int


OnMigrationEnd = Callable[["OutgoingMigration", str], None]
"""Called once per migration: why the sequence stays, or nothing when it left."""


@dataclass(slots=True, eq=False)
class OutgoingMigration:
    """One sequence on its way. `asked` tokens were to be copied out, `sent` offered to the target, `filled` lie there;
    `told` is who heard `Ready`.

    `is_cut`: no more can be filled; what is missing is computed at the target, or (`needs_kv`) the sequence stays.
    `is_crossing`: the kvstores are at it.
    """

    number: int
    sequence: Sequence
    target: Address
    why: Why | None
    on_end: OnMigrationEnd
    needs_kv: bool = False
    stage: MigrationStage = MigrationStage.REACHING
    counter: int = 0
    handle: int = 0
    target_kvstore: Address | None = None
    notified: Address | None = None
    requested: int = 0
    offered: int = 0
    filled: int = 0
    copying_stopped: bool = False
    is_between_nodes: bool = False

    @property
    def wanted_tokens(self) -> int:
        """Tokens whose KV is worth having at the target, now."""
        return max(self.sequence.confirmed, self.sequence.kept_tokens)
