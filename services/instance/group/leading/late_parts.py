"""Notices that a member's part of an exchange does not come, in the time scale of the group's own steps.

An exchange is late when nothing was heard of the group for four times as long as the slowest of its size took lately.
All that compute it are told to end it then: a member that lives answers at the next safepoint, and goes on; one that
does not answer that either is lost. The members wait for each other, so the first silence alone does not say whose it
is.

A look that comes late itself says nothing of others: this process was stopped, or has too little of its machine. What
is slow without being stopped is found by membership and by the monitor's watch, as ever.
"""

from dataclasses import dataclass

from dunlin.effects import After, Effect
from services.instance.group.leading.exchange_times import ExchangeTimes
from services.instance.group.leading.exchanges import Exchange, ExchangeLedger
from services.instance.group.leading.roster import GroupRoster
from services.instance.group.leading.stepping import SpreadSteps

TIMES = 4
"""An exchange that takes so many times what others of its size took at most is late: as the gaps between an engine's
safepoints are judged."""
ENDED_TIMES = 2
"""One that was ended as late may have been slow only: the next may take so many times as long."""
FIRST_TIMES = 10
"""The first exchange of its size is late after so many times `late_s`, if smaller ones did not take longer."""
OWN_LATENESS = 0.25
"""A look that comes later than this share of `late_s` is no judge of others."""


@dataclass(frozen=True, slots=True)
class LateLook:
    """Look whether parts are late; `due_s`: when it should come."""

    due_s: float


class LateParts:
    """Owns when the group was heard last, and which exchange it has had ended.

    `late_s`: nothing is late sooner, and so long a member has to say that it ends an exchange.
    """

    def __init__(
        self, late_s: float, times: ExchangeTimes, ledger: ExchangeLedger, steps: SpreadSteps, roster: GroupRoster
    ) -> None:
        self._late_s = late_s
        self._times = times
        self._ledger = ledger
        self._steps = steps
        self._roster = roster
        self._heard_s = 0.0
        self._ended_s = 0.0
        self._ending = 0
        self._due_s: float | None = None

    def heard(self, now_s: float) -> None:
        """A member has answered an exchange."""
        first = next(iter(self._ledger.outstanding), None)
        if first is not None and not first.waiting:
            self._took(first, now_s - max(self._ended_s, first.timing.sent_s))
            self._ended_s = now_s
        self._heard_s = now_s

    def _took(self, exchange: Exchange, took_s: float) -> None:
        if not exchange.is_incomplete:  # else it waited for what never came
            self._times.note(exchange.tokens, took_s * (ENDED_TIMES / TIMES if exchange.is_cancelled else 1.0))

    def advance(self, now_s: float) -> list[Effect]:
        """Look again later, while anything is awaited."""
        if self._due_s is not None or not self._ledger.outstanding:
            return []
        return self._look_in(now_s, self._late_s)

    def on_look(self, now_s: float, due: LateLook) -> list[Effect]:
        """Have the first exchange ended if it is late; give up the members that do not say that they end it."""
        first = next(iter(self._ledger.outstanding), None)
        if due.due_s != self._due_s:
            return []
        self._due_s = None
        if first is None:
            return []
        if now_s - due.due_s > OWN_LATENESS * self._late_s:
            self._heard_s = now_s
        if first.is_cancelled and self._ending != first.number:
            self._ending, self._heard_s = first.number, now_s
        limit_s = self._late_s if first.is_cancelled else self._limit_s(first)
        rest_s = max(self._heard_s, first.timing.sent_s) + limit_s - now_s
        if rest_s > 0:
            return self._look_in(now_s, min(rest_s, self._late_s))  # the next one may be of a shorter kind
        if first.is_cancelled:
            return self._give_up(first)
        self._ending, self._heard_s = first.number, now_s
        return [*self._steps.end_outstanding(), *self._look_in(now_s, self._late_s)]

    def _give_up(self, exchange: Exchange) -> list[Effect]:
        effects: list[Effect] = []
        for member in sorted(exchange.waiting):
            effects += self._roster.on_silent(member)
        return effects

    def _limit_s(self, exchange: Exchange) -> float:
        return max(self._late_s, TIMES * self._times.longest_s(exchange.tokens, FIRST_TIMES / TIMES * self._late_s))

    def _look_in(self, now_s: float, delay_s: float) -> list[Effect]:
        self._due_s = now_s + delay_s
        return [After(delay_s, LateLook(self._due_s))]
