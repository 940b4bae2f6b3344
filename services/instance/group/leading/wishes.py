"""What the leader of a group asks its manager for: more members when slots are short, and members back that it does not
need. Without an answer nothing changes.
"""

from dataclasses import dataclass

from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.plan import AskMembers, ReturnMembers
from dunlin.messages.types import Figure, RejectedOption, Why
from services.instance.group.leading.placement import SpreadPlacement
from services.instance.group.leading.roster import GroupRoster
from services.instance.group.leading.spread_table import SpreadTable


@dataclass(frozen=True, slots=True)
class ReturnDue:
    """Give members back that have been idle since this `turn`."""

    turn: int


class MemberWishes:
    """Owns what was said to the manager: it is said once for each order and state of the group."""

    def __init__(
        self, return_after_s: float, spreads: SpreadTable, roster: GroupRoster, placement: SpreadPlacement
    ) -> None:
        self._manager: Address | None = None
        self._return_after_s = return_after_s
        self._spreads = spreads
        self._roster = roster
        self._placement = placement
        self._asked = 0
        self._asked_for: tuple[int, ...] | None = None
        self._idle: list[int] = []
        self._turn = 0

    def follow(self, manager: Address) -> None:
        """The manager sent a newer order: what is still wished after it is said anew."""
        self._manager = manager
        self._asked_for, self._idle = None, []

    def advance(self) -> list[Effect]:
        """Say what changed."""
        return self._ask() + self._watch_idle() if self._manager is not None else []

    def on_due(self, due: ReturnDue) -> list[Effect]:
        """Give back the members that are idle still."""
        idle = self._idle_members()
        if due.turn != self._turn or not idle or self._manager is None or self._roster.order is None:
            return []
        states = [state for state in self._roster.members if state.index in idle]
        for state in states:
            state.is_returned = True
        order, self._idle = self._roster.order, []
        figures = (Figure("members", len(self._roster.members)), Figure("members_used", len(self._used())))
        rejected = (RejectedOption("keep them", "nothing of a request lies there, and none waits"),)
        why = Why("group", f"give {len(states)} members back", figures, rejected)
        addresses = tuple(state.address for state in states)
        returned = ReturnMembers(order.epoch, order.plan_version, order.group, addresses, why)
        return [Send(self._manager, returned)]

    def _ask(self) -> list[Effect]:
        if self._roster.awaits_members or any(each.is_opening for each in self._spreads.live()):
            return []
        missing = self._placement.missing_slots()
        lacking = [each.number for each in self._spreads if each.is_waiting or (each.is_live and each.missing)]
        for_whom = tuple(lacking) if missing else ()
        is_same = (missing > 0) == (self._asked > 0) and for_whom == self._asked_for
        if is_same or not (missing or self._asked):
            return []
        self._asked, self._asked_for = missing, for_whom
        order, manager = self._roster.order, self._manager
        assert order is not None
        assert manager is not None
        figures = (
            Figure("slots", missing),
            Figure("members", len(self._roster.members)),
            Figure("waiting", len(self._spreads.waiting())),
        )
        why = Why("group", "ask for members" if missing else "need no more members", figures)
        return [Send(manager, AskMembers(order.epoch, order.plan_version, order.group, missing, why))]

    def _watch_idle(self) -> list[Effect]:
        """Start to wait where other members are idle than before."""
        idle = self._idle_members()
        if idle == self._idle:
            return []
        self._idle = idle
        self._turn += 1
        return [After(self._return_after_s, ReturnDue(self._turn))] if idle else []

    def _idle_members(self) -> list[int]:
        """Members that take part, on which nothing of a sequence lies or is asked for; none while they are needed."""
        used = self._used()
        idle = [member for member in self._roster.placeable() if member and member not in used]
        is_needed = self._spreads.waiting() or (idle and self._placement.missing_slots(without=idle))
        return [] if is_needed else idle

    def _used(self) -> set[int]:
        """Members with guests."""
        return {member for spread in self._spreads for member in spread.guests}
