"""Live migration of a request: the source reports that the target has its KV (`Ready`), the next attempt goes there.

Until the target accepts, the source keeps the KV: it is the request's migration source, to which the request returns if
the target refuses it. Knows no policy and no token.
"""

from dunlin.cores.handlers import handles
from dunlin.effects import Address, Effect
from dunlin.messages.dispatch import Ready
from dunlin.messages.types import RejectedOption, Why
from services.dispatcher.lifecycle.completion import RequestTotals
from services.dispatcher.placement.fleet_state import FleetState
from services.dispatcher.placement.placer import RequestPlacer
from services.dispatcher.requests.fences import AttemptFences
from services.dispatcher.requests.journal import Journal
from services.dispatcher.requests.request import Request


class Migrations:
    """Moves a request's attempt from a migration's source to its target, or back."""

    def __init__(
        self,
        journal: Journal,
        fleet: FleetState,
        fences: AttemptFences,
        placer: RequestPlacer,
        totals: RequestTotals,
    ) -> None:
        self._journal = journal
        self._fleet = fleet
        self._fences = fences
        self._placer = placer
        self._totals = totals

    @handles
    def on_ready(self, now_s: float, sender: Address, message: Ready) -> list[Effect]:
        """Dispatch the next attempt to the target; if the target cannot take it, `return_to_source` follows."""
        request = self._journal.current_attempt(sender, message.request, message.attempt)
        if request is None:
            self._totals.stale += 1
            return self._fences.cancel(sender, message.request, message.attempt, "this attempt is over")
        self._fleet.release(sender, request.number)
        self._journal.requeue(request, f"moves to {message.target}")
        request.migration_source = (sender, message.attempt)
        if not self._fleet.can_accept_migrated(message.target):
            return []  # the core's next pass calls `return_to_source`
        why = message.why or Why("migration", message.target.name)
        return [self._placer.dispatch(now_s, request, message.target, why, message.handle)]

    def on_accepted(self, request: Request) -> list[Effect]:
        """The request runs: cancel the older attempt at its migration source, unless it runs there again."""
        source, request.migration_source = request.migration_source, None
        if source is None or source[0] == request.instance:
            return []
        return self._fences.cancel(source[0], request.number, source[1], "it runs elsewhere now")

    def on_refused(self, request: Request, instance: Address) -> None:
        """A migration source that refuses the request has lost its KV: the newer attempt ended the older one there."""
        if request.migration_source is not None and request.migration_source[0] == instance:
            request.migration_source = None

    def return_to_source(self, now_s: float) -> list[Effect]:
        """Dispatch each request that its migration's target did not take back to its source."""
        effects: list[Effect] = []
        for request in self._journal.with_migration_source():
            assert request.migration_source is not None
            source = request.migration_source[0]
            if self._fleet.can_accept_migrated(source):
                rejected = (
                    RejectedOption(*request.last_outcome)
                    if request.last_outcome
                    else RejectedOption("move", "not taken")
                )
                why = Why("migration", f"back to {source.name}", (), (rejected,))
                effects.append(self._placer.dispatch(now_s, request, source, why))
        return effects
