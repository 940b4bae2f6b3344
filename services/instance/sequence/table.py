"""The sequences of one instance, and the states that each goes through. Knows no slot and no message but `Place`.

A request's attempt is one sequence; whenever it is opened in the engine again, after a preemption, it gets a new
number there.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from operator import attrgetter

from dunlin.effects import Address
from dunlin.kv.prefix_hash import PrefixChain
from dunlin.messages.dispatch import Place
from dunlin.messages.lifecycle import MissCause
from dunlin.messages.types import HostRegion, Region, RequestClass
from dunlin.policies.starvation import Progress
from services.instance.sequence.wait_clock import WaitClock, clock_of


class SequenceState(Enum):
    """Where a sequence is. See `TRANSITIONS`."""

    WAITING = "waiting"  # for slots; new, or preempted (then perhaps with a region in the host tier)
    RUNNING = "running"
    PARKED = "parked"  # its row left a step and waits in the engine to be resumed; no step names it
    DRAINING = "draining"  # preempted: outstanding steps still name it
    ASKING = "asking"  # for room in the host tier
    SPILLING = "spilling"  # its KV moves to the host tier
    RESTORING = "restoring"  # its KV moves back
    SPREAD = "spread"  # members of the group that this instance leads have it, or are asked to; no own step names it
    LEAVING = "leaving"  # no more rows here: another instance is about to continue it
    ENDING = "ending"  # no more tokens are wanted; a step or a region copy still uses its slots
    ENDED = "ended"


TRANSITIONS: dict[SequenceState, tuple[SequenceState, ...]] = {
    SequenceState.WAITING: (
        SequenceState.RUNNING,
        SequenceState.RESTORING,
        SequenceState.SPREAD,
        SequenceState.LEAVING,
        SequenceState.ENDED,
    ),
    SequenceState.RUNNING: (
        SequenceState.PARKED,
        SequenceState.DRAINING,
        SequenceState.WAITING,
        SequenceState.LEAVING,
        SequenceState.ENDING,
        SequenceState.ENDED,
    ),
    SequenceState.PARKED: (SequenceState.RUNNING, SequenceState.WAITING, SequenceState.ENDED),
    SequenceState.DRAINING: (
        SequenceState.ASKING,
        SequenceState.WAITING,
        SequenceState.RUNNING,
        SequenceState.ENDING,
        SequenceState.ENDED,
    ),
    SequenceState.ASKING: (SequenceState.SPILLING, SequenceState.WAITING, SequenceState.RUNNING, SequenceState.ENDED),
    SequenceState.SPILLING: (SequenceState.WAITING, SequenceState.RUNNING, SequenceState.ENDING, SequenceState.ENDED),
    SequenceState.RESTORING: (SequenceState.RUNNING, SequenceState.WAITING, SequenceState.ENDING, SequenceState.ENDED),
    SequenceState.SPREAD: (SequenceState.ENDING,),
    SequenceState.LEAVING: (SequenceState.RUNNING, SequenceState.WAITING, SequenceState.ENDING, SequenceState.ENDED),
    SequenceState.ENDING: (SequenceState.ENDED,),
    SequenceState.ENDED: (),
}


WANTS_TOKENS = (SequenceState.RUNNING, SequenceState.SPREAD, SequenceState.DRAINING, SequenceState.LEAVING)
"""Outstanding steps may name it, and its dispatcher wants the tokens."""


class IllegalTransition(RuntimeError):
    """A sequence cannot go from its state to that one; it stays what it was."""


@dataclass(frozen=True, slots=True)
class KeptHostRegion:
    """A committed region of a sequence in the host tier of `keeper`; `chain` names the tokens up to its end."""

    region: Region
    host: HostRegion
    keeper: Address
    chain: bytes


def request_name(dispatcher: Address, place: Place) -> str:
    """What a request's regions are found by. Ids can be guessed: only in its own tenant does one claim anything."""
    name = place.key or f"{dispatcher}/{place.request}"
    return f"{place.tenant}/{name}" if place.tenant else name


SlotRun = tuple[int, int, int]
"""(first position, stop, first slot) of positions whose slots lie in a row."""

NO_SLOT_RUN: SlotRun = (0, 0, 0)

Turn = tuple[bool, int]
"""(new, order of arrival): answers whose readers had their beginning when they were cut off come before new ones."""

SequenceKey = tuple[Address, int]
"""(dispatcher, request)."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One attempt at this instance, the `order`th to come; `turn` compares it with others.

    `tokens` are the known ones; `pending` more are being sampled by outstanding steps. The KV of the first `valid`
    positions exists; the first `issued` have it or are named by outstanding or parked rows. `in_steps` outstanding
    steps name it, and `in_moves` region copies that it waits for. `notify_ended`: the dispatcher waits for `Ended`.
    `kept` are regions in the host tier that together cover its first tokens in all layers, in order of their start;
    `restore_failed`: a region was not restored, so none behind it counts; `is_restore_cancelled`: its slots are wanted,
    and it waits again once the engine has answered. `is_claiming` while the claim for regions of earlier attempts has
    no answer, `is_claimed` until it started from them. `spills_kv`: its KV is copied to the host tier when it is
    preempted. `kv_tokens` had KV when it was last preempted.
    `suspicion` is as in `Returned`; until its valid tokens reach `trial_stop` (0: at once) it runs alone.
    `engines_lost` ended in its steps since one was answered. `slot_run` is the extent of the last slots looked up in
    the KV cache, as long as it has slots at all: the next ones are nearly always found there. `arrived_s` is the core's
    time when it came. `is_batch`: it is of the batch class; `is_risen`: and scheduled as an interactive one, because it
    was starved. `progress` says how far it had got when it was last looked at for that (None: not yet). `clock` says
    what it waits for; None for batch work, which has no objectives. The log-probabilities of the `scored` prompt tokens
    after the first went to its dispatcher, where it wants any.
    """

    order: int
    number: int
    dispatcher: Address
    place: Place
    state: SequenceState = SequenceState.WAITING
    issued: int = 0
    valid: int = 0
    pending: int = 0
    in_steps: int = 0
    in_moves: int = 0
    preempted: bool = False
    spills_kv: bool = True
    notify_ended: bool = False
    is_claiming: bool = False
    is_claimed: bool = False
    kv_tokens: int = 0
    restore_failed: bool = False
    is_restore_cancelled: bool = False
    suspicion: int = 0
    trial_stop: int = 0
    engines_lost: int = 0
    slot_run: SlotRun = NO_SLOT_RUN
    arrived_s: float = 0.0
    is_risen: bool = False
    progress: Progress | None = None
    clock: WaitClock | None = None
    kept: list[KeptHostRegion] = field(default_factory=list)
    chains: PrefixChain = field(default_factory=PrefixChain)
    tokens: "list[int]" = field(init=False)
    turn: Turn = field(init=False)
    is_batch: bool = field(init=False)
    scored: int = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = list(self.place.tokens)
        self.turn = (len(self.tokens) <= self.place.prompt_tokens, self.order)
        self.is_batch = self.place.request_class is RequestClass.BATCH
        self.suspicion = self.place.suspicion
        self.scored = self.place.scored
        self.trial_stop = len(self.tokens) if self.suspicion else 0
        self.clock = None if self.is_batch else clock_of(self.place, self.arrived_s)

    @property
    def key(self) -> SequenceKey:
        """(dispatcher, request) of the attempt."""
        return self.dispatcher, self.place.request

    @property
    def public_key(self) -> str:
        """The name that all attempts of the request share: the key of its regions."""
        return request_name(self.dispatcher, self.place)

    @property
    def gives_way(self) -> bool:
        """Whether it makes way for interactive sequences: batch work that did not rise."""
        return self.is_batch and not self.is_risen

    @property
    def is_spread(self) -> bool:
        """Whether it is for the members of an elastic group, never for the instance alone."""
        return self.place.group != 0

    @property
    def reusable_most(self) -> int:
        """Of so many of its first tokens KV may be taken that it did not compute itself: the last token must be
        computed, and so must a prompt whose log-probabilities are wanted, from where they end.
        """
        known, last = self.place.sampling.prompt_logprobs is None, len(self.tokens) - 1
        return last if known or self.scored >= self.place.prompt_tokens - 1 else self.scored

    @property
    def kept_tokens(self) -> int:
        """The first tokens whose KV lies in the host tier too."""
        return self.kept[-1].region.stop if self.kept else 0

    @property
    def name(self) -> str:
        """For reasons and logs."""
        return f"sequence {self.number} (request {self.place.request:x} of {self.dispatcher.name})"

    @property
    def length(self) -> int:
        """Tokens known or being sampled."""
        return len(self.tokens) + self.pending

    @property
    def is_plain_decode(self) -> bool:
        """Whether the answer of a step that neither ended nor dropped it changes nothing but its tokens."""
        return self.state is SequenceState.RUNNING and not self.trial_stop and self.valid > len(self.place.tokens)

    @property
    def max_length(self) -> int:
        """Tokens that it may have in the end."""
        return self.place.prompt_tokens + self.place.max_tokens

    @property
    def remaining(self) -> int:
        """Positions to compute before the next token can be sampled; 0 when the last token allowed is being sampled."""
        length = len(self.tokens) + self.pending
        return length - self.issued if length < self.place.prompt_tokens + self.place.max_tokens else 0

    @property
    def has_sampled(self) -> bool:
        """Whether its last token was or is being sampled here: a row of one position is then a decode row."""
        return len(self.tokens) + self.pending > len(self.place.tokens)

    @property
    def may_move_on(self) -> bool:
        """Whether it came otherwise than by a migration, or got a token here since: two policies that disagree would
        move it to and fro for ever without one.
        """
        return not self.place.handle or len(self.tokens) > len(self.place.tokens)

    def blame(self, cause: MissCause) -> None:
        """What it has waited for since its clock looked last was this."""
        if self.clock is not None:
            self.clock.blame(cause)

    def transition(self, state: SequenceState) -> None:
        """Change the state.

        Raises:
            IllegalTransition: see `TRANSITIONS`.
        """
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(f"{self.name}: {self.state.value} to {state.value}")
        self.state = state


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

    def parked(self) -> list[Sequence]:
        """The sequences with a parked row, oldest first."""
        return sorted(self._parked, key=_queue_position)

    def running_or_parked(self) -> list[Sequence]:
        """The sequences that hold slots and go on by themselves, oldest first."""
        return sorted([*self._running, *self._parked], key=_queue_position) if self._parked else self.running

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
        sequence.transition(state)
        self.changed()
        self._waiting.pop(sequence, None)
        self._running.pop(sequence, None)
        self._parked.pop(sequence, None)
        if state is SequenceState.WAITING and not sequence.is_spread:
            self._waiting[sequence] = None
        elif state is SequenceState.RUNNING:
            self._running[sequence] = None
        elif state is SequenceState.PARKED:
            self._parked[sequence] = None
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
