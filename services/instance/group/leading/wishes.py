"""What the leader of a group asks its manager for: more members when slots are short. And what it gives back: members
that it does not need, that cannot join, or that are silent while slots are short. Without an answer nothing changes.
"""

from dataclasses import dataclass

from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.plan import AskMembers, ReturnMembers
from dunlin.messages.types import Figure, RejectedOption, Why
from services.instance.group.config import InstanceGroupsConfig
from services.instance.group.leading.member_state import MemberState
from services.instance.group.leading.placement import SpreadPlacement
from services.instance.group.leading.roster import MAX_TRIES, GroupRoster
from services.instance.group.leading.spread_table import SpreadTable

ALL_TRIES = MAX_TRIES * (MAX_TRIES + 1) // 2
"""What the roster tries again and again comes so many retry times after the first, and then no more."""


@dataclass(frozen=True, slots=True)
class ReturnDue:
    """Give members back that have been idle since this `turn`."""

    turn: int


@dataclass(frozen=True, slots=True)
class AbsenceDue:
    """Give the member back if it has not taken part since this `turn`."""

    group: int
    member: Address
    turn: int


class MemberWishes:
    """Owns what was said to the manager: it is said once for each order and state of the group.

    `_absent`: the members that do not take part, by the turn since which they do not. A newer order changes nothing in
    it: it may have come for other members' sake.
    """

    def __init__(
        self, config: InstanceGroupsConfig, spreads: SpreadTable, roster: GroupRoster, placement: SpreadPlacement
    ) -> None:
        self._manager: Address | None = None
        self._return_after_s = config.return_after_s
        self._join_s = config.retry_s * ALL_TRIES
        self._spreads = spreads
        self._roster = roster
        self._placement = placement
        self._asked = 0
        self._asked_for: tuple[int, ...] | None = None
        self._idle: list[int] = []
        self._turn = 0
        self._absent: dict[Address, int] = {}
        self._absences = 0

    def follow(self, manager: Address) -> None:
        """The manager sent a newer order: what is still wished after it is said anew."""
        self._manager = manager
        self._asked_for, self._idle = None, []

    def advance(self) -> list[Effect]:
        """Say what changed."""
        if self._manager is None:
            return []
        return self._ask() + self._give_back_silent() + self._watch_idle() + self._watch_absent()

    def on_due(self, due: ReturnDue) -> list[Effect]:
        """Give back the members that are idle still."""
        idle = self._idle_members()
        if due.turn != self._turn or not idle:
            return []
        self._idle = []
        states = [state for state in self._roster.members if state.index in idle]
        return self._give_back(states, "nothing of a request lies there, and none waits")

    def on_absence_due(self, due: AbsenceDue) -> list[Effect]:
        """Give back a member that has not joined for as long as the roster tries, or not again: its manager counts on
        slots that no request here gets.
        """
        state = self._roster.member_at(due.member)
        if due.group != self._roster.group or state is None or self._absent.get(due.member) != due.turn:
            return []
        del self._absent[due.member]
        return self._give_back([state], f"it has not joined for {self._join_s:g} s", cannot_join=True)

    def _give_back(self, states: list[MemberState], because: str, cannot_join: bool = False) -> list[Effect]:
        order, manager = self._roster.order, self._manager
        assert order is not None
        assert manager is not None
        for state in states:
            state.is_returned = True
        figures = (Figure("members", len(self._roster.members)), Figure("members_used", len(self._used())))
        chosen = f"give {len(states)} members back" if len(states) > 1 else f"give {states[0].address.name} back"
        why = Why("group", chosen, figures, (RejectedOption("keep them", because),))
        addresses = tuple(state.address for state in states)
        return [Send(manager, ReturnMembers(order.epoch, order.plan_version, order.group, addresses, why, cannot_join))]

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

    def _give_back_silent(self) -> list[Effect]:
        """Give back at once the members that do not end a step that they were told to end, while more slots are asked
        for: the manager would count on theirs until their own instances or the monitor have noticed. The leader is
        among them where its own engine is silent: the group ends then.
        """
        silent = [state for state in self._roster.members if state.is_silent and not state.is_returned]
        if not silent or not self._asked:
            return []
        return self._give_back(silent, "silent in a step that it was told to end", cannot_join=True)

    def _watch_idle(self) -> list[Effect]:
        """Start to wait where other members are idle than before."""
        idle = self._idle_members()
        if idle == self._idle:
            return []
        self._idle = idle
        self._turn += 1
        return [After(self._return_after_s, ReturnDue(self._turn))] if idle else []

    def _watch_absent(self) -> list[Effect]:
        """Start to wait for members that do not take part, or no longer. Where tokens lie, patience ends it."""
        if self._roster.is_complete and not self._absent:
            return []
        used, before, self._absent = self._used(), self._absent, {}
        effects: list[Effect] = []
        for state in self._roster.members:
            takes_part = state.index in self._roster.taking_part
            if not state.index or takes_part or state.is_returned or state.index in used:
                continue
            if state.address not in before:
                self._absences += 1
                due = AbsenceDue(self._roster.group, state.address, self._absences)
                effects.append(After(self._join_s, due))
            self._absent[state.address] = before.get(state.address, self._absences)
        return effects

    def _idle_members(self) -> list[int]:
        """Members that take part, on which nothing of a sequence lies or is asked for; none while they are needed."""
        used = self._used()
        idle = [member for member in self._roster.placeable() if member and member not in used]
        is_needed = self._spreads.waiting() or (idle and self._placement.missing_slots(without=idle))
        return [] if is_needed else idle

    def _used(self) -> set[int]:
        """Members with guests."""
        return {member for spread in self._spreads for member in spread.guests}
