"""The members of the group that this instance leads: they are dialed, join, and their engines meet.

A member takes part once its engine and those of all others that take part can reach each other; what is done with
members that take part is no business of this file.
"""

from collections.abc import Callable
from dataclasses import dataclass

from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.group import DIALING, DialPeer, JoinGroup, MeetMembers, MemberReady, MembersMet
from dunlin.messages.plan import GroupOrder
from services.instance.group.leading.member_state import MemberState

MAX_TRIES = 8
"""How often a member is dialed, or told to meet the others, in vain; then it waits for a newer order or engine."""


@dataclass(frozen=True, slots=True)
class MemberRetry:
    """Ask the member again, unless it has moved on since this `turn`."""

    group: int
    member: int
    turn: int


class GroupRoster:
    """Owns the members of one group. `on_lost(member, reason)`: nothing of a sequence lies there any more.

    `taking_part`: those that may be named in steps. `streams`: the instances that a stream joins this one with.
    """

    def __init__(
        self, own: Address, streams: set[Address], retry_s: float, on_lost: Callable[[int, str], list[Effect]]
    ) -> None:
        self.order: GroupOrder | None = None
        self.taking_part: set[int] = set()
        self._own = own
        self._streams = streams
        self._retry_s = retry_s
        self._on_lost = on_lost
        self._members: dict[int, MemberState] = {}
        self._questions = 0

    @property
    def group(self) -> int:
        """The group's number; 0: none."""
        return self.order.group if self.order is not None else 0

    @property
    def members(self) -> list[MemberState]:
        """All of them, by index."""
        return [self._members[index] for index in sorted(self._members)]

    @property
    def is_complete(self) -> bool:
        """Whether every member of the order takes part."""
        return len(self.taking_part) == len(self._members)

    @property
    def awaits_members(self) -> bool:
        """Whether members of the order are on their way: not those that were lost, or cannot be dialed or met, which
        may never come.
        """
        return any(each.index not in self.taking_part and each.is_expected for each in self._members.values())

    def placeable(self) -> list[int]:
        """The members that take part and were not given back."""
        return [each.index for each in self.members if each.index in self.taking_part and not each.is_returned]

    def address(self, member: int) -> Address:
        """The member's instance."""
        return self._members[member].address

    def member_at(self, address: Address) -> MemberState | None:
        """The member with that address."""
        return next((each for each in self._members.values() if each.address == address), None)

    def follow(self, order: GroupOrder) -> list[Effect]:
        """Follow a newer order of the group: dial members that are new, forget those that are gone."""
        self.order = order
        effects: list[Effect] = []
        for state in self.members:
            if state.address not in order.members:
                effects += self._lose(state, "the manager gave it to others")
                del self._members[state.index]
            state.is_returned, state.tries = False, 0
        for address in (self._own, *order.members):
            if self.member_at(address) is None:
                index = 0 if address == self._own else self._free_index()
                self._members[index] = MemberState(index, address)
        for state in self.members:
            effects += self._ask(state) if state.ready is None else []
        return effects + self._meet_all()

    def on_joined(self, address: Address) -> list[Effect]:
        """A stream to an instance is open."""
        state = self.member_at(address)
        return self._ask(state) if state is not None else []

    def on_gone(self, address: Address) -> list[Effect]:
        """The stream ended; whatever was said on it may be lost."""
        state = self.member_at(address)
        if state is None:
            return []
        state.end_silence()
        return [*self._lose(state, "its stream ended"), *self._ask_later(state)]

    def on_ready(self, sender: Address, ready: MemberReady) -> list[Effect]:
        """A member says what it brings, anew where its agent or its slots changed."""
        state = self.member_at(sender)
        if state is None or state.is_silent:
            return []
        if state.ready is None or state.ready.agent != ready.agent or state.ready.engine != ready.engine:
            state.forget_meetings()
            state.tries = 0
            self.taking_part.discard(state.index)
        state.ready = ready
        return self._meet_all()

    def on_met(self, sender: Address, message: MembersMet) -> list[Effect]:
        """A member's engine has met those of the others, or some of them, by the question that was asked last."""
        state = self.member_at(sender)
        if state is None or not state.is_asked or message.question != state.question:
            return []
        state.is_asked = False
        state.reaches = {member: state.told[member].agent for member in message.met if member in state.told}
        effects = self._meet_all()
        if state.is_asked or all(map(state.can_reach, self._others(state))):
            return effects
        return effects + self._ask_later(state)

    def on_lost(self, sender: Address, reason: str) -> list[Effect]:
        """The member says that it has nothing of the group any more. It will say so when it is ready anew, but it may
        follow an order that took it away meanwhile, of which nothing is known here: it is asked for the newest one.
        """
        state = self.member_at(sender)
        if state is None:
            return []
        state.end_silence()
        return [*self._lose(state, reason), *self._ask(state)]

    def on_silent(self, member: int) -> list[Effect]:
        """The member does not end a step that it was told to end: it is lost until it does."""
        state = self._members[member]
        state.is_silent = True
        return self._lose(state, "it is silent in a step that it was told to end")

    def on_answer(self, member: int) -> list[Effect]:
        """The member has answered a step; if it was given up for its silence, it may join again."""
        state = self._members[member]
        if not state.is_silent:
            return []
        state.end_silence()
        return self._ask(state)

    def on_retry(self, due: MemberRetry) -> list[Effect]:
        """Ask a member again."""
        state = self._members.get(due.member)
        if due.group != self.group or state is None or state.turn != due.turn:
            return []
        return self._ask(state) if state.ready is None else self._meet(state)

    def _ask(self, state: MemberState) -> list[Effect]:
        """Ask it to join; dial it first where no stream does."""
        order = self.order
        assert order is not None
        if state.address == self._own or state.address in self._streams:
            state.turn += 1
            return [Send(state.address, JoinGroup(order.epoch, order.plan_version, order.group, state.index))]
        return [Send(DIALING, DialPeer(state.address)), *self._ask_later(state)]

    def _ask_later(self, state: MemberState) -> list[Effect]:
        if state.tries >= MAX_TRIES:
            return []
        state.turn += 1
        state.tries += 1
        return [After(self._retry_s * state.tries, MemberRetry(self.group, state.index, state.turn))]

    def _meet_all(self) -> list[Effect]:
        """Tell each member of engines that it was not told of yet."""
        effects: list[Effect] = []
        for state in self.members:
            others = self._others(state) if state.ready is not None else []
            if any(state.told.get(other.index) != other.engine for other in others):
                effects += self._meet(state)
        self._admit()
        return effects

    def _meet(self, state: MemberState) -> list[Effect]:
        told = {other.index: other.engine for other in self._others(state) if other.engine is not None}
        self._questions += 1
        state.told, state.question, state.is_asked = told, self._questions, True
        return [Send(state.address, MeetMembers(self.group, tuple(told.values()), self._questions))]

    def _others(self, state: MemberState) -> list[MemberState]:
        """The other members that are ready."""
        return [each for each in self.members if each is not state and each.ready is not None]

    def _admit(self) -> None:
        """Let every member take part that all members taking part can reach."""
        for state in self.members:
            others = [each for each in self.members if each.index in self.taking_part and each is not state]
            if state.ready is not None and all(state.fits(each) for each in others):
                self.taking_part.add(state.index)
                state.is_lost = False

    def _lose(self, state: MemberState, reason: str) -> list[Effect]:
        state.reset()
        self.taking_part.discard(state.index)
        return self._on_lost(state.index, reason)

    def _free_index(self) -> int:
        return next(index for index in range(1, len(self._members) + 2) if index not in self._members)
