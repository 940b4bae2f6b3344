"""The state of one outgoing migration: its stage and the location of the KV. Sends and decides nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from dunlin.effects import Address
from dunlin.messages.engine import EngineReady
from dunlin.messages.group import PeerRoom
from dunlin.messages.types import Why
from services.instance.sequence.sequence import Sequence


class MigrationStage(Enum):
    """The stages of a migration. `HANDED`: the dispatcher got `Ready`; its next attempt decides."""

    REACHING = "no stream to the target"
    RESERVING = "no answer about room"
    COPYING = "copying"
    SWITCHING = "copying the tail"
    HANDED = "no next attempt"


@dataclass(frozen=True, slots=True)
class MigrateOutTimeout:
    """The migration has been in one stage for too long, unless a newer timer runs."""

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


@dataclass(slots=True)
class LayerPush:
    """A copy behind `step`, which computes the KV of the tokens before `stop`: each layer leaves once the step has
    finished it. `is_void`: the row left that step, so that what was written is no KV of the sequence.
    """

    ticket: int
    step: int
    stop: int
    is_void: bool = False


@dataclass(slots=True, eq=False)
class OutgoingMigration:
    """One sequence on its way. KV of the first `requested` tokens is to be copied out, of the first `offered` it was
    offered to the target, of the first `filled` it lies there. `notified` is the dispatcher that got `Ready`.

    `copying_stopped`: no more can be filled; the target computes what is missing, or (`needs_kv`) the sequence stays.
    `is_between_nodes`: the kvstores copy regions to the target's node. `room` are the target's slots where this node's
    engine can write them, unless what is left goes `by_host_tier`; `copy_ticket` is the copy into them that is under
    way, 0 without one. `is_target_silent`: it was not reached, or did not answer, within a stage. `pushes`: KV is
    copied layer by layer while a step computes it; `push` is the last such copy.
    """

    number: int
    sequence: Sequence
    target: Address
    why: Why | None
    on_end: OnMigrationEnd
    needs_kv: bool = False
    pushes: bool = False
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
    room: PeerRoom | None = None
    by_host_tier: bool = False
    copy_ticket: int = 0
    is_target_silent: bool = False
    push: LayerPush | None = None

    def offer_by_host_tier(self, tokens: int) -> None:
        """The target is offered regions of the host tier up to a token; what follows goes the same way."""
        self.offered, self.by_host_tier = tokens, True

    @property
    def wanted_tokens(self) -> int:
        """Tokens whose KV is worth having at the target, now."""
        return max(self.sequence.valid, self.sequence.kept_tokens)

    @property
    def awaits_prompt(self) -> bool:
        """Whether a step still computes the sequence's prompt: until it ends there is no more to copy."""
        return self.sequence.in_steps > 0 and self.sequence.valid < len(self.sequence.place.tokens)
