"""How sequences of a group end: what members have of them is closed everywhere before their dispatchers hear `Ended`.

Also which one is given up when none moves any more.
"""

from dataclasses import dataclass

from dunlin.effects import After, Effect
from dunlin.messages.types import Figure, RejectedOption, Why
from services.instance.group.leading.guest_requests import GuestRequests
from services.instance.group.leading.roster import GroupRoster
from services.instance.group.leading.spread import SpreadSequence
from services.instance.group.leading.spread_table import SpreadTable
from services.instance.group.leading.stepping import SpreadSteps
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.sequence.states import SequenceState

MAX_LOSSES = 2
"""Members with tokens of a sequence that may be lost without a token in between, before it goes back."""


@dataclass(frozen=True, slots=True)
class PatienceOver:
    """Look whether anything has moved, unless that was done since this `turn`."""

    turn: int


class SpreadEnds:
    """Owns when something of the group's sequences moved last."""

    def __init__(
        self,
        patience_s: float,
        lifecycle: SequenceLifecycle,
        spreads: SpreadTable,
        roster: GroupRoster,
        requests: GuestRequests,
        steps: SpreadSteps,
    ) -> None:
        self._patience_s = patience_s
        self._lifecycle = lifecycle
        self._spreads = spreads
        self._roster = roster
        self._requests = requests
        self._steps = steps
        self._moved_s = 0.0
        self._turn = 0
        self._is_watching = False

    def moved(self, now_s: float) -> None:
        """A sequence came, got slots or tokens, or left."""
        self._moved_s = now_s

    def advance(self) -> list[Effect]:
        """Close what has ended, and watch over the others."""
        effects: list[Effect] = []
        for spread in self._spreads.ended():
            effects += self._close(spread)
        return effects + self._steps.cancel_useless() + self._watch(self._patience_s)

    def on_patience_over(self, now_s: float, due: PatienceOver) -> list[Effect]:
        """If nothing has moved for so long, give a sequence up: the youngest with guests, or the first that waits."""
        if due.turn != self._turn:
            return []
        self._is_watching = False
        rest_s = self._moved_s + self._patience_s - now_s
        if self._steps.ledger.outstanding or rest_s > 0:
            return self._watch(max(rest_s, self._patience_s / 4))
        candidates = self._spreads.live()[-1:] or self._spreads.waiting()[:1]
        self._moved_s = now_s
        effects: list[Effect] = []
        for spread in candidates:
            figures = (
                Figure("tokens", len(spread.sequence.tokens)),
                Figure("slots", spread.missing),
                Figure("members", len(self._roster.members)),
                Figure("limit_s", self._patience_s),
            )
            rejected = (
                RejectedOption("wait", "no request of the group has moved for so long"),
                *spread.refusals.values(),
            )
            effects += self._give_back(spread, figures, rejected)
        return effects

    def on_member_lost(self, member: int, reason: str) -> list[Effect]:
        """What lay at the member is lost: the sequences that had tokens there compute those again, or go back
        where that happens too often. One that lives, and was given to others, is told to close its guests, for it may
        not have heard so yet.
        """
        self._requests.lose(member)
        effects = self._steps.lose(member)
        for spread in self._spreads:
            effects += self._requests.close(spread, member) if member in spread.guests else []
            before = spread.computed
            if spread.lose(member):
                effects += self._go_on(spread, member, before - spread.computed, reason)
        return effects

    def _go_on(self, spread: SpreadSequence, member: int, lost: int, reason: str) -> list[Effect]:
        figures = (
            Figure("tokens", len(spread.sequence.tokens)),
            Figure("member", member),
            Figure("recomputed_tokens", lost),
        )
        said = f"member {member} had tokens of it: {reason}"
        if spread.losses > MAX_LOSSES:
            return self._give_back(spread, figures, (RejectedOption("go on", said),))
        why = Why("group", f"compute again: {said}", figures)
        return [self._lifecycle.say_continued(spread.sequence, why, recomputed=lost)]

    def dissolve(self, reason: str) -> list[Effect]:
        """The instance leads this group no more: every sequence goes back at once, whatever members answer."""
        effects: list[Effect] = []
        for spread in self._spreads:
            if spread.is_live or spread.is_waiting:
                figures = (Figure("tokens", len(spread.sequence.tokens)),)
                effects += self._give_back(spread, figures, (RejectedOption("go on", reason),))
        effects += self._steps.cancel_all()
        for spread in self._spreads:
            effects += self._close(spread)
            spread.guests.clear()
            spread.sequence.in_steps = 0
            effects += self._close(spread)
        return effects

    def return_waiting(self) -> list[Effect]:
        """The instance is being emptied: return what has not begun."""
        effects: list[Effect] = []
        for spread in self._spreads.waiting():
            figures = (Figure("tokens", len(spread.sequence.tokens)),)
            rejected = (RejectedOption("wait", "the leader is being emptied"),)
            effects += self._give_back(spread, figures, rejected)
        return effects

    def _give_back(
        self, spread: SpreadSequence, figures: tuple[Figure, ...], rejected: tuple[RejectedOption, ...]
    ) -> list[Effect]:
        why = Why("group", "return the request", figures, rejected)
        return self._lifecycle.return_to_dispatcher(spread.sequence, why)

    def _close(self, spread: SpreadSequence) -> list[Effect]:
        """Close its guests; end it once there are none, and no step names it."""
        effects: list[Effect] = []
        for member in sorted(spread.guests):
            effects += self._requests.close(spread, member)
        if spread.guests or spread.sequence.in_steps:
            return effects
        if self._spreads.by_number(spread.number) is spread:
            self._spreads.remove(spread)
            if spread.sequence.state is SequenceState.ENDING:
                effects += self._lifecycle.end(spread.sequence)
        return effects

    def _watch(self, after_s: float) -> list[Effect]:
        is_needed = len(self._spreads.live()) + len(self._spreads.waiting()) > 0
        if self._is_watching or not is_needed:
            return []
        self._is_watching = True
        self._turn += 1
        return [After(after_s, PatienceOver(self._turn))]
