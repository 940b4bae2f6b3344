"""Hand-off of a prefill instance: each sequence migrates to a decode instance after its first token.

Until the migration ends the sequence has no row, so that steps here hold prompts alone. Where no decode instance has
room, sequences wait in their slots, and new prompts wait for slots. No sequence waits for longer than `hold_s`: it then
decodes here. Knows no copy and no slot table (`migrate_out.py` does), and of other instances what the manager says.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dunlin.cores.handlers import handles
from dunlin.effects import Address, After, Effect
from dunlin.messages.plan import Handoff, HandoffTarget
from dunlin.messages.types import GroupRole
from dunlin.policies.handoff import HandoffCandidate, HandoffPolicy, stay_local
from services.instance.migration.migrate_out import NOT_COPIED, MigrateOut
from services.instance.migration.outgoing import MigrationStage, OutgoingMigration
from services.instance.scheduling.group_orders import GroupOrders
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable

MAX_FAILURES = 4
"""So many migrations of one sequence may fail after the target reserved room; then the sequence stays."""

END_STATES = (SequenceState.ENDING, SequenceState.ENDED)


@dataclass(frozen=True, slots=True)
class HandoffHoldExpired:
    """The sequence of this `order` has waited long enough."""

    order: int


@dataclass(frozen=True, slots=True)
class TargetPauseExpired:
    """The target that had no room may be chosen again, unless a newer timer runs."""

    address: Address
    counter: int


@dataclass(frozen=True, slots=True)
class HandoffLimits:
    """How many leave at once; the longest wait of a row; how long one that refused is left alone; the slots that a
    sequence is given beyond its tokens; whether KV is copied layer by layer while the prompt is computed."""

    most: int
    hold_s: float
    pause_s: float
    tail_tokens: int
    layer_by_layer: bool = True


@dataclass(slots=True)
class DecodeTarget:
    """A decode instance. `promised_slots` are for hand-offs under way; `pause` numbers its pause, None without one."""

    newest: HandoffTarget
    promised_slots: int = 0
    pause: int | None = None


@dataclass(slots=True)
class PendingHandoff:
    """A sequence to hand off. `stays`: it decodes here after all."""

    stays: bool = False
    failures: int = 0


class KvHandoffs:
    """Owns the decode targets, the waiting sequences and the number under way, beside which the manager may evacuate
    others. `stale_total` counts messages of older terms.
    """

    def __init__(
        self,
        sequences: SequenceTable,
        migrate_out: MigrateOut,
        policy: HandoffPolicy,
        limits: HandoffLimits,
        group_orders: GroupOrders,
        can_copy: Callable[[], bool],
    ) -> None:
        self.stale_total = 0
        self._sequences = sequences
        self._migrate_out = migrate_out
        self._policy = policy
        self._limits = limits
        self._group_orders = group_orders
        self._can_copy = can_copy
        self._targets: dict[Address, DecodeTarget] = {}
        self._pending: dict[Sequence, PendingHandoff] = {}
        self._untimed: list[TargetPauseExpired] = []
        self._pauses = 0
        self._leaving = 0
        self._newest = (0, 0)

    @property
    def is_on(self) -> bool:
        """Whether sequences leave after their first token."""
        is_split = bool(self._targets) and self._group_orders.role is GroupRole.PREFILL
        return is_split and self._policy is not stay_local and self._can_copy()

    @handles
    def set_targets(self, now_s: float, sender: Address, order: Handoff) -> list[Effect]:
        """Replace the decode instances that may receive sequences."""
        name = (order.epoch, order.ticket)
        if name < max(self._newest, (self._group_orders.epoch, 0)):
            self.stale_total += 1
            return []
        self._newest = name
        known = self._targets
        self._targets = {room.address: known.get(room.address) or DecodeTarget(room) for room in order.rooms}
        for room in order.rooms:
            self._targets[room.address].newest = room
        return []

    def runnable(self, running: list[Sequence]) -> list[Sequence]:
        """The sequences of `running` that may have a row: all but those that wait for a hand-off."""
        if not self.is_on:
            return running
        return [sequence for sequence in running if not self._is_held(sequence)]

    def start_handoffs(self) -> list[Effect]:
        """Start the hand-off of each sequence that has its first token."""
        effects = self._start_pauses()
        for sequence in [sequence for sequence in self._pending if sequence.state in END_STATES]:
            del self._pending[sequence]
        if not self.is_on:
            return effects
        for sequence in self._sequences.running:
            if not self._is_due(sequence):
                continue
            if sequence not in self._pending:
                self._pending[sequence] = PendingHandoff()
                effects.append(After(self._limits.hold_s, HandoffHoldExpired(sequence.order)))
            if not self._pending[sequence].stays and self._leaving < self._limits.most:
                effects += self._start_one(sequence)
        return effects

    @handles
    def on_hold_expired(self, now_s: float, sender: Address, due: HandoffHoldExpired) -> list[Effect]:
        """The sequence has waited for `hold_s`, or its prompt still takes; a started migration may still complete."""
        for sequence, wait in self._pending.items():
            if sequence.order != due.order:
                continue
            if sequence.valid < len(sequence.place.tokens):
                return [After(self._limits.hold_s, due)]
            wait.stays = True
        return []

    @handles
    def on_pause_expired(self, now_s: float, sender: Address, due: TargetPauseExpired) -> list[Effect]:
        """The pause of one decode instance is over: it is a candidate again."""
        target = self._targets.get(due.address)
        if target is not None and target.pause == due.counter:
            target.pause = None
        return []

    def _is_due(self, sequence: Sequence) -> bool:
        """Whether all its KV but the last token's is computed, or will be by the steps that are outstanding."""
        return sequence.has_sampled and sequence.remaining == 1 and not self._migrate_out.is_migrating(sequence)

    def _is_held(self, sequence: Sequence) -> bool:
        """Whether its row waits. One that has more than its first token decoded here before, and goes on meanwhile."""
        wait = self._pending.get(sequence)
        is_first = sequence.length == len(sequence.place.tokens) + 1
        return is_first and sequence.remaining == 1 and (wait is None or not wait.stays)

    def _start_one(self, sequence: Sequence) -> list[Effect]:
        slots = len(sequence.tokens) + self._limits.tail_tokens
        targets = [target for target in self._targets.values() if target.pause is None]
        candidates = [_candidate(target) for target in targets]
        choice = self._policy(slots, candidates)
        if choice is None:
            return []
        target = targets[choice.index]
        target.promised_slots += slots
        self._leaving += 1

        def ended(migration: OutgoingMigration, stays: str) -> None:
            target.promised_slots -= slots
            self._leaving -= 1
            if stays and sequence.state not in END_STATES:
                self._handoff_failed(sequence, migration, target, stays)

        pushes = self._limits.layer_by_layer
        return self._migrate_out.start(sequence, target.newest.address, choice.why, ended, needs_kv=True, pushes=pushes)

    def _handoff_failed(
        self, sequence: Sequence, migration: OutgoingMigration, target: DecodeTarget, reason: str
    ) -> None:
        """The migration failed: other targets may be chosen at once, this one after a pause."""
        wait = self._pending.get(sequence)
        if wait is not None and reason == NOT_COPIED:
            wait.stays = True
            return
        if wait is not None and migration.stage not in (MigrationStage.REACHING, MigrationStage.RESERVING):
            wait.failures += 1
            wait.stays |= wait.failures >= MAX_FAILURES
        if target.pause is None:
            self._pauses += 1
            target.pause = self._pauses
            self._untimed.append(TargetPauseExpired(target.newest.address, target.pause))

    def _start_pauses(self) -> list[Effect]:
        if not self._untimed:
            return []
        pauses, self._untimed = self._untimed, []
        return [After(self._limits.pause_s, over) for over in pauses]


def _candidate(target: DecodeTarget) -> HandoffCandidate:
    room = target.newest
    return HandoffCandidate(room.address.name, room.capacity_slots, room.free_slots - target.promised_slots)
