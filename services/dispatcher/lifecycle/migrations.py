"""Requests that move while they run: the source says that the target has its KV, and the next attempt goes there.

Until the target accepts, the source still has everything: it is the request's home, where it goes back to if the target
does not take it. Knows no policy and no token.
"""

from dunlin.cores.handlers import handles
from dunlin.effects import Address, Effect
from dunlin.messages.dispatch import Ready
from dunlin.messages.types import RejectedOption, Why
from services.dispatcher.lifecycle.completion import RequestTotals
from services.dispatcher.placement.fleet_state import FleetState
from services.dispatcher.placement.placer import RequestPlacer
from services.dispatcher.requests.fences import AttemptFences
from services.dispatcher.requests.journal import Journal, Request


class Migrations:
    """The dispatcher's part in migrations."""

    def __init__(
        self,
        journal: Journal,
        fleet: FleetState,
        fences: AttemptFences,
        placement: RequestPlacer,
        totals: RequestTotals,
    ) -> None:
        self._journal = journal
        self._fleet = fleet
        self._fences = fences
        self._placement = placement
        self._totals = totals

    @handles
    def on_ready(self, now_s: float, sender: Address, message: Ready) -> list[Effect]:
        """Hand out the next attempt to the target, or give the request back to the source if that cannot be."""
        request = self._journal.current_attempt(sender, message.request, message.attempt)
        if request is None:
            self._totals.stale += 1
            return self._fences.cancel(sender, message.request, message.attempt, "this attempt is over")
        self._fleet.release(sender, request.number)
        self._journal.requeue(request, f"moves to {message.target}")
        request.migration_source = (sender, message.attempt)
        if not self._fleet.can_accept_migrated(message.target):
            return []  # the next pass of placement sends it home
        why = message.why or Why("migration", message.target.name)
        return [self._placement.dispatch(request, message.target, why, message.handle)]

    def on_accepted(self, request: Request) -> list[Effect]:
        """It runs again: what its home still has of it is not needed, unless it went on there."""
        home, request.migration_source = request.migration_source, None
        if home is None or home[0] == request.instance:
            return []
        return self._fences.cancel(home[0], request.number, home[1], "it runs elsewhere now")

    def on_refused(self, request: Request, instance: Address) -> None:
        """A home that refuses it is none: the newer attempt has ended the older one there, and anybody may go on."""
        if request.migration_source is not None and request.migration_source[0] == instance:
            request.migration_source = None

    def return_to_source(self) -> list[Effect]:
        """Send back to its home whatever was not taken where it should have gone."""
        effects: list[Effect] = []
        for request in self._journal.with_migration_source():
            assert request.migration_source is not None
            home = request.migration_source[0]
            if self._fleet.can_accept_migrated(home):
                rejected = (
                    RejectedOption(*request.last_outcome)
                    if request.last_outcome
                    else RejectedOption("move", "not taken")
                )
                why = Why("migration", f"back to {home.name}", (), (rejected,))
                effects.append(self._placement.dispatch(request, home, why))
        return effects
