"""The streams to dispatchers, and what they and leaders of groups ask of the manager: each message to its part.

Says to every dispatcher whether this process leads. Knows the planner and the placement of long requests, decides
nothing itself.
"""

from dunlin.cores.handlers import handles
from dunlin.effects import Address, Effect, Send
from dunlin.messages.placement import Leads, PlaceLong, WithdrawLong
from dunlin.messages.plan import AskMembers, ReturnMembers
from services.global_manager.config import LongRequestsConfig
from services.global_manager.long_placement import not_leading
from services.global_manager.planner import GroupPlanner, ManagerTotals


class LongRequestRoutes:
    """Owns the dispatchers that have a stream to here."""

    def __init__(self, planner: GroupPlanner, config: LongRequestsConfig, totals: ManagerTotals) -> None:
        self._planner = planner
        self._retry_after_s = config.retry_after_s
        self._totals = totals
        self._dispatchers: dict[Address, None] = {}

    def on_dispatcher_joined(self, dispatcher: Address) -> list[Effect]:
        """A stream opened: say whether this process leads."""
        self._dispatchers[dispatcher] = None
        return [Send(dispatcher, self._leads())]

    def on_dispatcher_gone(self, now_s: float, dispatcher: Address) -> list[Effect]:
        """A stream ended: nothing that its dispatcher asked for is promised any more."""
        self._dispatchers.pop(dispatcher, None)
        if self._planner.long is None:
            return []
        self._planner.long.on_dispatcher_gone(dispatcher)
        return self._planner.replan_soon(now_s)

    def say_who_leads(self) -> list[Effect]:
        """This process began to lead, or ended."""
        return [Send(dispatcher, self._leads()) for dispatcher in self._dispatchers]

    def look(self, now_s: float) -> list[Effect]:
        """Now and then: refuse what has waited for too long, let leaders say anew what they give back, end groups."""
        planner = self._planner
        if planner.term is None or planner.long is None:
            return []
        long = planner.long
        effects = long.refuse_overdue(now_s)
        for number in long.groups.take_kept():
            effects += planner.send(planner.term.renew(number))
        if long.groups.groups:
            long.groups.look_for_idle(now_s, planner.candidates(planner.term))
        return [*effects, *self.look_at_view(now_s)]

    def look_at_view(self, now_s: float) -> list[Effect]:
        """A new view, or some time passed: plan anew if that may find room for what waits, or end a group."""
        long = self._planner.long
        return self._planner.replan_soon(now_s) if long is not None and long.groups.has_work(now_s) else []

    @handles
    def on_place(self, now_s: float, sender: Address, message: PlaceLong) -> list[Effect]:
        """A dispatcher asks for a group."""
        if self._planner.long is None:
            return [Send(sender, not_leading(message, self._retry_after_s))]
        return [*self._planner.long.on_place(now_s, sender, message), *self.look_at_view(now_s)]

    @handles
    def on_withdraw(self, now_s: float, sender: Address, message: WithdrawLong) -> list[Effect]:
        """A request needs no group any more."""
        if self._planner.long is None:
            return []
        self._planner.long.on_withdraw(sender, message)
        return self._planner.replan_soon(now_s)

    @handles
    def on_wish(self, now_s: float, sender: Address, message: AskMembers | ReturnMembers) -> list[Effect]:
        """A leader lacks slots, or gives members back."""
        term, long = self._planner.term, self._planner.long
        if term is None or long is None or not long.on_wish(now_s, term, sender, message):
            self._totals.stale += 1
            return []
        return self._planner.replan_soon(now_s)

    def _leads(self) -> Leads:
        return Leads(self._planner.term.epoch if self._planner.term is not None else 0)
