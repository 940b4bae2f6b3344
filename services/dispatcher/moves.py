"""Requests that move while they run: the source says that the target has its KV, and the next attempt goes there.

Until the target accepts, the source still has everything: it is the request's home, where it goes back to if the target
does not take it. Knows no policy and no token.
"""

from dunlin.effects import Address, Effect
from dunlin.handlers import handles
from dunlin.messages.dispatch import Ready
from dunlin.messages.types import Rejected, Why
from services.dispatcher.endings import Totals
from services.dispatcher.fences import Fences
from services.dispatcher.fleet import Fleet
from services.dispatcher.journal import Journal, Request
from services.dispatcher.placement import Placement


class Moves:
    """The dispatcher's part in migrations."""

    def __init__(self, journal: Journal, fleet: Fleet, fences: Fences, placement: Placement, totals: Totals) -> None:
        self._journal = journal
        self._fleet = fleet
        self._fences = fences
        self._placement = placement
        self._totals = totals

    @handles
    def on_ready(self, now_s: float, sender: Address, message: Ready) -> list[Effect]:
        """Hand out the next attempt to the target, or give the request back to the source if that cannot be."""
        request = self._journal.current(sender, message.request, message.attempt)
        if request is None:
            self._totals.stale += 1
            return self._fences.cancel(sender, message.request, message.attempt, "this attempt is over")
        self._fleet.release(sender, request.number)
        self._journal.take_back(request, f"moves to {message.target}")
        request.home = (sender, message.attempt)
        if not self._fleet.can_take_over(message.target):
            return []  # the next pass of placement sends it home
        why = message.why or Why("migration", message.target.name)
        return [self._placement.offer(request, message.target, why, message.handle)]

    def accepted(self, request: Request) -> list[Effect]:
        """It runs again: what its home still has of it is not needed, unless it went on there."""
        home, request.home = request.home, None
        if home is None or home[0] == request.instance:
            return []
        return self._fences.cancel(home[0], request.number, home[1], "it runs elsewhere now")

    def refused(self, request: Request, instance: Address) -> None:
        """A home that refuses it is none: the newer attempt has ended the older one there, and anybody may go on."""
        if request.home is not None and request.home[0] == instance:
            request.home = None

    def homeward(self) -> list[Effect]:
        """Send back to its home whatever was not taken where it should have gone."""
        effects: list[Effect] = []
        for request in self._journal.away_from_home():
            assert request.home is not None
            home = request.home[0]
            if self._fleet.can_take_over(home):
                rejected = Rejected(*request.lost) if request.lost else Rejected("move", "not taken")
                why = Why("migration", f"back to {home.name}", (), (rejected,))
                effects.append(self._placement.offer(request, home, why))
        return effects
