"""Spreads long prompts over the members of an elastic group: functions over the members' room.

Where tokens are computed is where their KV stays, so what is chosen here is placement and balance of work at once.
Knows no message, no engine and no time. LoongServe (§5.3, §5.4) decides the same per iteration at its global manager.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemberRoom:
    """A member: token slots that more tokens may take there, and the rows that it masters already."""

    member: int
    slots: int
    rows: int = 0


@dataclass(frozen=True, slots=True)
class Block:
    """Tokens `[start, stop)` that `member` computes as their master, and keeps."""

    member: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Demand:
    """What a sequence needs: `tokens` to compute now, and `ahead` slots for those that it generates next.

    A member that computes fewer than `least_share` of them is not worth its part in every step.
    """

    tokens: int
    ahead: int
    least_share: int


@dataclass(frozen=True, slots=True)
class RingPlan:
    """A whole prompt computed in one step: `stripes[i]` computes tokens `i::len(stripes)`, and what is `kept` stays.

    The member of the last kept block computes the last token, so it goes on with the sequence.
    """

    stripes: tuple[int, ...]
    kept: tuple[Block, ...]

    @property
    def tokens(self) -> int:
        """Tokens of the prompt."""
        return self.kept[-1].stop

    def stripe(self, member: int) -> range:
        """The positions that a member computes."""
        return range(self.stripes.index(member), self.tokens, len(self.stripes))

    def slots(self, member: int) -> int:
        """The slots that a member needs for the step: for its stripe, and for what stays there."""
        kept = 0
        for block in self.kept:
            kept += block.stop - block.start if block.member == member else 0
        return kept + len(self.stripe(member))


Shares = dict[int, int]
"""Slots by member."""

PlacementPolicy = Callable[[Demand, Sequence[MemberRoom]], Shares | None]
"""Maps (demand, members) to the slots to set aside at each chosen member; None: there is not enough room."""


def even_shares(tokens: int, rooms: Sequence[int]) -> list[int]:
    """Divide tokens as evenly as the rooms allow: those that are not full differ by one at most.

    All rooms are filled if there are more tokens than room.
    """
    shares, left = [0] * len(rooms), tokens
    by_room = sorted(range(len(rooms)), key=lambda index: rooms[index])
    for rank, index in enumerate(by_room):
        shares[index] = min(max(rooms[index], 0), left // (len(rooms) - rank))
        left -= shares[index]
    return shares


def fewest(demand: Demand, members: Sequence[MemberRoom]) -> Shares | None:
    """As few members as hold it, those with most room first (LoongServe's minimum degree of parallelism)."""
    return _over_first(demand, members, 1)


def balanced(demand: Demand, members: Sequence[MemberRoom]) -> Shares | None:
    """As many members as have `least_share` tokens each to compute, more where fewer do not hold it."""
    return _over_first(demand, members, max(1, demand.tokens // max(1, demand.least_share)))


def widest(demand: Demand, members: Sequence[MemberRoom]) -> Shares | None:
    """All members with room: the highest degree of parallelism."""
    return _over_first(demand, members, len(members))


def _over_first(demand: Demand, members: Sequence[MemberRoom], least: int) -> Shares | None:
    """Over the `least` members with most room, or as many more as are needed."""
    needed = demand.tokens + demand.ahead
    by_room = sorted((each for each in members if each.slots > 0), key=lambda each: (-each.slots, each.member))
    chosen: list[MemberRoom] = []
    held = 0
    for each in by_room:
        if held >= needed and len(chosen) >= least:
            break
        chosen.append(each)
        held += each.slots
    if held < needed:
        return None
    shares = even_shares(needed, [each.slots for each in chosen])
    return {each.member: share for each, share in zip(chosen, shares, strict=True) if share}


def cut_chunk(start: int, stop: int, members: Sequence[MemberRoom]) -> list[Block]:
    """The next blocks of a prompt of which `[start, stop)` is to be computed: one per member, as even as their room
    allows. Fewer tokens than asked for where there is no room; none: nowhere is any.

    The last block, whose member goes on with the sequence's generation, is that of the fewest rows and most room.
    """
    shares = even_shares(stop - start, [each.slots for each in members])
    parts = [(each, share) for each, share in zip(members, shares, strict=True) if share]
    parts.sort(key=lambda part: (-part[0].rows, part[0].slots - part[1], part[0].member))
    runs = _runs([each for each, _ in parts], [share for _, share in parts])
    return [Block(each.member, start + each.start, start + each.stop) for each in runs]


def plan_ring(demand: Demand, members: Sequence[MemberRoom], most: int) -> RingPlan | None:
    """A prompt over as few members as compute it in one step of `most` tokens each, kept at fewer (LoongServe's
    proactive scale-down, §4.1). None: it is too short or too long for that, or stripes and kept tokens have no room.
    """
    count = -(-demand.tokens // most)
    stripe = -(-demand.tokens // max(1, count))
    able = sorted((each for each in members if each.slots >= stripe), key=lambda each: (-each.slots, each.member))
    if count < 2 or len(able) < count:
        return None
    chosen, keepers, room = able[:count], list[MemberRoom](), 0
    for each in chosen:
        if room < demand.tokens + demand.ahead:
            keepers.append(each)
            room += each.slots - stripe
    if room < demand.tokens + demand.ahead or len(keepers) == count:
        return None
    keepers.reverse()  # the one with most room goes on
    kept = _runs(keepers, even_shares(demand.tokens, [each.slots - stripe for each in keepers]))
    order = [each.member for each in chosen]
    order.remove(kept[-1].member)
    order.insert((demand.tokens - 1) % count, kept[-1].member)
    return RingPlan(tuple(order), tuple(kept))


def _runs(members: Sequence[MemberRoom], shares: Sequence[int]) -> list[Block]:
    """One after the other, so many tokens each."""
    blocks: list[Block] = []
    start = 0
    for each, share in zip(members, shares, strict=True):
        if share:
            blocks.append(Block(each.member, start, start + share))
            start += share
    return blocks


def choose_master(members: Sequence[MemberRoom]) -> int | None:
    """The member that generates a sequence's next tokens: of those with room that of the fewest rows, then of most
    room. None: none has room.
    """
    able = [each for each in members if each.slots > 0]
    return min(able, key=lambda each: (each.rows, -each.slots, each.member)).member if able else None


def missing_slots(demands: Sequence[Demand], members: Sequence[MemberRoom]) -> int:
    """Slots that the group lacks for all demands together; 0 if none (LoongServe §5.4: scale up when short)."""
    needed = free = 0
    for demand in demands:
        needed += demand.tokens + demand.ahead
    for each in members:
        free += max(each.slots, 0)
    return max(0, needed - free)


PLACEMENT_POLICIES: dict[str, PlacementPolicy] = {"balanced": balanced, "fewest": fewest, "widest": widest}
