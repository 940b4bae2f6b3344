"""The source's side of migrations: sequences that leave for another instance while they run.

One small machine per sequence: room is reserved at the target; what the host tier keeps of it is restored there while
it decodes here; at a token boundary its row stops, the tail is copied and filled, and its dispatcher is told `Ready`.
Until then whatever goes wrong means that it stays; afterwards the dispatcher's next attempt decides. Knows no engine,
no slot table, no other instance's load and no reason why a sequence was chosen.
"""

from collections.abc import Callable

from dunlin.effects import Address, After, Effect, Send
from dunlin.handlers import handles
from dunlin.messages.dispatch import Ready
from dunlin.messages.group import Fill, Filled, Reach, Release, Reserve, Reserved, ReserveRefused, Vacated
from dunlin.messages.pool import RegionsSent
from dunlin.messages.types import Figure, Why
from services.instance.departure import Departure, DepartureDue, Ended, Patience, Sender, Stage
from services.instance.lives import Lives
from services.instance.offers import Copies, Offers
from services.instance.sequences import Sequence, Sequences, State

DIALING = Address("dialing", "")
NOT_COPIED = "its KV cannot be copied"


class Departures:
    """Owns who leaves. The totals only grow; `stale_total` counts answers that nobody waits for."""

    def __init__(
        self,
        sequences: Sequences,
        lives: Lives,
        copies: Copies,
        patience: Patience,
        sender: Callable[[], Sender | None],
    ) -> None:
        self.moved_total = 0
        self.failed_total = 0
        self.moved_tokens_total = 0
        self.stale_total = 0
        self._sequences = sequences
        self._lives = lives
        self._offers = Offers(copies, patience.tail_tokens)
        self._patience = patience
        self._sender = sender
        self._leaving: dict[int, Departure] = {}
        self._reachable: dict[Address, None] = {}
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._leaving)

    def has(self, sequence: Sequence) -> bool:
        """Whether it is on its way."""
        return any(departure.sequence is sequence for departure in self._leaving.values())

    def start(
        self, sequence: Sequence, target: Address, why: Why | None, ended: Ended, needs_kv: bool = False
    ) -> list[Effect]:
        """Begin to move `sequence` to `target`; `needs_kv`: not without its KV."""
        self._numbers += 1
        departure = self._leaving[self._numbers] = Departure(self._numbers, sequence, target, why, ended, needs_kv)
        if target in self._reachable:
            return self._reserve(departure)
        return [Send(DIALING, Reach(target)), *self._enter(departure, Stage.REACHING)]

    def settle(self) -> list[Effect]:
        """Go on with whatever the last change made possible."""
        effects: list[Effect] = []
        for departure in list(self._leaving.values()):
            effects += self._advance(departure)
        return effects

    # --- what the target says ---

    @handles
    def reserved(self, now_s: float, sender: Address, message: Reserved) -> list[Effect]:
        """There is room at the target."""
        departure = self._of(sender, message.sequence)
        if departure is None or departure.stage is not Stage.RESERVING:
            self.stale_total += 1
            known = departure is not None and departure.handle == message.handle
            return [] if known else [Send(sender, Release(message.handle))]
        departure.handle, departure.keeper = message.handle, message.keeper
        return self._enter(departure, Stage.COPYING)

    @handles
    def refused(self, now_s: float, sender: Address, message: ReserveRefused) -> list[Effect]:
        """There is none."""
        departure = self._of(sender, message.sequence)
        if departure is None or departure.stage is not Stage.RESERVING:
            self.stale_total += 1
            return []
        reason = message.why.rejected[0].reason if message.why and message.why.rejected else "no reason given"
        return self._stay(departure, f"{sender.name} refuses: {reason}")

    @handles
    def filled(self, now_s: float, sender: Address, message: Filled) -> list[Effect]:
        """So much lies in the room."""
        departure = self._of_handle(sender, message.handle)
        if departure is None or departure.stage not in (Stage.COPYING, Stage.SWITCHING):
            self.stale_total += 1
            return []
        departure.filled = message.tokens
        departure.is_cut |= bool(message.detail)
        return self._enter(departure, departure.stage)

    @handles
    def vacated(self, now_s: float, sender: Address, message: Vacated) -> list[Effect]:
        """The room is lost."""
        departure = self._of_handle(sender, message.handle)
        if departure is None or departure.stage is Stage.HANDED:
            self.stale_total += 1
            return []
        departure.handle = 0
        return self._stay(departure, f"{sender.name} lost the room")

    def sent(self, number: int, message: RegionsSent) -> list[Effect]:
        """So much of it lies at the target's node."""
        departure = self._leaving.get(number)
        if departure is None or departure.stage not in (Stage.COPYING, Stage.SWITCHING):
            self.stale_total += 1
            return []
        departure.is_crossing = False
        if message.tokens <= departure.sent:
            departure.is_cut = True
            return []
        departure.sent = message.tokens
        return [Send(departure.target, Fill(departure.handle, departure.sent, (), departure.keeper))]

    # --- streams and timers ---

    def joined(self, peer: Address) -> list[Effect]:
        """A stream to another instance is open."""
        self._reachable[peer] = None
        effects: list[Effect] = []
        for departure in self._to(peer):
            if departure.stage is Stage.REACHING:
                effects += self._reserve(departure)
        return effects

    def gone(self, peer: Address) -> list[Effect]:
        """A target or a dispatcher is away. Whom the dispatcher was told of stays ready for its next attempt."""
        self._reachable.pop(peer, None)
        effects: list[Effect] = []
        for departure in self._to(peer):
            departure.handle = 0
            if departure.stage is not Stage.HANDED:
                effects += self._stay(departure, f"{peer.name} is gone")
        for departure in list(self._leaving.values()):
            if departure.sequence.dispatcher == peer and departure.stage in (Stage.SWITCHING, Stage.HANDED):
                effects += self._stay(departure, f"its dispatcher {peer.name} is gone")
        return effects

    @handles
    def due(self, now_s: float, sender: Address, message: DepartureDue) -> list[Effect]:
        """A stage lasts too long."""
        departure = self._leaving.get(message.number)
        if departure is None or departure.counter != message.counter:
            return []
        if departure.stage in (Stage.COPYING, Stage.SWITCHING) and not departure.is_cut:
            departure.is_cut = True  # it leaves all the same: what is not there is computed there
            return self._enter(departure, departure.stage)
        return self._stay(departure, f"{departure.stage.value} after {self._patience.stage_s:g} s")

    def recall(self, sequence: Sequence) -> list[Effect]:
        """Its dispatcher wants it to go on here after all."""
        for departure in list(self._leaving.values()):
            if departure.sequence is sequence:
                return self._stay(departure, "its dispatcher placed it here again")
        return []

    # --- the machine ---

    def _reserve(self, departure: Departure) -> list[Effect]:
        sender, sequence = self._sender(), departure.sequence
        if sender is None:
            return self._stay(departure, "no engine runs here")
        place = sequence.place
        reserve = Reserve(
            departure.number,
            len(sequence.tokens) + self._patience.tail_tokens,
            0,
            len(sender.ready.layers),
            sender.epoch,
            sender.plan_version,
            departure.why,
            sequence.public_key,
            sequence.dispatcher,
            place.request,
            place.attempt,
            sequence.longest,
            sender.ready.weights_digest,
            sender.ready.kv_dtype,
        )
        return [Send(departure.target, reserve), *self._enter(departure, Stage.RESERVING)]

    def _advance(self, departure: Departure) -> list[Effect]:
        sequence = departure.sequence
        if sequence.state in (State.ENDING, State.ENDED):
            return self._left(departure)
        if departure.stage is Stage.HANDED and sequence.dispatcher != departure.told:
            return self._stay(departure, f"{sequence.dispatcher.name} goes on with it here")
        if departure.stage is Stage.COPYING:
            return self._copy(departure)
        if departure.stage is Stage.SWITCHING and sequence.in_steps == 0:
            return self._hand(departure)
        return []

    def _copy(self, departure: Departure) -> list[Effect]:
        """Copy beside its steps; stop its row once little is missing at the target."""
        effects = self._offers.offer(departure)
        sequence = departure.sequence
        if sequence.state not in (State.RUNNING, State.WAITING) or self._offers.is_far(departure):
            return effects
        self._sequences.go(sequence, State.LEAVING)
        effects += self._enter(departure, Stage.SWITCHING)
        return effects + (self._hand(departure) if sequence.in_steps == 0 else [])

    def _hand(self, departure: Departure) -> list[Effect]:
        """No step names it any more: once the rest is copied too, its dispatcher hands out the next attempt."""
        effects = self._offers.offer(departure)
        if self._offers.is_in_vain(departure):
            return effects + self._stay(departure, NOT_COPIED)
        if self._offers.can_copy(departure) and departure.filled < departure.wanted:
            return effects
        sequence, tokens = departure.sequence, departure.filled
        figures = (
            Figure("tokens", tokens),
            Figure("length", len(sequence.tokens)),
            Figure("recomputed_tokens", max(0, departure.wanted - tokens)),
        )
        rejected = departure.why.rejected if departure.why is not None else ()
        policy = departure.why.policy if departure.why is not None else "migration"
        why = Why(policy, f"move to {departure.target.name}", figures, rejected)
        place = sequence.place
        ready = Ready(place.request, place.attempt, departure.target, departure.handle, tokens, why)
        departure.told = sequence.dispatcher
        return [*effects, Send(sequence.dispatcher, ready), *self._enter(departure, Stage.HANDED)]

    # --- how it ends ---

    def _left(self, departure: Departure) -> list[Effect]:
        """It ended here: because the next attempt runs, or because nobody wants more of it."""
        del self._leaving[departure.number]
        moved = departure.stage is Stage.HANDED
        self.moved_total += moved
        self.moved_tokens_total += departure.filled if moved else 0
        departure.ended(departure, "" if moved else "it ended first")
        return self._release(departure)

    def _stay(self, departure: Departure, reason: str) -> list[Effect]:
        """It goes on here."""
        del self._leaving[departure.number]
        self.failed_total += 1
        effects: list[Effect] = []
        if departure.sequence.state is State.LEAVING:
            self._lives.go_on(departure.sequence)
        departure.ended(departure, reason)
        return effects + self._release(departure)

    def _release(self, departure: Departure) -> list[Effect]:
        """Room that nobody will use; where the next attempt took it, the handle is unknown by now."""
        return [Send(departure.target, Release(departure.handle))] if departure.handle else []

    def _enter(self, departure: Departure, stage: Stage) -> list[Effect]:
        departure.stage = stage
        departure.counter += 1
        return [After(self._patience.stage_s, DepartureDue(departure.number, departure.counter))]

    def _of(self, target: Address, number: int) -> Departure | None:
        departure = self._leaving.get(number)
        return departure if departure is not None and departure.target == target else None

    def _of_handle(self, target: Address, handle: int) -> Departure | None:
        for departure in self._to(target):
            if departure.handle == handle:
                return departure
        return None

    def _to(self, target: Address) -> list[Departure]:
        return [departure for departure in self._leaving.values() if departure.target == target]
