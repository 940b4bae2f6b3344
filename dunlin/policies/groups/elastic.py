"""Spreads long prompts over the members of an elastic group: functions over the members' room.

Where tokens are computed is where their KV stays, so what is chosen here is placement and balance of work at once.
Knows no message, no engine and no time. LoongServe (§5.3, §5.4) decides the same per iteration at its global manager.
"""

from collections.abc import Callable, Mapping, Sequence
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
    return place_runs([each.member for each, _ in parts], [share for _, share in parts], start)


def place_runs(members: Sequence[int], shares: Sequence[int], start: int) -> list[Block]:
    """One after the other from token `start` on, so many tokens each; none of members without any."""
    blocks: list[Block] = []
    for member, share in zip(members, shares, strict=True):
        if share:
            blocks.append(Block(member, start, start + share))
            start += share
    return blocks


def choose_master(members: Sequence[MemberRoom]) -> int | None:
    """The member that generates a sequence's next tokens: of those with room that of the fewest rows, then of most
    room. None: none has room.
    """
    able = [each for each in members if each.slots > 0]
    return min(able, key=lambda each: (each.rows, -each.slots, each.member)).member if able else None


def crowded_masters(rows: Mapping[int, int], members: Sequence[int], most_rows: int) -> set[int]:
    """Of `rows` by master those of more than `most_rows`, and two more at least than another of the `members` has: with
    one row there instead both compute less (LoongServe §5.4: scale up when compute-bound, masters as even as can be).
    """
    least = min((rows.get(member, 0) for member in members), default=0)
    return {member for member, count in rows.items() if count > most_rows and count >= least + 2}


def missing_slots(demands: Sequence[Demand], members: Sequence[MemberRoom]) -> int:
    """Slots that the group lacks for all demands together; 0 if none (LoongServe §5.4: scale up when short)."""
    needed = free = 0
    for demand in demands:
        needed += demand.tokens + demand.ahead
    for each in members:
        free += max(each.slots, 0)
    return max(0, needed - free)


PLACEMENT_POLICIES: dict[str, PlacementPolicy] = {"balanced": balanced, "fewest": fewest, "widest": widest}
