"""What a leader knows of a member of its group: how far it is on its way into the group, and the members it reaches."""

from dataclasses import dataclass, field

from dunlin.effects import Address
from dunlin.messages.group import MemberEngine, MemberReady

AWAITED_TRIES = 2
"""A member that was asked in vain more often may never come."""


@dataclass(slots=True, eq=False)
class MemberState:
    """The member `index` of a group, whose instance is `address`.

    `ready` is what it said of itself last (None: nothing yet, or it lost its engine or its stream since); `told` the
    engines that it was told to meet last, by the question of that number, which `is_asked` while it has no answer;
    `reaches` the agents of the members that its engine can reach. `tries` count what was asked of it in vain, `turn`
    the timers that wait to ask again. `is_returned`: it was given back, and no newer order names it yet. `is_lost`: it
    took part, or was to, and was lost; it is not known whether it comes back. `is_silent`: its stream is open, but
    it did not end a step when it was told to, and has not since.
    """

    index: int
    address: Address
    ready: MemberReady | None = None
    told: dict[int, MemberEngine] = field(default_factory=dict)
    question: int = 0
    is_asked: bool = False
    reaches: dict[int, bytes] = field(default_factory=dict)
    tries: int = 0
    turn: int = 0
    is_returned: bool = False
    is_lost: bool = False
    is_silent: bool = False

    @property
    def engine(self) -> MemberEngine | None:
        """Its engine, as others are told of it."""
        return MemberEngine(self.index, self.ready.engine, self.ready.agent) if self.ready is not None else None

    @property
    def is_expected(self) -> bool:
        """Whether it may be on its way: neither lost, nor asked in vain for as long as one on its way takes."""
        return not self.is_lost and self.tries <= AWAITED_TRIES

    def reset(self) -> None:
        """It is lost, and has to become ready anew."""
        self.ready = None
        self.is_lost = True
        self.forget_meetings()

    def end_silence(self) -> None:
        """It was heard, or its stream ended. One that was given back for its silence may be used again: where the
        manager has not taken it, none may lead.
        """
        if self.is_silent:
            self.is_silent = self.is_returned = False

    def forget_meetings(self) -> None:
        """Its engine is another one, or may be: it has met none, and what it was asked last counts no more."""
        self.reaches.clear()
        self.told.clear()
        self.is_asked = False

    def can_reach(self, other: "MemberState") -> bool:
        """Whether its engine can reach the other's as that is now."""
        return other.ready is not None and self.reaches.get(other.index) == other.ready.agent

    def fits(self, other: "MemberState") -> bool:
        """Whether both compute the same model in the same precision with the same adapters, and each can reach the
        other's engine.
        """
        one, two = self.ready, other.ready
        if one is None or two is None or (one.weights_digest, one.kv_dtype) != (two.weights_digest, two.kv_dtype):
            return False
        if sorted(one.adapters) != sorted(two.adapters):
            return False
        return self.can_reach(other) and other.can_reach(self)
