"""What each member is sent of an exchange: pure translation of its rows into the columns of `GroupStep`s."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from dunlin.messages.group import GroupStep
from dunlin.messages.types import GroupKind, i8, i32, i64
from dunlin.policies.groups.elastic import Block
from dunlin.policies.groups.elastic_rings import RingChunk
from services.instance.group.leading.exchanges import ExchangeRow

Span = tuple[range, int]
"""Tokens, and the member where they lie, or that computes them."""


@dataclass(slots=True)
class _Row:
    """A row of its master's step: the spans of it that others hold, the stripes that others compute, and what of those
    stays at the master.
    """

    sequence: int
    master: int
    positions: range
    samples: bool
    spans: list[Span]
    stripes: list[Span] = field(default_factory=list)
    kept: list[Block] = field(default_factory=list)


@dataclass(slots=True)
class _Part:
    """What a holder answers for, of one row of one master."""

    row: _Row
    spans: list[range]


@dataclass(slots=True)
class _Columns:
    """The rows that a member masters, and the parts that it serves."""

    rows: list[_Row] = field(default_factory=list)
    parts: list[_Part] = field(default_factory=list)


def group_steps(group: int, exchange: int, rows: list[ExchangeRow]) -> dict[int, GroupStep]:
    """The step of each member that masters a row, serves a span or has a stripe, by member.

    A holder serves the parts of one master in the order of that one's rows, as its engine reads them.
    """
    members: dict[int, _Columns] = {}
    kind = GroupKind.RING if any(row.ring is not None for row in rows) else GroupKind.MASTERS
    for row in rows:
        for mastered in _blocks(row) if row.ring is None else _stripes(row, row.ring):
            members.setdefault(mastered.master, _Columns()).rows.append(mastered)
    for master in sorted(members):
        for mastered in members[master].rows:
            for holder in sorted({member for _, member in mastered.spans}):
                spans = [positions for positions, member in mastered.spans if member == holder]
                members.setdefault(holder, _Columns()).parts.append(_Part(mastered, spans))
    return {member: _step(group, exchange, kind, members[member]) for member in sorted(members)}


def _blocks(row: ExchangeRow) -> Iterator[_Row]:
    for block in row.blocks:
        samples = row.samples and block is row.blocks[-1]
        spans = _spans(row, block.start, block.member)
        yield _Row(row.spread.number, block.member, range(block.start, block.stop), samples, spans)


def _stripes(row: ExchangeRow, ring: RingChunk) -> Iterator[_Row]:
    for member in sorted(ring.stripes):
        others = [(ring.stripe(other), other) for other in ring.stripes if other != member]
        samples, spans = row.samples and member == row.sampler, _spans(row, ring.start, member)
        yield _Row(row.spread.number, member, ring.stripe(member), samples, spans, others, ring.held(member))


def _spans(row: ExchangeRow, position: int, master: int) -> list[Span]:
    """What others answer for, of the tokens before `position`."""
    return [(range(each.start, each.stop), each.member) for each in row.spread.spans_before(position, master)]


def _step(group: int, exchange: int, kind: GroupKind, columns: _Columns) -> GroupStep:
    rows, parts = columns.rows, columns.parts
    spans = [(index, span, 1) for index, row in enumerate(rows) for span in row.spans]
    spans += [(index, span, 0) for index, row in enumerate(rows) for span in row.stripes]
    served = [(index, span) for index, part in enumerate(parts) for span in part.spans]
    kept = [(index, block) for index, row in enumerate(rows) for block in row.kept]
    step = GroupStep(
        group,
        exchange,
        kind,
        sequence=i64([row.sequence for row in rows]),
        start=i64([row.positions.start for row in rows]),
        stop=i64([row.positions.stop for row in rows]),
        sample=i8([row.samples for row in rows]),
        span_row=i32([index for index, _, _ in spans]),
        span_start=i64([positions.start for _, (positions, _), _ in spans]),
        span_stop=i64([positions.stop for _, (positions, _), _ in spans]),
        span_member=i32([member for _, (_, member), _ in spans]),
        serve_sequence=i64([part.row.sequence for part in parts]),
        serve_start=i64([part.row.positions.start for part in parts]),
        serve_stop=i64([part.row.positions.stop for part in parts]),
        serve_member=i32([part.row.master for part in parts]),
        serve_span_part=i32([index for index, _ in served]),
        serve_span_start=i64([span.start for _, span in served]),
        serve_span_stop=i64([span.stop for _, span in served]),
    )
    if kind is GroupKind.MASTERS:
        return step
    return replace(
        step,
        stride=i64([row.positions.step for row in rows]),
        span_stride=i64([positions.step for _, (positions, _), _ in spans]),
        span_asked=i8([is_asked for _, _, is_asked in spans]),
        serve_stride=i64([part.row.positions.step for part in parts]),
        keep_row=i32([index for index, _ in kept]),
        keep_start=i64([block.start for _, block in kept]),
        keep_stop=i64([block.stop for _, block in kept]),
    )
