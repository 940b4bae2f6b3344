"""The steps of a prompt that several engines compute, for measuring: each member's part, slots like positions."""

from dataclasses import dataclass
from typing import Any

from dunlin.effects import Address
from dunlin.messages.engine import Step
from dunlin.messages.types import GroupKind, Keep, Serve, i8, i32, i64

TOKENS = 8
"""Tokens that are generated after the prompt; the first few are not counted."""
JOIN = 4
"""The token, of those, with which a second member begins to generate."""
Block = tuple[int, int, int]
"""(first token, last, member)."""


@dataclass(frozen=True, slots=True)
class OverlapPlan:
    """A prompt of `chunks` chunks, `chunk` tokens of each at every member; `way`: ring, queries, or tokens after it. Or
    join: the first member alone computes it and the first tokens, the second, with empty slots, the others.
    """

    number: int
    way: str
    members: int
    chunk: int
    chunks: int

    @property
    def prompt(self) -> int:
        """Its tokens."""
        return self.chunk * self.chunks * self.members

    @property
    def steps(self) -> int:
        """Chunks, and tokens one by one."""
        return self.chunks + (TOKENS if self.way in ("tokens", "join") else 0)

    @property
    def first_counted(self) -> int:
        """The last chunk, or the tokens but for the first two."""
        return self.chunks - 1 if self.way in ("ring", "queries") else self.chunks + 2

    def master(self, token: int) -> int:
        """The member that generates that token: the one that computed the last of the prompt."""
        if self.way == "join":
            return int(token >= JOIN)
        return self.members - 1

    def blocks(self, chunk: int) -> list[Block]:
        """Where the tokens of a chunk lie: one block each."""
        start = chunk * self.chunk * self.members
        if self.way == "join":
            return [(start, start + self.chunk * self.members, 0)]
        return [(start + at * self.chunk, start + (at + 1) * self.chunk, at) for at in range(self.members)]

    def before(self, token: int) -> list[Block]:
        """Where the tokens before one lie, blocks that it is not a part of."""
        known = [block for chunk in range(self.chunks) for block in self.blocks(chunk)]
        if self.way == "join":
            known = [(0, min(token, self.prompt + JOIN), 0), (self.prompt + JOIN, token, 1)]
        return [block for block in known if block[0] < block[1] <= token]


@dataclass(slots=True)
class _Part:
    """A member's rows of a step: (positions, spans elsewhere), stripes of others, and what it keeps."""

    me: int
    positions: range | None
    spans: list[Block]
    stripes: list[tuple[range, int]]
    kept: list[Block]
    asking: list[tuple[range, int]]


def part_of_step(plan: OverlapPlan, index: int, me: int, layers: int) -> Step | None:
    """The member's step; None: it has no part."""
    if index >= plan.chunks:
        at = plan.prompt + index - plan.chunks
        rows = {plan.master(index - plan.chunks): range(at, at + 1)}
        return _masters_step(plan, index, me, rows, at)
    if plan.way == "ring":
        return _ring_step(plan, index, me, layers)
    rows = {at: range(start, stop) for start, stop, at in plan.blocks(index)}
    return _masters_step(plan, index, me, rows, plan.prompt)


def _masters_step(plan: OverlapPlan, index: int, me: int, rows: dict[int, range], known: int) -> Step | None:
    own = rows.get(me)
    elsewhere = [] if own is None else [block for block in plan.before(own.start) if block[2] != me]
    asking = [(positions, at) for at, positions in rows.items() if at != me]
    slots = [] if own is None else [(own.start, len(own))]
    return _step(plan, index, me, GroupKind.MASTERS, own, known, elsewhere, [], asking, slots)


def _ring_step(plan: OverlapPlan, index: int, me: int, layers: int) -> Step | None:
    blocks = plan.blocks(index)
    start, stop, count = blocks[0][0], blocks[-1][1], plan.members
    stripes = [(range(start + at, stop, count), at) for at in range(count)]
    own, others = stripes[me][0], [each for each in stripes if each[1] != me]
    elsewhere = [block for block in plan.before(start) if block[2] != me]
    slots = [(plan.prompt + 64, len(own))]
    keep_start, keep_stop, _ = blocks[me]
    keep = Keep(i32([0]), i32([0]), i32([layers]), i64([keep_start]), i64([keep_stop]), i64([keep_start]))
    return _step(plan, index, me, GroupKind.RING, own, plan.prompt, elsewhere, others, others, slots, keep)


def _step(
    plan: OverlapPlan,
    index: int,
    me: int,
    kind: GroupKind,
    own: range | None,
    known: int,
    elsewhere: list[Block],
    stripes: list[tuple[range, int]],
    asking: list[tuple[range, int]],
    slots: list[tuple[int, int]],
    keep: Keep | None = None,
) -> Step | None:
    peers = [at for at in range(plan.members) if at != me]
    held = [(at, block) for at, (rows, _) in enumerate(asking) for block in plan.before(rows[0]) if block[2] == me]
    served = sorted({at for at, _ in held})
    if own is None and not served:
        return None
    spans: list[tuple[range, int, int]] = [(range(a, b), at, 1) for a, b, at in elsewhere]
    spans += [(positions, at, 0) for positions, at in stripes]
    asks = [asking[at] for at in served]
    serve = Serve(
        i64([plan.number] * len(asks)),
        i64([rows.start for rows, _ in asks]),
        i64([rows.stop for rows, _ in asks]),
        i64([rows.step for rows, _ in asks]),
        i32([peers.index(at) for _, at in asks]),
        i32([served.index(at) for at, _ in held]),
        i64([block[0] for _, block in held]),
        i64([block[1] for _, block in held]),
        i64([block[0] for _, block in held]),
    )
    rows: list[Any] = [] if own is None else [own]
    return Step(
        1000 * plan.number + index,
        i64([plan.number] * len(rows)),
        i64([each.start for each in rows]),
        i64([each.stop for each in rows]),
        i8([each[-1] + 1 >= plan.prompt for each in rows]),
        i32([0] * len(slots)),
        i64([first for first, _ in slots]),
        i64([length for _, length in slots]),
        stride=i64([each.step for each in rows]),
        group=kind,
        peers=tuple(Address("engine", f"member-{at}") for at in peers),
        keep=keep,
        span_row=i32([0] * len(spans)),
        span_start=i64([each.start for each, _, _ in spans]),
        span_stop=i64([each.stop for each, _, _ in spans]),
        span_stride=i64([each.step for each, _, _ in spans]),
        span_holder=i32([peers.index(at) for _, at, _ in spans]),
        span_asked=i8([asked for _, _, asked in spans]),
        exchange=1000 * plan.number + index + 1,
        own_room=i64([at + 1 for at in peers]),
        peer_room=i64([me + 1] * len(peers)),
        serve=serve if served else None,
    )
