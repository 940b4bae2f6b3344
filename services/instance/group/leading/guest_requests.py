"""The leader's requests for slots at its group's members, and what it knows of the slots that are free there.

One request, one answer; a member that is lost answers none. Decides nothing.
"""

from collections import deque
from dataclasses import dataclass

from dunlin.effects import Effect, Send
from dunlin.messages.group import (
    CloseGuest,
    GrowGuest,
    GuestClosed,
    GuestReassigned,
    GuestRefused,
    GuestSlots,
    OpenGuest,
)
from dunlin.messages.types import RejectedOption, Why, i32, i64
from dunlin.policies.groups.elastic import MemberRoom
from services.instance.group.leading.roster import GroupRoster
from services.instance.group.leading.spread import GuestState, SpreadSequence


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """A member was asked for `slots` more for a sequence; with its text, or (`tells_text` False) without."""

    sequence: int
    slots: int
    tells_text: bool


class GuestRequests:
    """Owns what is asked of members: `_asked` are the requests without an answer by member, in their order."""

    def __init__(self, roster: GroupRoster) -> None:
        self._roster = roster
        self._free: dict[int, int] = {}
        self._asked: dict[int, deque[SlotRequest]] = {}

    def rooms(self, rows: dict[int, int]) -> list[MemberRoom]:
        """The slots that may be asked for at each member; `rows` are those that it masters."""
        members = self._roster.placeable()
        return [MemberRoom(member, self.free(member), rows.get(member, 0)) for member in members]

    def free(self, member: int) -> int:
        """Slots that are free there, as far as is known, less those that are asked for."""
        asked = 0
        for request in self._asked.get(member, ()):
            asked += request.slots
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

    def open(self, spread: SpreadSequence, member: int, more: int, why: Why | None = None) -> Send:
        """Open the sequence there with `more` slots than it has, or tell its engine the text anew (0 more)."""
        guest = spread.guests.setdefault(member, GuestState())
        guest.knows_text = True
        sequence, place = spread.sequence, spread.sequence.place
        held = spread.computed_at(member)
        opened = OpenGuest(
            self._roster.group,
            spread.number,
            sequence.dispatcher,
            place.request,
            place.attempt,
            place.key and sequence.public_key,
            i32(sequence.tokens),
            place.prompt_tokens,
            place.max_tokens,
            guest.slots + more,
            place.sampling,
            place.stop_ids,
            spread.computed_stop,
            why,
            place.adapter,
            i64(block.start for block in held),
            i64(block.stop for block in held),
        )
        self._note(spread, member, SlotRequest(spread.number, more, tells_text=True))
        return Send(self._roster.address(member), opened)

    def grow(self, spread: SpreadSequence, member: int, more: int) -> Effect:
        """Ask for `more` slots for an open guest."""
        guest = spread.guests[member]
        self._note(spread, member, SlotRequest(spread.number, more, tells_text=False))
        grown = GrowGuest(self._roster.group, spread.number, guest.slots + more)
        return Send(self._roster.address(member), grown)

    def reassign(self, spread: SpreadSequence) -> list[Effect]:
        """Tell its members which dispatcher has the request now: they tell it of a crash that comes when the group is
        over.
        """
        sequence, place = spread.sequence, spread.sequence.place
        told = GuestReassigned(self._roster.group, spread.number, sequence.dispatcher, place.request, place.attempt)
        open_at = [member for member in sorted(spread.guests) if not spread.guests[member].is_closing]
        return [Send(self._roster.address(member), told) for member in open_at]

    def close(self, spread: SpreadSequence, member: int) -> list[Effect]:
        """Close the guest, once."""
        guest = spread.guests[member]
        if guest.is_closing:
            return []
        guest.is_closing = True
        return [Send(self._roster.address(member), CloseGuest(self._roster.group, spread.number))]

    def on_slots(self, spread: SpreadSequence | None, member: int, message: GuestSlots) -> list[Effect]:
        """Slots were granted; where it had lost the guest before it heard of the request they are given back."""
        self._answered(member, message.sequence, message.available_slots)
        guest = spread.guests.get(member) if spread is not None else None
        if guest is None:
            return [Send(self._roster.address(member), CloseGuest(self._roster.group, message.sequence))]
        guest.asked -= 1
        guest.is_open, guest.slots = True, message.slots
        if spread is not None:
            spread.refusals.pop(member, None)
            spread.adopt(member, zip(message.held_start, message.held_stop, strict=True))
        return []

    def on_refused(self, spread: SpreadSequence | None, member: int, message: GuestRefused) -> None:
        """There are none: what was granted before stays."""
        request = self._answered(member, message.sequence, message.available_slots)
        if request.slots <= message.available_slots:
            self._free[member] = 0  # it refused what it says is free: it is not asked again at once
        guest = spread.guests.get(member) if spread is not None else None
        if spread is None or guest is None:
            return
        guest.asked -= 1
        said = f"{request.slots} slots asked for, {message.available_slots} were free"
        spread.refusals[member] = RejectedOption(f"member {member}", said)
        guest.knows_text = guest.knows_text and not request.tells_text
        if not guest.is_open and not guest.asked and not guest.is_closing:
            del spread.guests[member]

    def on_closed(self, spread: SpreadSequence | None, member: int, message: GuestClosed) -> None:
        """Nothing of the sequence is left there."""
        self._free[member] = message.available_slots
        guest = spread.guests.get(member) if spread is not None else None
        if spread is not None and guest is not None and guest.is_closing:  # it may have been opened again since
            del spread.guests[member]

    def _note(self, spread: SpreadSequence, member: int, request: SlotRequest) -> None:
        spread.guests[member].asked += 1
        self._asked.setdefault(member, deque()).append(request)

    def _answered(self, member: int, number: int, available: int) -> SlotRequest:
        """A member said how many slots are free now, and answered the first request for that sequence."""
        self._free[member] = available
        asked = self._asked.get(member, deque())
        for request in asked:
            if request.sequence == number:
                asked.remove(request)
                return request
        return SlotRequest(number, 0, tells_text=False)
