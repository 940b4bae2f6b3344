"""A sequence that lies at several members of a group: which member has which of its tokens, and what slots for more.

Knows no message. The state of the sequence itself is `sequence/states.py`'s.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from dunlin.messages.types import RejectedOption
from dunlin.policies.groups.elastic import Block, MemberRoom
from dunlin.policies.groups.elastic_rings import RingChunk, RingPlan, merged
from services.instance.group.leading.blocks import cut_before, cut_off, tokens_of
from services.instance.sequence.sequence import Sequence as InstanceSequence
from services.instance.sequence.states import SequenceState


@dataclass(slots=True)
class GuestState:
    """What a member has of a sequence: `slots` set aside, for `tokens` that lie there or are being computed there.

    `asked`: requests for slots without an answer. `is_open`: the first of them was granted. `is_closing`: it is told
    to close. `knows_text`: the member's engine has all tokens that are known, so it can go on with them.
    """

    slots: int = 0
    tokens: int = 0
    asked: int = 0
    is_open: bool = False
    is_closing: bool = False
    knows_text: bool = True

    @property
    def room(self) -> int:
        """Slots for more tokens."""
        return 0 if self.is_closing or not self.is_open else self.slots - self.tokens


@dataclass(slots=True, eq=False)
class SpreadSequence:
    """One long attempt at the leader; `number` is its name at all members' engines.

    `blocks`: the members that compute, or computed, its tokens, in order of position. `redo`: blocks of steps that
    came to nothing, to be computed again where they were. `is_rolling_back`: steps that name it are outstanding, and
    none counts any more. `failures` of steps in a row; while it `is_paused` no step names it. `master` generates its
    tokens; while it `is_moving` to another one no further step names it.
    `refusals`: what members said last that had no slots for it. `ring`: how its prompt is computed, until it is; the
    members have slots for it when guests have `ring_slots`. While it runs its members answer for `copies`, pieces of
    what it has computed, and not for `blocks`; guests with copies of a ring that is over are `stale`. One that lost a
    member of its ring `seeks_ring`: the rest may go round those that are left.
    `losses` of members with tokens of it since its last token, those before it was in a step again (`has_issued`) as
    one; `has_lost` one, and goes back to what lies before those. What others have computed after the first lost token
    stays there, `after_hole`: it joins `blocks` when all before it is computed again. `dop` members computed its last
    row.
    """

    sequence: InstanceSequence
    guests: dict[int, GuestState] = field(default_factory=dict)
    blocks: list[Block] = field(default_factory=list)
    redo: deque[tuple[Block, ...]] = field(default_factory=deque)
    master: int = -1
    is_rolling_back: bool = False
    is_paused: bool = False
    is_moving: bool = False
    failures: int = 0
    losses: int = 0
    has_issued: bool = False
    has_lost: bool = False
    after_hole: list[Block] = field(default_factory=list)
    dop: int = 0
    ring: RingPlan | None = None
    ring_slots: dict[int, int] = field(default_factory=dict)
    copies: list[Block] = field(default_factory=list)
    stale: set[int] = field(default_factory=set)
    seeks_ring: bool = False
    refusals: dict[int, RejectedOption] = field(default_factory=dict)

    @property
    def number(self) -> int:
        """Its name at all members' engines."""
        return self.sequence.number

    @property
    def turn(self) -> tuple[bool, tuple[bool, int]]:
        """Those that do not give way come first, of these answers that were cut off, then by arrival."""
        return self.sequence.gives_way, self.sequence.turn

    @property
    def importance(self) -> tuple[bool, bool]:
        """What comes before its wait: those that do not give way, then answers that were cut off."""
        gives_way, (is_new, _) = self.turn
        return gives_way, is_new

    @property
    def decodes(self) -> bool:
        """Whether only its last token is to be computed, or nothing while that is being sampled."""
        return self.sequence.has_sampled and self.sequence.remaining <= 1

    @property
    def is_live(self) -> bool:
        """Whether it is to be computed: not ending, and not waiting for slots."""
        return self.sequence.state is SequenceState.SPREAD

    @property
    def is_opening(self) -> bool:
        """Whether a member has not answered a request for slots."""
        return any(guest.asked for guest in self.guests.values())

    @property
    def room(self) -> int:
        """Slots for more tokens at all members."""
        total = 0
        for guest in self.guests.values():
            total += guest.room
        return total

    @property
    def is_waiting(self) -> bool:
        """Whether no member was asked for slots yet."""
        return self.sequence.state is SequenceState.WAITING

    @property
    def missing(self) -> int:
        """Slots that it lacks to compute all tokens that are known."""
        return max(0, len(self.sequence.tokens) - self.sequence.issued - self.held_ahead - self.room)

    @property
    def held_ahead(self) -> int:
        """Tokens after a hole, which are not to be computed."""
        return tokens_of(each for each in self.after_hole if each.start >= self.sequence.issued)

    @property
    def to_compute(self) -> int:
        """Tokens that no step computes yet, and none has."""
        return self.sequence.remaining - self.held_ahead

    @property
    def hole_stop(self) -> int:
        """Where the tokens end that are to be computed next: what follows lies at members still, or there is none."""
        ahead = [each.start for each in self.after_hole if each.start >= self.sequence.issued]
        return min([self.sequence.length, *ahead])

    @property
    def computed(self) -> int:
        """Tokens whose KV lies at members."""
        return self.sequence.valid + tokens_of(self.after_hole)

    def rooms(self, rows: Mapping[int, int], most: Mapping[int, int]) -> list[MemberRoom]:
        """Its room at each member that has it as a guest, `most` tokens; `rows` are those that they master."""
        return [
            MemberRoom(member, min(self.guests[member].room, most[member]), rows.get(member, 0))
            for member in most
            if member in self.guests
        ]

    def holders(self) -> set[int]:
        """The members where tokens of it lie or are being computed."""
        return {block.member for block in (*self.blocks, *self.copies, *self.after_hole)}

    @property
    def has_ring_slots(self) -> bool:
        """Whether every member of its ring has the slots for it."""
        found = [(self.guests.get(member), slots) for member, slots in self.ring_slots.items()]
        return all(guest is not None and guest.is_open and guest.slots >= slots for guest, slots in found)

    def begin_ring(self, ring: RingPlan) -> dict[int, int]:
        """Its prompt is to go round; returns the slots that each member lacks for that."""
        self.ring, self.seeks_ring, lacking = ring, False, dict[int, int]()
        for member, slots in ring.slots.items():
            guest = self.guests.get(member, GuestState())
            self.ring_slots[member] = guest.tokens + slots
            lacking[member] = max(0, self.ring_slots[member] - guest.slots)
        return lacking

    def end_ring(self) -> None:
        """It goes round no more: what lies there for good is answered for, and the copies count no more."""
        self.ring, copies, self.copies = None, self.copies, []
        self.stale |= {block.member for block in copies} - self.holders()
        self.ring_slots.clear()
        self._count_tokens()

    def issue(self, blocks: Sequence[Block], samples: bool, ring: RingChunk | None = None) -> None:
        """A step computes these blocks, or the ring's chunk of which they stay."""
        for block in blocks:
            self._append(block)
        self.copies += ring.copies if ring is not None else ()
        held = [each for member in ring.stripes for each in ring.held(member)] if ring is not None else blocks
        for block in held:
            self.guests[block.member].tokens += block.stop - block.start
        self.has_issued = True
        self.sequence.issued = blocks[-1].stop
        self.sequence.pending += samples
        self.sequence.in_steps += 1
        if samples:
            self.master = blocks[-1].member
            for member, guest in self.guests.items():
                guest.knows_text = guest.knows_text and member == self.master
        self._join_after_hole()

    def count(self, stop: int) -> None:
        """All tokens before `stop` are computed, and what lies after them still."""
        for block in self.after_hole:
            stop = block.stop if block.start == stop else stop
        self.sequence.valid = stop
        self.after_hole = [block for block in self.after_hole if block.start >= stop]

    def roll_back(self) -> None:
        """No step names it any more, and what the last ones computed does not count: it goes on after its valid KV."""
        sequence = self.sequence
        sequence.issued, sequence.pending, self.is_rolling_back = sequence.valid, 0, False
        if self.has_lost:
            self.has_lost = False
            self.redo.clear()
            for guest in self.guests.values():
                guest.knows_text = False
        self.blocks, self.copies = cut_off(self.blocks, sequence.valid), cut_off(self.copies, sequence.valid)
        self._join_after_hole()
        self.count(sequence.valid)
        self._count_tokens()

    def _join_after_hole(self) -> None:
        """What follows the last issued token lies at members still: go on after it. Their engines forgot where it lies
        when they wrote before it, so they are told before they master a row.
        """
        for block in self.after_hole:
            if block.start == self.sequence.issued:
                self._append(block)
                self.sequence.issued = block.stop
                self.forget_text(block.member)

    def adopt(self, member: int, spans: Iterable[tuple[int, int]]) -> None:
        """These tokens lie at the member from an earlier attempt, which has just begun here: those that lie nowhere
        else need not be computed. It is told which count before it masters a row.
        """
        found = [Block(member, start, stop) for start, stop in spans]
        if not found or not self.is_live or self.sequence.in_steps or self.is_rolling_back:
            return
        if self.ring is not None:
            self.end_ring()
        for known in [*self.blocks, *self.after_hole]:
            found = [*cut_off(found, known.start), *cut_before(found, known.stop)]
        self.after_hole = sorted([*self.after_hole, *found], key=attrgetter("start"))
        self._join_after_hole()
        self.count(self.sequence.valid)
        self._count_tokens()
        self.forget_text(member)

    def held(self, member: int) -> list[Block]:
        """What lies at the member, or is being computed for it, in order; blocks and copies."""
        return merged(each for each in (*self.blocks, *self.copies, *self.after_hole) if each.member == member)

    def computed_at(self, member: int) -> list[Block]:
        """What has been computed and lies at the member, in order; blocks and copies."""
        valid = cut_off([*self.blocks, *self.copies], self.sequence.valid)
        return merged(each for each in (*valid, *self.after_hole) if each.member == member)

    @property
    def computed_stop(self) -> int:
        """The position after the last token whose KV lies at a member."""
        return self.after_hole[-1].stop if self.after_hole else self.sequence.valid

    def _count_tokens(self) -> None:
        """Count what lies at the members. One that has more than counts is told before it masters a row."""
        for member, guest in self.guests.items():
            before, guest.tokens = guest.tokens, sum(block.stop - block.start for block in self.held(member))
            guest.knows_text = guest.knows_text and guest.tokens == before

    def lose(self, member: int) -> bool:
        """The member has nothing of it any more; returns whether it lacks tokens now that lay there, or were to.

        Only what lies before the first of those is valid then. KV of what follows was computed from the same text, so
        it stays where it lies (`after_hole`), and the lost tokens alone are computed again; where a ring left a second
        copy of them, not even those.
        """
        if self.guests.pop(member, None) is None or not self.is_live:
            return False
        rest = self._computed_without(member)
        if self.ring is not None and member in self.holders().union(self.ring.members):
            self.end_ring()
            self.seeks_ring = True
        self.stale.discard(member)
        if member not in self.holders().union(block.member for blocks in self.redo for block in blocks):
            return False
        lost = [block.start for block in self.blocks if block.member == member]
        self.sequence.valid = min([self.sequence.valid, *lost])
        self.after_hole = [block for block in rest if block.start >= self.sequence.valid]
        self.stale -= {block.member for block in self.after_hole}
        self.losses += self.has_issued
        self.has_issued = False
        self.has_lost = self.is_rolling_back = True
        if not self.sequence.in_steps:
            self.roll_back()
        return True

    def _computed_without(self, member: int) -> list[Block]:
        """What is left of all that has been computed, in order, without what lies at the member."""
        valid = cut_off(self.blocks, self.sequence.valid)
        found = [block for block in (*valid, *self.after_hole) if block.member != member]
        copies = [block for block in self.copies if block.member != member]
        for lost in valid:
            if lost.member == member:
                found += cut_off(cut_before(copies, lost.start), lost.stop)
        return sorted(found, key=attrgetter("start"))

    def forget_text(self, member: int) -> None:
        """The engine of the member may know tokens that do not count: it is told the text before it masters a row."""
        if member in self.guests:
            self.guests[member].knows_text = False

    def spans_before(self, position: int, master: int) -> list[Block]:
        """What other members answer `master` for before `position`; blocks of one member that touch are one."""
        found = self.blocks
        if self.copies and self.ring is not None and position < self.ring.stop:
            found = [*cut_off(self.blocks, self.copies[0].start), *self.copies]
        return cut_off([each for each in found if each.member != master], position)

    def _append(self, block: Block) -> None:
        last = self.blocks[-1] if self.blocks else None
        if last is not None and last.member == block.member and last.stop == block.start:
            self.blocks[-1] = Block(last.member, last.start, block.stop)
        else:
            self.blocks.append(block)
