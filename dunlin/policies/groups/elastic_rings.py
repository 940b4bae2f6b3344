"""Plans how a long prompt goes round the members of an elastic group, chunk by chunk, and stays at few of them.

LoongServe's proactive scale-down (§4.1) keeps a prompt's KV at fewer members than compute it, in one step without a
copy more. In chunks the members that keep it would attend alone to all chunks before, however many compute. So each
member also keeps a piece of every chunk until the prompt is computed, and answers for that: these copies come from the
ring as well, and cost slots for a while, but no transfer. Knows no message, no engine and no time.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dunlin.policies.groups.elastic import Block, Demand, MemberRoom, even_shares, place_runs
from dunlin.policies.groups.group_turns import LEAST_CHUNK_TOKENS


@dataclass(frozen=True, slots=True)
class RingChunk:
    """One step of a ring: member `stripes[i]` computes tokens `start + i :: len(stripes)`. `kept` stays where it says;
    of `copies` each member answers to later chunks for its own.

    The member of the last kept block computes the last token, so it goes on with the sequence.
    """

    stripes: tuple[int, ...]
    kept: tuple[Block, ...]
    copies: tuple[Block, ...] = ()

    @property
    def start(self) -> int:
        """The first position."""
        return self.kept[0].start

    @property
    def stop(self) -> int:
        """The position after the last."""
        return self.kept[-1].stop

    def stripe(self, member: int) -> range:
        """The positions that a member computes."""
        return range(self.start + self.stripes.index(member), self.stop, len(self.stripes))

    def held(self, member: int) -> list[Block]:
        """What has slots at a member after the step, in order: its blocks, and its copies of others'."""
        return merged(each for each in (*self.kept, *self.copies) if each.member == member)


@dataclass(frozen=True, slots=True)
class RingPlan:
    """How tokens `[start, stop)` of a prompt go round `members`, at most `most` of them at each in one step.

    `kept`: where they stay. `slots`: what each member needs for that, copies and its stripe included, in chunks of any
    size.
    """

    members: tuple[int, ...]
    kept: tuple[Block, ...]
    most: int
    slots: Mapping[int, int] = field(default_factory=dict)

    @property
    def start(self) -> int:
        """The first position."""
        return self.kept[0].start

    @property
    def stop(self) -> int:
        """The position after the last."""
        return self.kept[-1].stop

    @property
    def least(self) -> int:
        """The tokens that each member computes of a chunk at least."""
        return min(self.most, LEAST_CHUNK_TOKENS)

    def chunk(self, start: int, most: int | None = None) -> RingChunk | None:
        """The next chunk, from `start` on, with `most` tokens at each member at most, but no fewer than `least`; they
        are as even as can be. None: what is left is too little to go round.
        """
        left = self.stop - start
        if left < len(self.members):
            return None
        most = self.most if most is None else max(self.least, min(most, self.most))
        steps = -(-left // (most * len(self.members)))
        stop = start + -(-left // steps)
        kept = tuple(
            Block(each.member, max(each.start, start), min(each.stop, stop))
            for each in self.kept
            if each.start < stop and each.stop > start
        )
        order = [member for member in self.members if member != kept[-1].member]
        order.insert((stop - start - 1) % len(self.members), kept[-1].member)
        copies = self._pieces(kept) if stop < self.stop else ()
        return RingChunk(tuple(order), kept, copies)

    def _pieces(self, kept: Sequence[Block]) -> tuple[Block, ...]:
        """Blocks, each divided among its keeper and members that keep nothing, by what each answers for: so much for
        each of those that all members answer for as many tokens once every keeper had its turn.
        """
        keeping = {block.member for block in self.kept}
        others = [member for member in self.members if member not in keeping]
        pieces: list[Block] = []
        for block in kept:
            tokens = block.stop - block.start
            each = tokens // len(self.members)
            pieces += place_runs(
                [block.member, *others], [tokens - each * len(others), *[each] * len(others)], block.start
            )
        return tuple(pieces)


def plan_ring(start: int, demand: Demand, members: Sequence[MemberRoom], most: int) -> RingPlan | None:
    """Tokens from `start` on over as many members as have `most` of them each, or as have room for it, kept at fewer.

    None: there are too few tokens to go round, no two members have the slots for stripes and copies, or as many members
    must keep the KV as compute it: then it may as well stay where it is computed.
    """
    by_room = sorted(members, key=lambda each: (-each.slots, each.member))
    degree = min(-(-demand.tokens // most), len(by_room)) if most > 1 else 0
    for count in range(degree, 1, -1):
        plan = _plan_over(start, demand, by_room[:count], most)
        if plan is not None:
            return plan
    return None


def _plan_over(start: int, demand: Demand, chosen: Sequence[MemberRoom], most: int) -> RingPlan | None:
    """Over all of `chosen`, those with most room first."""
    stripe = min(most, -(-demand.tokens // len(chosen)))
    keepers, room = list[MemberRoom](), 0
    for each in chosen:
        if room < demand.tokens + demand.ahead:
            keepers.append(each)
            room += max(0, each.slots - stripe)
    if room < demand.tokens + demand.ahead or len(keepers) == len(chosen):
        return None
    keepers.reverse()  # the one with most room goes on
    shares = even_shares(demand.tokens, [each.slots - stripe for each in keepers])
    turn = min(most, LEAST_CHUNK_TOKENS) * len(chosen)
    kept = _in_turns([each.member for each in keepers], shares, start, turn)
    plan = RingPlan(tuple(each.member for each in chosen), tuple(kept), most)
    slots = _slots(plan, stripe)
    last = kept[-1].member
    slots[last] += max(0, demand.ahead - stripe)
    if any(slots[each.member] > each.slots for each in chosen):
        return None
    return RingPlan(plan.members, plan.kept, most, slots)


def _in_turns(keepers: Sequence[int], shares: Sequence[int], start: int, turn: int) -> list[Block]:
    """Tokens from `start` on, so many at each of the keepers: `turn` at one, then at the next, so that what lies before
    any chunk lies evenly at them. The last block is the last keeper's.
    """
    left, stop = dict(zip(keepers, shares, strict=True)), start + sum(shares)
    blocks: list[Block] = []
    while stop > start:
        for member in reversed(keepers):
            tokens = min(turn, left[member])
            left[member] -= tokens
            if tokens and blocks and blocks[-1].member == member:
                blocks[-1] = Block(member, stop - tokens, blocks[-1].stop)
            elif tokens:
                blocks.append(Block(member, stop - tokens, stop))
            stop -= tokens
    return blocks[::-1]


def _slots(plan: RingPlan, stripe: int) -> dict[int, int]:
    """Every member has a stripe, and keeps its blocks; the others, where there is a second chunk, a copy of a part."""
    slots = dict.fromkeys(plan.members, stripe)
    for block in plan.kept:
        slots[block.member] += block.stop - block.start
    tokens, keeping = plan.stop - plan.start, {block.member for block in plan.kept}
    if tokens > plan.least * len(plan.members):
        for member in [member for member in plan.members if member not in keeping]:
            slots[member] += tokens // len(plan.members)
    return slots


def merged(blocks: Iterator[Block]) -> list[Block]:
    """Blocks of one member in order, those that overlap or touch as one."""
    found: list[Block] = []
    for each in sorted(blocks, key=lambda block: block.start):
        if found and each.start <= found[-1].stop:
            found[-1] = Block(each.member, found[-1].start, max(found[-1].stop, each.stop))
        else:
            found.append(each)
    return found
