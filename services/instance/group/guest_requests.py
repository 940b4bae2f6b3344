"""The leader's requests for slots at its group's members, and what it knows of the slots that are free there.

One request, one answer; a member that is lost answers none. Decides nothing.
"""

from collections import deque

from dunlin.effects import Effect, Send
from dunlin.messages.group import CloseGuest, GrowGuest, GuestClosed, GuestRefused, GuestSlots, OpenGuest
from dunlin.messages.types import Why, i32
from dunlin.policies.elastic import MemberRoom
from services.instance.group.roster import Roster
from services.instance.group.spread import Guest, SpreadSequence


class GuestRequests:
    """Owns what is asked of members: `_asked` are slots by member, in the order of the requests without an answer."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._free: dict[int, int] = {}
        self._asked: dict[int, deque[int]] = {}

    def rooms(self, rows: dict[int, int]) -> list[MemberRoom]:
        """The slots that may be asked for at each member; `rows` are those that it masters."""
        members = self._roster.placeable()
        return [MemberRoom(member, self.free(member), rows.get(member, 0)) for member in members]

    def free(self, member: int) -> int:
        """Slots that are free there, as far as is known, less those that are asked for."""
        asked = 0
        for slots in self._asked.get(member, ()):
            asked += slots
        return max(0, self._free.get(member, 0) - asked)

    def set_free(self, member: int, slots: int) -> None:
        """The member says how many slots are free."""
        self._free[member] = slots

    def forget_free(self) -> None:
        """What was said of free slots is old, for members' own requests end without a word: suppose that all are."""
        for state in self._roster.members:
            if state.ready is not None:
                self._free[state.index] = state.ready.capacity_slots

    def lose(self, member: int) -> None:
        """The member answers nothing that it was asked, and has nothing."""
        self._free.pop(member, None)
        self._asked.pop(member, None)

    def open(self, spread: SpreadSequence, member: int, more: int, why: Why | None = None) -> Effect:
        """Open the sequence there with `more` slots than it has, or tell its engine the text anew (0 more)."""
        guest = spread.guests.setdefault(member, Guest())
        guest.knows_text = True
        sequence, place = spread.sequence, spread.sequence.place
        opened = OpenGuest(
            self._roster.group,
            spread.number,
            sequence.dispatcher,
            place.request,
            place.attempt,
            place.key,
            i32(sequence.tokens),
            place.prompt_tokens,
            place.max_tokens,
            guest.slots + more,
            place.sampling,
            place.stop_ids,
            sequence.valid,
            why,
        )
        self._note(guest, member, more)
        return Send(self._roster.address(member), opened)

    def grow(self, spread: SpreadSequence, member: int, more: int) -> Effect:
        """Ask for `more` slots for an open guest."""
        guest = spread.guests[member]
        self._note(guest, member, more)
        grown = GrowGuest(self._roster.group, spread.number, guest.slots + more)
        return Send(self._roster.address(member), grown)

    def close(self, spread: SpreadSequence, member: int) -> list[Effect]:
        """Close the guest, once."""
        guest = spread.guests[member]
        if guest.is_closing:
            return []
        guest.is_closing = True
        return [Send(self._roster.address(member), CloseGuest(self._roster.group, spread.number))]

    def on_slots(self, spread: SpreadSequence | None, member: int, message: GuestSlots) -> None:
        """Slots were granted."""
        self._answered(member, message.available_slots)
        guest = spread.guests.get(member) if spread is not None else None
        if spread is not None and guest is not None:
            guest.asked -= 1
            guest.is_open, guest.slots = True, message.slots

    def on_refused(self, spread: SpreadSequence | None, member: int, message: GuestRefused) -> None:
        """There are none: what was granted before stays."""
        asked = self._answered(member, message.available_slots)
        if asked <= message.available_slots:
            self._free[member] = 0  # it refused what it says is free: it is not asked again at once
        guest = spread.guests.get(member) if spread is not None else None
        if spread is None or guest is None:
            return
        guest.asked -= 1
        if not guest.is_open and not guest.asked and not guest.is_closing:
            del spread.guests[member]

    def on_closed(self, spread: SpreadSequence | None, member: int, message: GuestClosed) -> None:
        """Nothing of the sequence is left there."""
        self._free[member] = message.available_slots
        if spread is not None:
            spread.guests.pop(member, None)

    def _note(self, guest: Guest, member: int, more: int) -> None:
        guest.asked += 1
        self._asked.setdefault(member, deque()).append(more)

    def _answered(self, member: int, available: int) -> int:
        """A member said how many slots are free now, and answered a request for so many."""
        self._free[member] = available
        asked = self._asked.get(member)
        return asked.popleft() if asked else 0
