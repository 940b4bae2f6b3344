"""One attempt of a request at an instance: what is known of it, and what follows. Knows no slot and no message but
`Place`.
"""

from dataclasses import dataclass, field

from dunlin.effects import Address
from dunlin.kv.prefix_hash import PrefixChain
from dunlin.messages.dispatch import Place
from dunlin.messages.lifecycle import MissCause
from dunlin.messages.types import HostRegion, Region, RequestClass
from dunlin.policies.starvation import Progress
from services.instance.sequence.states import TRANSITIONS, IllegalTransition, SequenceState
from services.instance.sequence.wait_clock import WaitClock, clock_of


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
    the KV cache, as long as it has slots at all: the next ones are nearly always found there. `has_overtaken`: it
    started before one that waited for slots and whose turn was before its own. `arrived_s` is the core's
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
    has_overtaken: bool = False
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
