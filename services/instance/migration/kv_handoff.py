"""A prefill instance's side of a split: each sequence leaves for a decode instance once it has its first token.

Until it is there its row waits, so that steps here are prompts' alone; where no decode instance has room, sequences
wait in their slots, and those in turn hold newcomers back. Nobody waits for longer than `hold_s`: then it goes on here.
Knows no copy and no slot table: how a sequence leaves, `departures.py` knows; and of the others what the manager says.
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
from services.instance.sequence.table import Sequence, SequenceState, SequenceTable

MAX_FAILURES = 4
"""So many departures of one sequence may fail after they had room before it stays."""

END_STATES = (SequenceState.ENDING, SequenceState.ENDED)


@dataclass(frozen=True, slots=True)
class HandoffHoldExpired:
    """The sequence of this `order` has waited long enough."""

    order: int


@dataclass(frozen=True, slots=True)
class TargetPauseExpired:
    """The instance that had no room may be asked again, unless a newer timer runs."""

    address: Address
    counter: int


@dataclass(frozen=True, slots=True)
class HandoffLimits:
    """How many leave at once; the longest wait of a row; how long one that refused is left alone; the slots that a
    sequence is given beyond its tokens."""

    most: int
    hold_s: float
    pause_s: float
    tail_tokens: int


@dataclass(slots=True)
class DecodeTarget:
    """A decode instance. `promised` slots of its room are for those on their way; `pause` numbers its pause."""

    target: HandoffTarget
    promised_slots: int = 0
    pause: int | None = None


@dataclass(slots=True)
class PendingHandoff:
    """A sequence that is to leave. `stays`: it goes on here after all."""

    stays: bool = False
    failures: int = 0


class KvHandoffs:
    """Owns whom it may hand over to and who waits for that. `stale_total` counts words of older terms."""

    def __init__(
        self,
        sequences: SequenceTable,
        departures: MigrateOut,
        policy: HandoffPolicy,
        limits: HandoffLimits,
        orders: GroupOrders,
        can_copy: Callable[[], bool],
    ) -> None:
        self.stale_total = 0
        self._sequences = sequences
        self._migrate_out = departures
        self._policy = policy
        self._limits = limits
        self._orders = orders
        self._can_copy = can_copy
        self._targets: dict[Address, DecodeTarget] = {}
        self._pending: dict[Sequence, PendingHandoff] = {}
        self._untimed: list[TargetPauseExpired] = []
        self._pauses = 0
        self._newest = (0, 0)

    @property
    def is_on(self) -> bool:
        """Whether sequences leave after their first token."""
        is_split = bool(self._targets) and self._orders.role is GroupRole.PREFILL
        return is_split and self._policy is not stay_local and self._can_copy()

    @handles
    def set_targets(self, now_s: float, sender: Address, order: Handoff) -> list[Effect]:
        """Who may take sequences over from now on."""
        name = (order.epoch, order.ticket)
        if name < max(self._newest, (self._orders.epoch, 0)):
            self.stale_total += 1
            return []
        self._newest = name
        known = self._targets
        self._targets = {room.address: known.get(room.address) or DecodeTarget(room) for room in order.rooms}
        for room in order.rooms:
            self._targets[room.address].target = room
        return []

    def runnable(self, running: list[Sequence]) -> list[Sequence]:
        """Who of them may have a row: not those that wait to be handed over."""
        if not self.is_on:
            return running
        return [sequence for sequence in running if not self._is_held(sequence)]

    def start_handoffs(self) -> list[Effect]:
        """Begin with whoever has its first token."""
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
            if not self._pending[sequence].stays and len(self._migrate_out) < self._limits.most:
                effects += self._start_one(sequence)
        return effects

    @handles
    def on_hold_expired(self, now_s: float, sender: Address, due: HandoffHoldExpired) -> list[Effect]:
        """It has waited for long enough; what is under way already may still end well."""
        for sequence, wait in self._pending.items():
            wait.stays |= sequence.order == due.order
        return []

    @handles
    def on_pause_expired(self, now_s: float, sender: Address, due: TargetPauseExpired) -> list[Effect]:
        """Ask that one again."""
        taker = self._targets.get(due.address)
        if taker is not None and taker.pause == due.counter:
            taker.pause = None
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
        takers = [taker for taker in self._targets.values() if taker.pause is None]
        candidates = [_candidate(taker) for taker in takers]
        choice = self._policy(slots, candidates)
        if choice is None:
            return []
        taker = takers[choice.index]
        taker.promised_slots += slots

        def ended(departure: OutgoingMigration, stays: str) -> None:
            taker.promised_slots -= slots
            if stays and sequence.state not in END_STATES:
                self._handoff_failed(sequence, departure, taker, stays)

        return self._migrate_out.start(sequence, taker.target.address, choice.why, ended, needs_kv=True)

    def _handoff_failed(
        self, sequence: Sequence, departure: OutgoingMigration, taker: DecodeTarget, reason: str
    ) -> None:
        """It could not leave for there: others may be asked at once, that one after a pause."""
        wait = self._pending.get(sequence)
        if wait is not None and reason == NOT_COPIED:
            wait.stays = True
            return
        if wait is not None and departure.stage not in (MigrationStage.REACHING, MigrationStage.RESERVING):
            wait.failures += 1
            wait.stays |= wait.failures >= MAX_FAILURES
        if taker.pause is None:
            self._pauses += 1
            taker.pause = self._pauses
            self._untimed.append(TargetPauseExpired(taker.target.address, taker.pause))

    def _start_pauses(self) -> list[Effect]:
        if not self._untimed:
            return []
        pauses, self._untimed = self._untimed, []
        return [After(self._limits.pause_s, over) for over in pauses]


def _candidate(taker: DecodeTarget) -> HandoffCandidate:
    room = taker.target
    return HandoffCandidate(room.address.name, room.capacity_slots, room.free_slots - taker.promised_slots)
