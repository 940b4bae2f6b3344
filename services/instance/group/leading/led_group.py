"""One elastic group that this instance leads: builds its parts, and gives each event to those that it concerns."""

from collections.abc import Callable

from dunlin.cost.models import StepTimes
from dunlin.effects import Address, Effect
from dunlin.messages.group import (
    GroupStepDone,
    GuestClosed,
    GuestRefused,
    GuestsLost,
    GuestSlots,
    MemberReady,
    MembersMet,
)
from dunlin.messages.plan import GroupOrder
from dunlin.policies.overtake import OvertakePolicy
from services.instance.group.config import InstanceGroupsConfig
from services.instance.group.leading.ends import PatienceOver, SpreadEnds
from services.instance.group.leading.exchange_times import ExchangeTimes
from services.instance.group.leading.exchange_tokens import ExchangeTokens
from services.instance.group.leading.exchanges import ExchangeLedger
from services.instance.group.leading.guest_requests import GuestRequests
from services.instance.group.leading.late_parts import LateLook, LateParts
from services.instance.group.leading.numbers import LeaderNumbers
from services.instance.group.leading.overtaking import SpreadOvertakers
from services.instance.group.leading.placement import JoinWaitOver, SlotsRetry, SpreadPlacement
from services.instance.group.leading.ring_totals import RingTotals
from services.instance.group.leading.roster import GroupRoster, MemberRetry
from services.instance.group.leading.spread_table import SpreadTable
from services.instance.group.leading.stepping import RowRetry, SpreadSteps
from services.instance.group.leading.suspects import SpreadSuspects
from services.instance.group.leading.wishes import AbsenceDue, MemberWishes, ReturnDue
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.table import SequenceTable

Said = MemberReady | MembersMet | GuestSlots | GuestRefused | GuestClosed | GroupStepDone | GuestsLost
Timer = MemberRetry | JoinWaitOver | SlotsRetry | RowRetry | PatienceOver | ReturnDue | AbsenceDue | LateLook


class LedGroup:
    """A group from the order that forms it to the one that ends it."""

    def __init__(
        self,
        own: Address,
        config: InstanceGroupsConfig,
        streams: set[Address],
        sequences: SequenceTable,
        lifecycle: SequenceLifecycle,
        tokens: ExchangeTokens,
        times: Callable[[], StepTimes | None],
        rings: RingTotals,
        numbers: LeaderNumbers,
        exchange_times: ExchangeTimes,
        overtake_policy: OvertakePolicy,
    ) -> None:
        self.spreads = spreads = SpreadTable(numbers.guests)
        ledger = ExchangeLedger(numbers.exchanges)
        self.roster = roster = GroupRoster(own, streams, config.retry_s, self._on_member_lost)
        self.requests = requests = GuestRequests(roster)
        overtakers = SpreadOvertakers(overtake_policy, spreads, roster)
        self.placement = SpreadPlacement(config, sequences, spreads, roster, requests, rings, times, overtakers)
        self.steps = SpreadSteps(config, lifecycle, spreads, roster, requests, tokens, times, rings, ledger)
        self.late_parts = LateParts(config.late_s, exchange_times, ledger, self.steps, roster)
        self.suspects = SpreadSuspects(lifecycle, spreads, ledger)
        self.ends = SpreadEnds(config.patience_s, lifecycle, spreads, roster, requests, self.steps)
        self.wishes = MemberWishes(config, spreads, roster, self.placement)

    @property
    def number(self) -> int:
        """The group's number."""
        return self.roster.group

    def follow(self, manager: Address, order: GroupOrder) -> list[Effect]:
        """Follow a newer order of this group."""
        self.wishes.follow(manager)
        return [*self.roster.follow(order), *self.placement.await_members()]

    def add(self, now_s: float, sequence: Sequence) -> None:
        """A new sequence waits for slots."""
        self.spreads.add(sequence)
        self.ends.moved(now_s)

    def advance(self, now_s: float) -> list[Effect]:
        """After every event, once answers are settled: end, place, compute, and tell the manager what is lacking."""
        effects = self.ends.advance()
        effects += self.placement.advance()
        effects += self.steps.advance(now_s)
        effects += self.late_parts.advance(now_s)
        return effects + self.wishes.advance()

    def on_gone(self, address: Address) -> list[Effect]:
        """A stream to an instance ended."""
        return self.roster.on_gone(address)

    def on_said(self, now_s: float, sender: Address, message: Said) -> list[Effect] | None:
        """A member's word; None: it is stale."""
        if message.group != self.number:
            return None
        if isinstance(message, GuestsLost):
            return self._on_guests_lost(sender, message)
        state = self.roster.member_at(sender)
        if state is None:
            return None
        if isinstance(message, GroupStepDone):
            self.ends.moved(now_s)
            joins, is_awaited = self.roster.on_answer(state.index), self.steps.on_done(state.index, message)
            self.late_parts.heard(now_s)
            return joins if joins or is_awaited else None
        if isinstance(message, MemberReady):
            self.requests.set_free(state.index, message.available_slots)
            return self.roster.on_ready(sender, message)
        if isinstance(message, MembersMet):
            return self.roster.on_met(sender, message)
        return self._on_guest(now_s, state.index, message)

    def _on_guests_lost(self, sender: Address, lost: GuestsLost) -> list[Effect]:
        """Also of one that an order took away before its word came: its engine crashed all the same."""
        reason = lost.why.chosen if lost.why is not None else "it lost all guests"
        return [*self.suspects.on_crash(lost), *self.roster.on_lost(sender, reason)]

    def _on_guest(self, now_s: float, member: int, message: GuestSlots | GuestRefused | GuestClosed) -> list[Effect]:
        spread = self.spreads.by_number(message.sequence)
        if isinstance(message, GuestRefused):
            self.requests.on_refused(spread, member, message)
            return []
        self.ends.moved(now_s)
        if isinstance(message, GuestSlots):
            return self.requests.on_slots(spread, member, message)
        self.requests.on_closed(spread, member, message)
        return []

    def on_timer(self, now_s: float, due: Timer) -> list[Effect]:
        """A timer of one of the parts."""
        if isinstance(due, MemberRetry):
            return self.roster.on_retry(due)
        if isinstance(due, LateLook):
            return self.late_parts.on_look(now_s, due)
        if isinstance(due, PatienceOver):
            return self.ends.on_patience_over(now_s, due)
        if isinstance(due, ReturnDue):
            return self.wishes.on_due(due)
        if isinstance(due, AbsenceDue):
            return self.wishes.on_absence_due(due)
        if isinstance(due, SlotsRetry):
            self.placement.on_retry(due)
        elif isinstance(due, JoinWaitOver):
            self.placement.on_join_wait_over(due)
        elif (spread := self.spreads.by_number(due.number)) is not None:
            spread.is_paused = False
        return []

    def _on_member_lost(self, member: int, reason: str) -> list[Effect]:
        return self.ends.on_member_lost(member, reason)
