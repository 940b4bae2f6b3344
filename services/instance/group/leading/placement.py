"""Where the group's sequences get their slots: guests are opened, grow ahead of need, and are left for others.

The choice itself is `dunlin/policies/groups/elastic.py`'s. A sequence asks again after a while when members refuse.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from dunlin.cost.models import StepTimes
from dunlin.effects import After, Effect
from dunlin.messages.lifecycle import MissCause
from dunlin.messages.types import Figure, Why
from dunlin.policies.groups.elastic import (
    PLACEMENT_POLICIES,
    Demand,
    MemberRoom,
    Shares,
    choose_master,
    crowded_masters,
    missing_slots,
)
from dunlin.policies.groups.elastic_rings import RingPlan, plan_ring
from dunlin.policies.groups.tipping import tipping_tokens
from services.instance.group.config import InstanceGroupsConfig
from services.instance.group.leading.guest_requests import GuestRequests
from services.instance.group.leading.overtaking import SpreadOvertakers
from services.instance.group.leading.ring_totals import RingTotals
from services.instance.group.leading.roster import GroupRoster
from services.instance.group.leading.spread import SpreadSequence
from services.instance.group.leading.spread_table import SpreadTable
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable

MAX_DELAYS = 8
"""The time between two requests for slots grows up to so many times the first."""


@dataclass(frozen=True, slots=True)
class SlotsRetry:
    """Ask members for slots that they had not, unless that was done since this `turn`."""

    turn: int


@dataclass(frozen=True, slots=True)
class JoinWaitOver:
    """Members that have not joined since an order (`turn`) are waited for no longer."""

    turn: int


class SpreadPlacement:
    """Asks members for slots, in the order of the sequences: none is opened while one before it lacks some, but for
    those that may overtake it, nor for a moment after an order of which members have not joined yet.
    """

    def __init__(
        self,
        config: InstanceGroupsConfig,
        sequences: SequenceTable,
        spreads: SpreadTable,
        roster: GroupRoster,
        requests: GuestRequests,
        rings: RingTotals,
        times: Callable[[], StepTimes | None],
        overtakers: SpreadOvertakers,
    ) -> None:
        self._times = times
        self._overtakers = overtakers
        self._rows_per_master: int | None = None
        self._crowded = set[int]()
        self._config = config
        self._policy = PLACEMENT_POLICIES[config.policy]
        self._sequences = sequences
        self._spreads = spreads
        self._roster = roster
        self._requests = requests
        self._rings = rings
        self._turn = 0
        self._tries = 0
        self._is_armed = False
        self._orders = 0
        self._awaits_members = False

    def await_members(self) -> list[Effect]:
        """A newer order came: a sequence that were opened now would be spread over those that joined before."""
        self._orders += 1
        self._awaits_members = self._roster.awaits_members
        self._rows_per_master = None
        return [After(self._config.retry_s, JoinWaitOver(self._orders))] if self._awaits_members else []

    def on_join_wait_over(self, due: JoinWaitOver) -> None:
        """They were waited for."""
        self._awaits_members = self._awaits_members and due.turn != self._orders

    def advance(self) -> list[Effect]:
        """Ask for what is lacking, as far as members have it; for the rest after a while."""
        effects: list[Effect] = []
        self._crowded = self._crowded_masters()
        for spread in self._spreads.live():
            effects += self._provide(spread)
            if spread.missing:
                spread.sequence.blame(MissCause.SLOTS)
        self._awaits_members = self._awaits_members and self._roster.awaits_members
        effects += [] if self._awaits_members else self._start_waiting()
        return effects + self._retry_later()

    def _start_waiting(self) -> list[Effect]:
        """Open waiting sequences in their order until one does not fit, and of those behind it what may overtake."""
        effects: list[Effect] = []
        blocked: SpreadSequence | None = None
        for spread in self._spreads.waiting():
            if any(each.missing for each in self._spreads.live() if each.turn < spread.turn):
                break
            if blocked is not None and not self._overtakers.may_start(spread, blocked):
                continue
            opened = self._open(spread)
            effects += opened
            spread.sequence.has_overtaken |= blocked is not None and len(opened) > 0
            if not opened and blocked is None and self._overtakers.blocks(spread):
                blocked = spread
        return effects

    def on_retry(self, due: SlotsRetry) -> None:
        """Time to ask again."""
        if due.turn == self._turn:
            self._is_armed = False
        if due.turn == self._turn and self._is_short:
            self._requests.forget_free()

    @property
    def _is_short(self) -> bool:
        """Whether a sequence lacks slots, and no member was asked for them."""
        live = self._spreads.live()
        if any(each.missing and not each.is_opening for each in live):
            return True
        return len(self._spreads.waiting()) > 0 and not any(each.is_opening for each in live)

    def _retry_later(self) -> list[Effect]:
        is_short = self._is_short
        if not is_short and not any(each.is_opening for each in self._spreads.live()):
            self._tries = 0
        if not is_short or self._is_armed:
            return []
        self._is_armed = True
        self._turn += 1
        self._tries = min(self._tries + 1, MAX_DELAYS)
        return [After(self._config.retry_s * self._tries, SlotsRetry(self._turn))]

    def _crowded_masters(self) -> set[int]:
        """The masters of which a row is to go on at another member, and none does yet."""
        rows, members = self._spreads.rows(), self._roster.placeable()
        if not crowded_masters(rows, members, 1):
            return set()
        if self._rows_per_master is None and (times := self._times()) is not None:
            self._rows_per_master = tipping_tokens(times)
        if self._rows_per_master is None:
            return set()
        moving = {spread.master for spread in self._spreads if spread.is_moving}
        return crowded_masters(rows, members, self._rows_per_master) - moving

    def missing_slots(self, without: Collection[int] = ()) -> int:
        """Slots that the group lacks for all its sequences, those that they generate next included; or would lack
        `without` some members.
        """
        demands = [Demand(each.missing, self._ahead(each), 1) for each in self._spreads.live()]
        demands += [Demand(len(each.sequence.tokens), self._ahead(each), 1) for each in self._spreads.waiting()]
        return missing_slots(demands, [each for each in self._requests.rooms({}) if each.member not in without])

    def _ahead(self, spread: SpreadSequence) -> int:
        """Slots to have for the tokens that it may generate next, beside those that it has; the last one needs none."""
        sequence = spread.sequence
        computed = max(len(sequence.tokens), sequence.issued)
        more = min(self._config.ahead_tokens, sequence.max_length - 1 - computed)
        spare = spread.room - (computed - sequence.issued - spread.held_ahead)
        return max(0, more - max(0, spare))

    def _open(self, spread: SpreadSequence) -> list[Effect]:
        """Ask members for slots for a waiting sequence; nothing where they have too few."""
        asked = self._open_ring(spread) or self._place(spread, len(spread.sequence.tokens))
        if asked:
            self._sequences.transition(spread.sequence, SequenceState.SPREAD)
        return asked

    def _open_ring(self, spread: SpreadSequence) -> list[Effect]:
        """Ask for the slots of a ring that computes what is missing of the prompt, if members have them."""
        sequence, most = spread.sequence, self._config.chunk_tokens
        if not self._config.ring or sequence.in_steps or sequence.trial_stop or spread.after_hole:
            return []
        rooms = [self._with_own(spread, each) for each in self._rooms(spread)]
        demand = Demand(len(sequence.tokens) - sequence.issued, self._ahead(spread), most)
        ring = plan_ring(sequence.issued, demand, rooms, most)
        if ring is None:
            return []
        lacking = spread.begin_ring(ring)
        why = _why_ring(ring, demand, rooms, spread)
        return [self._ask(spread, member, lacking[member], why) for member in sorted(lacking) if lacking[member]]

    def _with_own(self, spread: SpreadSequence, room: MemberRoom) -> MemberRoom:
        """With the slots that the sequence has there already."""
        guest = spread.guests.get(room.member)
        return room if guest is None else MemberRoom(room.member, room.slots + guest.room, room.rows)

    def _end_ring(self, spread: SpreadSequence) -> list[Effect]:
        """Its ring is computed: members where nothing stays are free for others. Or it cannot be: go on without. What
        has only copies of one that is over is closed.
        """
        ring, sequence = spread.ring, spread.sequence
        if ring is not None and sequence.valid >= ring.stop:
            spread.end_ring()
            released = {member for member in ring.members if not spread.guests[member].tokens}
            self._rings.released += len(released)
            spread.stale |= released
        elif ring is not None and not sequence.in_steps and not spread.has_ring_slots:
            spread.end_ring()
        effects: list[Effect] = []
        for member in sorted(spread.stale):
            effects += self._requests.close(spread, member)
        spread.stale.clear()
        return effects

    def _place(self, spread: SpreadSequence, tokens: int) -> list[Effect]:
        """Ask members for slots for so many tokens, and for those after them if there is room for both."""
        rooms = self._rooms(spread)
        for ahead in (self._ahead(spread), 0):
            demand = Demand(tokens, ahead, self._config.chunk_tokens)
            shares = self._policy(demand, rooms)
            if shares is not None:
                why = _why(self._config.policy, demand, rooms, shares, spread)
                return [self._ask(spread, member, shares[member], why) for member in sorted(shares)]
        return []

    def _provide(self, spread: SpreadSequence) -> list[Effect]:
        """Ask for what a sequence with guests lacks, or will soon."""
        may_move = spread.decodes and not spread.is_rolling_back and not spread.redo
        spread.is_moving = spread.is_moving and may_move
        if spread.is_opening or spread.is_rolling_back or spread.redo:
            return []
        if effects := self._end_ring(spread):
            return effects
        if spread.decodes:
            return self._keep_room(spread)
        is_closing = any(guest.is_closing for guest in spread.guests.values())
        seeks_ring = spread.seeks_ring and not spread.after_hole  # holes are computed by queries
        if seeks_ring and (spread.sequence.in_steps or is_closing):
            return []
        if spread.ring is not None or not (spread.missing or seeks_ring):
            return []
        # Members refused slots for its prompt, or are lost.
        spread.seeks_ring = spread.seeks_ring and not seeks_ring
        if (effects := self._open_ring(spread)) or spread.ring is not None or not spread.missing:
            return effects
        return self._place(spread, spread.missing)

    def _keep_room(self, spread: SpreadSequence) -> list[Effect]:
        """Have room for the next tokens at its master; without any there, or with too many rows, go on elsewhere."""
        ahead = spread.sequence.max_length - 1 - spread.sequence.issued
        ahead = min(self._config.ahead_tokens, ahead)
        if spread.master in self._crowded and ahead > 0:
            self._crowded.discard(spread.master)  # one row at a time
            spread.is_moving = True
        if spread.is_moving:
            return [] if spread.sequence.in_steps else self._move(spread, ahead, least=ahead)
        master = spread.guests.get(spread.master)
        room = master.room if master is not None else 0
        if 2 * room >= ahead or ahead <= 0:
            return []
        free = self._requests.free(spread.master) if spread.master in self._roster.taking_part else 0
        if master is not None and free > 0:
            return [self._requests.grow(spread, spread.master, min(ahead, free))]
        if room or spread.sequence.in_steps:
            return []
        return self._move(spread, ahead)

    def _move(self, spread: SpreadSequence, ahead: int, least: int = 1) -> list[Effect]:
        """Choose another master, where it has room for `least` tokens already or may have it."""
        spread.is_moving = False
        rooms: list[MemberRoom] = []
        for each in self._rooms(spread):
            guest = spread.guests.get(each.member)
            own = guest.room if guest is not None else 0
            rooms.append(MemberRoom(each.member, own or each.slots, each.rows))
        chosen = choose_master([each for each in rooms if each.slots >= least])
        if chosen is None:
            return []
        spread.master = chosen
        guest = spread.guests.get(chosen)
        if guest is not None and guest.room:
            return []
        more = min(ahead, self._requests.free(chosen))
        return [self._requests.open(spread, chosen, more, _why_move(rooms, chosen, spread))]

    def _rooms(self, spread: SpreadSequence) -> list[MemberRoom]:
        """Where more of it may be placed: not where it is being closed."""
        closing = [member for member, guest in spread.guests.items() if guest.is_closing]
        return [each for each in self._requests.rooms(self._spreads.rows()) if each.member not in closing]

    def _ask(self, spread: SpreadSequence, member: int, slots: int, why: Why) -> Effect:
        guest = spread.guests.get(member)
        if guest is not None and guest.is_open:
            return self._requests.grow(spread, member, slots)
        return self._requests.open(spread, member, slots, why)


def _why(policy: str, demand: Demand, rooms: list[MemberRoom], shares: Shares, spread: SpreadSequence) -> Why:
    free = sum(each.slots for each in rooms)
    figures = (
        Figure("tokens", demand.tokens),
        Figure("slots", demand.tokens + demand.ahead),
        Figure("free_slots", free),
        Figure("members", len(rooms)),
        Figure("members_used", len(shares)),
    )
    where = ", ".join(f"{slots} at member {member}" for member, slots in sorted(shares.items()))
    return Why(policy, f"slots: {where}", figures, tuple(spread.refusals.values()))


def _why_ring(ring: RingPlan, demand: Demand, rooms: list[MemberRoom], spread: SpreadSequence) -> Why:
    keepers = sorted({block.member for block in ring.kept})
    free = slots = 0
    for each in rooms:
        free += each.slots
        slots += ring.slots.get(each.member, 0)
    figures = (
        Figure("tokens", demand.tokens),
        Figure("slots", slots),
        Figure("free_slots", free),
        Figure("members", len(rooms)),
        Figure("members_used", len(ring.members)),
        Figure("members_kept", len(keepers)),
    )
    chosen = f"round members {', '.join(map(str, sorted(ring.members)))}, kept at {', '.join(map(str, keepers))}"
    return Why("ring", chosen, figures, tuple(spread.refusals.values()))


def _why_move(rooms: list[MemberRoom], chosen: int, spread: SpreadSequence) -> Why:
    figures = (Figure("tokens", len(spread.sequence.tokens)), Figure("members", len(rooms)))
    return Why("master", f"go on at member {chosen}", figures)
