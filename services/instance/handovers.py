"""A prefill instance's side of a split: each sequence leaves for a decode instance once it has its first token.

Until it is there its row waits, so that steps here are prompts' alone; where no decode instance has room, sequences
wait in their slots, and those in turn hold newcomers back. Nobody waits for longer than `hold_s`: then it goes on here.
Knows no copy and no slot table: how a sequence leaves, `departures.py` knows; and of the others what the manager says.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dunlin.effects import Address, After, Effect
from dunlin.handlers import handles
from dunlin.messages.plan import HandOver, Room
from dunlin.messages.types import Part
from dunlin.policies.handover import Candidate, HandoverPolicy, stay
from services.instance.departure import Departure, Stage
from services.instance.departures import NOT_COPIED, Departures
from services.instance.orders import Orders
from services.instance.sequences import Sequence, Sequences, State

FAILURES_MOST = 4
"""So many departures of one sequence may fail after they had room before it stays."""

OVER = (State.ENDING, State.ENDED)


@dataclass(frozen=True, slots=True)
class HoldOver:
    """The sequence of this `order` has waited long enough."""

    order: int


@dataclass(frozen=True, slots=True)
class PauseOver:
    """The instance that had no room may be asked again, unless a newer timer runs."""

    address: Address
    counter: int


@dataclass(frozen=True, slots=True)
class Limits:
    """How many leave at once; the longest wait of a row; how long one that refused is left alone; the slots that a
    sequence is given beyond its tokens."""

    most: int
    hold_s: float
    pause_s: float
    tail_tokens: int


@dataclass(slots=True)
class Taker:
    """A decode instance. `promised` slots of its room are for those on their way; `pause` numbers its pause."""

    room: Room
    promised: int = 0
    pause: int | None = None


@dataclass(slots=True)
class Wait:
    """A sequence that is to leave. `stays`: it goes on here after all."""

    stays: bool = False
    failures: int = 0


class Handovers:
    """Owns whom it may hand over to and who waits for that. `stale_total` counts words of older terms."""

    def __init__(
        self,
        sequences: Sequences,
        departures: Departures,
        policy: HandoverPolicy,
        limits: Limits,
        orders: Orders,
        can_copy: Callable[[], bool],
    ) -> None:
        self.stale_total = 0
        self._sequences = sequences
        self._departures = departures
        self._policy = policy
        self._limits = limits
        self._orders = orders
        self._can_copy = can_copy
        self._takers: dict[Address, Taker] = {}
        self._waits: dict[Sequence, Wait] = {}
        self._untimed: list[PauseOver] = []
        self._pauses = 0
        self._newest = (0, 0)

    @property
    def is_on(self) -> bool:
        """Whether sequences leave after their first token."""
        is_split = bool(self._takers) and self._orders.part is Part.PREFILL
        return is_split and self._policy is not stay and self._can_copy()

    @handles
    def hand_over(self, now_s: float, sender: Address, order: HandOver) -> list[Effect]:
        """Who may take sequences over from now on."""
        name = (order.epoch, order.ticket)
        if name < max(self._newest, (self._orders.epoch, 0)):
            self.stale_total += 1
            return []
        self._newest = name
        known = self._takers
        self._takers = {room.address: known.get(room.address) or Taker(room) for room in order.rooms}
        for room in order.rooms:
            self._takers[room.address].room = room
        return []

    def may_run(self, running: list[Sequence]) -> list[Sequence]:
        """Who of them may have a row: not those that wait to be handed over."""
        if not self.is_on:
            return running
        return [sequence for sequence in running if not self._holds(sequence)]

    def settle(self) -> list[Effect]:
        """Begin with whoever has its first token."""
        effects = self._pause_refusers()
        for sequence in [sequence for sequence in self._waits if sequence.state in OVER]:
            del self._waits[sequence]
        if not self.is_on:
            return effects
        for sequence in self._sequences.running:
            if not self._is_due(sequence):
                continue
            if sequence not in self._waits:
                self._waits[sequence] = Wait()
                effects.append(After(self._limits.hold_s, HoldOver(sequence.order)))
            if not self._waits[sequence].stays and len(self._departures) < self._limits.most:
                effects += self._begin(sequence)
        return effects

    @handles
    def hold_over(self, now_s: float, sender: Address, due: HoldOver) -> list[Effect]:
        """It has waited for long enough; what is under way already may still end well."""
        for sequence, wait in self._waits.items():
            wait.stays |= sequence.order == due.order
        return []

    @handles
    def pause_over(self, now_s: float, sender: Address, due: PauseOver) -> list[Effect]:
        """Ask that one again."""
        taker = self._takers.get(due.address)
        if taker is not None and taker.pause == due.counter:
            taker.pause = None
        return []

    def _is_due(self, sequence: Sequence) -> bool:
        """Whether all its KV but the last token's is computed, or will be by the steps that are outstanding."""
        return sequence.has_sampled and sequence.remaining == 1 and not self._departures.has(sequence)

    def _holds(self, sequence: Sequence) -> bool:
        """Whether its row waits. One that has more than its first token decoded here before, and goes on meanwhile."""
        wait = self._waits.get(sequence)
        is_first = sequence.length == len(sequence.place.tokens) + 1
        return is_first and sequence.remaining == 1 and (wait is None or not wait.stays)

    def _begin(self, sequence: Sequence) -> list[Effect]:
        slots = len(sequence.tokens) + self._limits.tail_tokens
        takers = [taker for taker in self._takers.values() if taker.pause is None]
        candidates = [_candidate(taker) for taker in takers]
        choice = self._policy(slots, candidates)
        if choice is None:
            return []
        taker = takers[choice.index]
        taker.promised += slots

        def ended(departure: Departure, stays: str) -> None:
            taker.promised -= slots
            if stays and sequence.state not in OVER:
                self._stayed(sequence, departure, taker, stays)

        return self._departures.start(sequence, taker.room.address, choice.why, ended, needs_kv=True)

    def _stayed(self, sequence: Sequence, departure: Departure, taker: Taker, reason: str) -> None:
        """It could not leave for there: others may be asked at once, that one after a pause."""
        wait = self._waits.get(sequence)
        if wait is not None and reason == NOT_COPIED:
            wait.stays = True
            return
        if wait is not None and departure.stage not in (Stage.REACHING, Stage.RESERVING):
            wait.failures += 1
            wait.stays |= wait.failures >= FAILURES_MOST
        if taker.pause is None:
            self._pauses += 1
            taker.pause = self._pauses
            self._untimed.append(PauseOver(taker.room.address, taker.pause))

    def _pause_refusers(self) -> list[Effect]:
        if not self._untimed:
            return []
        pauses, self._untimed = self._untimed, []
        return [After(self._limits.pause_s, over) for over in pauses]


def _candidate(taker: Taker) -> Candidate:
    room = taker.room
    return Candidate(room.address.name, room.capacity_slots, room.free_slots - taker.promised)
