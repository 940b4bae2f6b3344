"""The leader's side of elastic groups: which group this instance leads, if any, and the attempts placed in it."""

from collections.abc import Callable
from typing import Any

from dunlin.cores.handlers import handles
from dunlin.cost.models import StepTimes
from dunlin.effects import Address, Effect, Send
from dunlin.messages.dispatch import Accepted, Place, Refusal
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
from dunlin.messages.types import Figure, GroupKind, GroupRole, Why
from dunlin.policies.overtake import OvertakePolicy
from services.instance.group.config import InstanceGroupsConfig
from services.instance.group.leading.ends import PatienceOver
from services.instance.group.leading.exchange_times import ExchangeTimes
from services.instance.group.leading.exchange_tokens import ExchangeTokens
from services.instance.group.leading.late_parts import LateLook
from services.instance.group.leading.led_group import LedGroup
from services.instance.group.leading.numbers import LeaderNumbers
from services.instance.group.leading.placement import JoinWaitOver, SlotsRetry
from services.instance.group.leading.ring_totals import RingTotals
from services.instance.group.leading.roster import MemberRetry
from services.instance.group.leading.stepping import RowRetry
from services.instance.group.leading.wishes import AbsenceDue, ReturnDue
from services.instance.refusals import refuse
from services.instance.scheduling.lifecycle import SequenceLifecycle
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.table import SequenceTable


class GroupLeader:
    """Owns the group that is led; None while there is none. `stale_total` counts words of members of older groups.

    `times`: what predicts the steps of its own engine, if anything does. `is_draining`: the instance is being emptied;
    what waits goes elsewhere.
    """

    def __init__(
        self,
        own: Address,
        config: InstanceGroupsConfig,
        sequences: SequenceTable,
        lifecycle: SequenceLifecycle,
        tokens: ExchangeTokens,
        times: Callable[[], StepTimes | None],
        is_draining: Callable[[], bool],
        overtake_policy: OvertakePolicy,
    ) -> None:
        self.stale_total = 0
        self._is_draining = is_draining
        self._overtake_policy = overtake_policy
        self._own = own
        self._config = config
        self._sequences = sequences
        self._lifecycle = lifecycle
        self._tokens = tokens
        self._times = times
        self._streams: set[Address] = set()
        self._led: LedGroup | None = None
        self._rings = RingTotals()
        self._numbers = LeaderNumbers()
        self._exchange_times = ExchangeTimes()

    @property
    def led(self) -> LedGroup | None:
        """The group that is led."""
        return self._led

    @property
    def group(self) -> int:
        """The number of the group that is led; 0: none."""
        return self._led.number if self._led is not None else 0

    def report_fields(self) -> dict[str, Any]:
        """The fields of a report that tell of long requests."""
        led = self._led
        waiting = len(led.spreads.waiting()) if led is not None else 0
        running = len(led.spreads.live()) if led is not None else 0
        counts = {"dop_changes_total": self._tokens.dop_changes_total, **self._rings.report_fields()}
        return {"spread_waiting": waiting, "spread_running": running, **counts}

    def on_order(self, manager: Address, order: GroupOrder) -> list[Effect]:
        """The instance follows this order now."""
        leads = order.kind is GroupKind.ELASTIC and order.part is GroupRole.LEADER
        effects: list[Effect] = []
        if self._led is not None and (not leads or order.group != self._led.number):
            effects += self._led.ends.dissolve(_why_it_ended(self._led.number, order))
            self._led = None
        if not leads:
            return effects
        if self._led is None:
            parts = (self._sequences, self._lifecycle, self._tokens, self._times)
            kept = (self._rings, self._numbers, self._exchange_times)
            self._led = LedGroup(self._own, self._config, self._streams, *parts, *kept, self._overtake_policy)
        return effects + self._led.follow(manager, order)

    def on_joined(self, address: Address) -> list[Effect]:
        """A stream to an instance is open."""
        self._streams.add(address)
        return self._led.roster.on_joined(address) if self._led is not None else []

    def on_gone(self, address: Address) -> list[Effect]:
        """The stream to an instance ended."""
        self._streams.discard(address)
        return self._led.on_gone(address) if self._led is not None else []

    def on_reassigned(self, sequence: Sequence) -> list[Effect]:
        """A sequence is another dispatcher's attempt now: where it is a guest, members have to know."""
        spread = self._led.spreads.by_number(sequence.number) if self._led is not None else None
        return self._led.requests.reassign(spread) if self._led is not None and spread is not None else []

    def admit(self, now_s: float, sender: Address, place: Place) -> Effect:
        """Accept an attempt for the group's members, or refuse it."""
        led = self._led
        if led is None or place.group != led.number:
            return refuse(sender, place, Refusal.NOT_IN_PLAN, because=f"it leads group {self.group} now")
        if (refusal := self._refusal(led, sender, place)) is not None:
            return refusal
        sequence = self._sequences.add(sender, place, now_s, led.spreads.next_number(led.number))
        led.add(now_s, sequence)
        figures = (
            Figure("tokens", len(place.tokens)),
            Figure("members", len(led.roster.members)),
            Figure("waiting", len(led.spreads.waiting()) - 1),
        )
        why = Why("group", f"spread it over members of group {led.number}", figures)
        return Send(sender, Accepted(place.request, place.attempt, sequence.number, 0.0, why))

    def _refusal(self, led: LedGroup, sender: Address, place: Place) -> Effect | None:
        """Why it cannot run here, if anything says so: a group that is not complete yet may hold more."""
        waiting = len(led.spreads.waiting())
        if waiting >= self._config.max_waiting:
            queue = (Figure("waiting", waiting), Figure("max", self._config.max_waiting))
            return refuse(sender, place, Refusal.FULL, *queue)
        ready = [state.ready for state in led.roster.members if state.ready is not None]
        longest = place.prompt_tokens + place.max_tokens
        positions = min((each.max_positions for each in ready), default=longest)
        slots = sum(each.capacity_slots for each in ready) if led.roster.is_complete else len(place.tokens)
        if longest <= positions and len(place.tokens) <= slots:
            return None
        figures = (
            Figure("tokens", len(place.tokens)),
            Figure("longest", longest),
            Figure("limit", min(slots, positions)),
        )
        return refuse(sender, place, Refusal.TOO_LONG, *figures)

    def settle(self, now_s: float) -> list[Effect]:
        """After every event, before `advance`: what the answers of members mean for sequences."""
        return self._led.steps.settle(now_s) if self._led is not None else []

    def advance(self, now_s: float) -> list[Effect]:
        """After every event: what follows from it."""
        if self._led is None:
            return []
        returned = self._led.ends.return_waiting() if self._is_draining() else []
        return [*returned, *self._led.advance(now_s)]

    @handles
    def on_said(
        self,
        now_s: float,
        sender: Address,
        message: MemberReady | MembersMet | GuestSlots | GuestRefused | GuestClosed | GroupStepDone | GuestsLost,
    ) -> list[Effect]:
        """A member's word; of an older group it changes nothing."""
        effects = self._led.on_said(now_s, sender, message) if self._led is not None else None
        if effects is None:
            self.stale_total += 1
            return []
        return effects

    @handles
    def on_timer(
        self,
        now_s: float,
        sender: Address,
        due: MemberRetry | JoinWaitOver | SlotsRetry | RowRetry | PatienceOver | ReturnDue | AbsenceDue | LateLook,
    ) -> list[Effect]:
        """A timer of the group; those of an older group may look early at this one, which does no harm."""
        return self._led.on_timer(now_s, due) if self._led is not None else []


def _why_it_ended(group: int, order: GroupOrder) -> str:
    reasons = [each.reason for each in order.why.rejected] if order.why is not None else []
    return ": ".join([f"group {group} is led here no more", *reasons])
