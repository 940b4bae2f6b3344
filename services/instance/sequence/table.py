"""The sequences of one instance, by number, by key and in their queues.

A request's attempt is one sequence; whenever it is opened in the engine again, after a preemption, it gets a new
number there.
"""

from collections.abc import Iterator
from itertools import chain
from operator import attrgetter

from dunlin.effects import Address
from dunlin.messages.dispatch import Place
from dunlin.messages.lifecycle import MissCause
from services.instance.sequence.sequence import (
    Sequence,
    SequenceKey,
    Turn,
)
from services.instance.sequence.states import SequenceState
from services.instance.sequence.wait_clock import WaitClock


class SequenceTable:
    """Owns the sequences: by engine number, by key, and in order of arrival, interrupted answers before all others.
    Those of a group are in none of the queues and counts of sequences that wait or run.

    `changes` counts what may let another sequence start: arrivals, and changes of state. `urgent_total` counts those
    that came with a time by which they rise. `now_s` is the time of the event that is being handled; `blocked_s` that
    at which the first of the waiting last found no slots.
    """

    def __init__(self) -> None:
        self._by_number: dict[int, Sequence] = {}
        self._by_key: dict[SequenceKey, Sequence] = {}
        self._waiting: dict[Sequence, None] = {}
        self._running: dict[Sequence, None] = {}
        self._parked: dict[Sequence, None] = {}
        self._restoring: dict[Sequence, None] = {}
        self._leaving: dict[Sequence, None] = {}
        """Those that had a row."""
        self._oldest_first: list[Sequence] | None = []
        self._spread_count = 0
        self.changes = 0
        self.urgent_total = 0
        self.now_s = 0.0
        self.blocked_s = float("-inf")
        self._orders = 0
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._by_number.values())

    def __repr__(self) -> str:
        states = [sequence.state for sequence in self._by_number.values()]
        return (
            "["
            + " | ".join(f"{state.value}: {states.count(state)}" for state in SequenceState if state in states)
            + "]"
        )

    @property
    def running(self) -> list[Sequence]:
        """The sequences that may have rows, oldest first: a list that is never changed, and the same one until a
        sequence's state or dispatcher changes, or its rows leave a step.
        """
        if self._oldest_first is None:
            self._oldest_first = sorted(self._running, key=_queue_position)
        return self._oldest_first

    @property
    def running_count(self) -> int:
        """How many may have rows."""
        return len(self._running)

    @property
    def own_count(self) -> int:
        """How many are the instance's alone."""
        return len(self._by_number) - self._spread_count

    @property
    def parked_count(self) -> int:
        """How many have a parked row."""
        return len(self._parked)

    @property
    def taken_rows(self) -> int:
        """How many have rows, or will once they are resumed or restored, or do not get away."""
        restoring = sum(not sequence.is_restore_cancelled for sequence in self._restoring)
        return len(self._running) + len(self._parked) + len(self._leaving) + restoring

    def parked(self) -> list[Sequence]:
        """The sequences with a parked row, oldest first."""
        return sorted(self._parked, key=_queue_position)

    def running_or_parked(self) -> list[Sequence]:
        """The sequences that hold slots and go on by themselves, oldest first."""
        return sorted([*self._running, *self._parked], key=_queue_position) if self._parked else self.running

    @property
    def newest_order(self) -> int:
        """The `order` of the sequence that came last, gone or not; 0 before the first."""
        return self._orders

    @property
    def waiting_count(self) -> int:
        """How many wait for slots."""
        return len(self._waiting)

    def waiting(self) -> list[Sequence]:
        """The sequences that wait for slots: those that do not give way first; of each kind preempted ones first, then
        in order of arrival.
        """
        return sorted(self._waiting, key=_waiting_turn)

    def first_to_start(self) -> Sequence | None:
        """The first of `waiting` that does not wait for the kvstore; None if there is none."""
        return min((each for each in self._waiting if not each.is_claiming), key=_waiting_turn, default=None)

    def waiting_or_running(self) -> Iterator[Sequence]:
        """The sequences that wait for slots or may have rows, in no order."""
        yield from self._waiting
        yield from self._running

    def waiting_tokens(self) -> int:
        """Tokens that the waiting sequences have to compute or restore."""
        total = 0
        for sequence in self._waiting:
            total += len(sequence.tokens)
        return total

    def batch_work(self) -> tuple[list[Sequence], list[Sequence]]:
        """The sequences that give way: those that wait for slots, and those that run or are parked."""
        holders = chain(self._running, self._parked)
        return [each for each in self._waiting if each.gives_way], [each for each in holders if each.gives_way]

    def rise(self, sequence: Sequence) -> None:
        """A batch sequence gives way no more."""
        sequence.is_risen = True
        self.changed()

    def head_waiting_tokens(self) -> int:
        """Tokens of the first waiting sequence; 0 if none waits."""
        first = min(self._waiting, key=_waiting_turn, default=None)
        return len(first.tokens) if first is not None else 0

    def by_arrival(self) -> list[Sequence]:
        """All sequences, in order of arrival."""
        return sorted(self._by_number.values(), key=_queue_position)

    def by_number(self, number: int) -> Sequence | None:
        """By its number in the engine."""
        return self._by_number.get(number)

    def by_key(self, key: SequenceKey) -> Sequence | None:
        """The newest attempt of a request, if it is here."""
        return self._by_key.get(key)

    def by_dispatcher(self, dispatcher: Address) -> list[Sequence]:
        """All of one dispatcher, in order of arrival."""
        return [sequence for sequence in self.by_arrival() if sequence.dispatcher == dispatcher]

    def add(self, dispatcher: Address, place: Place, now_s: float = 0.0, number: int = 0) -> Sequence:
        """A new attempt, waiting since `now_s`; one of a group has the `number` that all members' engines know."""
        self._orders += 1
        sequence = Sequence(self._orders, number or self._next_number(), dispatcher, place, arrived_s=now_s)
        self._by_number[sequence.number] = self._by_key[sequence.key] = sequence
        if sequence.is_spread:
            self._spread_count += 1
        else:
            self._waiting[sequence] = None
        self.changes += 1
        self.urgent_total += place.rises_after_s is not None
        return sequence

    def reassign(self, sequence: Sequence, dispatcher: Address, place: Place) -> None:
        """Make the sequence another dispatcher's attempt."""
        if self._by_key.get(sequence.key) is sequence:
            del self._by_key[sequence.key]
        sequence.dispatcher, sequence.place = dispatcher, place
        self._oldest_first = None  # a holder of the old list sees by identity that something changed
        self._by_key[sequence.key] = sequence

    def renumber(self, sequence: Sequence) -> None:
        """Give the sequence a new number: it will be opened in the engine anew."""
        del self._by_number[sequence.number]
        sequence.number = self._next_number()
        self._by_number[sequence.number] = sequence

    def transition(self, sequence: Sequence, state: SequenceState) -> None:
        """Change a sequence's state; one that ENDED is forgotten.

        Raises:
            IllegalTransition: see `TRANSITIONS`.
        """
        if sequence.clock is not None:
            self._note_wait(sequence, sequence.clock, state)
        had_row = sequence in self._running
        sequence.transition(state)
        self.changed()
        self._waiting.pop(sequence, None)
        self._running.pop(sequence, None)
        self._parked.pop(sequence, None)
        self._restoring.pop(sequence, None)
        self._leaving.pop(sequence, None)
        if state is SequenceState.WAITING and not sequence.is_spread:
            self._waiting[sequence] = None
        elif state is SequenceState.RUNNING:
            self._running[sequence] = None
        elif state is SequenceState.PARKED:
            self._parked[sequence] = None
        elif state is SequenceState.RESTORING:
            self._restoring[sequence] = None
        elif state is SequenceState.LEAVING and had_row:
            self._leaving[sequence] = None
        elif state is SequenceState.ENDED:
            del self._by_number[sequence.number]
            self._spread_count -= sequence.is_spread
        if state in (SequenceState.ENDING, SequenceState.ENDED) and self._by_key.get(sequence.key) is sequence:
            del self._by_key[sequence.key]

    def on_engine_lost(self) -> None:
        """What waits now waits for the next engine, and what the last one computed unanswered came to nothing."""
        for sequence in self:
            if sequence.clock is not None and sequence.state is SequenceState.WAITING:
                sequence.clock.switch(self.now_s, MissCause.ENGINE_LOST)
            else:
                sequence.blame(MissCause.ENGINE_LOST)

    def _note_wait(self, sequence: Sequence, clock: WaitClock, state: SequenceState) -> None:
        """The sequence changes to `state`: what it has waited for until now, and waits for from now on."""
        before, waited_for = sequence.state, clock.cause
        if waited_for is MissCause.STEP_BEFORE and self.blocked_s >= clock.since_s:
            clock.blame(MissCause.SLOTS)
        cause = _WAITS_FOR.get(state, waited_for)
        if state is SequenceState.WAITING and before in (SequenceState.RUNNING, SequenceState.PARKED):
            cause = MissCause.ENGINE_LOST
            clock.blame(cause)  # what it computed since its last answer is lost, too
        elif state is SequenceState.RESTORING and waited_for in (MissCause.STEP_BEFORE, MissCause.SLOTS):
            cause = MissCause.EARLIER_ATTEMPT
        clock.switch(self.now_s, cause)

    def changed(self) -> None:
        """What may be computed of a sequence changed in another way: `running` is a new list."""
        self._oldest_first = None
        self.changes += 1

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers


_queue_position = attrgetter("turn")
_WAITS_FOR = {
    SequenceState.RUNNING: MissCause.LEFT_OUT,
    SequenceState.SPREAD: MissCause.LEFT_OUT,
    SequenceState.PARKED: MissCause.INTERRUPTED,
    SequenceState.DRAINING: MissCause.PREEMPTED,
    SequenceState.LEAVING: MissCause.MIGRATION,
}
"""What a sequence in a state waits for; in another state it waits for what it waited for."""


def _waiting_turn(sequence: Sequence) -> tuple[bool, bool, Turn]:
    return sequence.gives_way, not sequence.preempted, sequence.turn
