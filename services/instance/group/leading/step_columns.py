"""What each member is sent of an exchange: pure translation of its rows into the columns of `GroupStep`s."""

from dataclasses import dataclass, field

from dunlin.messages.group import GroupStep
from dunlin.messages.types import GroupKind, i8, i32, i64
from dunlin.policies.elastic import Block, RingPlan
from services.instance.group.leading.exchanges import ExchangeRow


@dataclass(slots=True)
class _Row:
    """A row of its master's step, and the spans of it that others hold."""

    sequence: int
    block: Block
    samples: bool
    spans: list[Block]


@dataclass(slots=True)
class _Part:
    """What a holder answers for, of one row of one master."""

    row: _Row
    spans: list[Block]


@dataclass(slots=True)
class _Columns:
    """The rows that a member masters, and the parts that it serves."""

    rows: list[_Row] = field(default_factory=list)
    parts: list[_Part] = field(default_factory=list)


def group_steps(group: int, exchange: int, rows: list[ExchangeRow]) -> dict[int, GroupStep]:
    """The step of each member that masters a row, serves a span or has a stripe, by member. A ring's row is alone.

    A holder serves the parts of one master in the order of that one's rows, as its engine reads them.
    """
    if rows[0].ring is not None:
        return _ring_steps(group, exchange, rows[0], rows[0].ring)
    members: dict[int, _Columns] = {}
    for row in rows:
        for block in row.blocks:
            samples = row.samples and block is row.blocks[-1]
            spans = row.spread.spans_before(block.start, block.member)
            mastered = _Row(row.spread.number, block, samples, spans)
            members.setdefault(block.member, _Columns()).rows.append(mastered)
    for master in sorted(members):
        for mastered in members[master].rows:
            for holder in sorted({span.member for span in mastered.spans}):
                spans = [span for span in mastered.spans if span.member == holder]
                members.setdefault(holder, _Columns()).parts.append(_Part(mastered, spans))
    return {member: _step(group, exchange, members[member]) for member in sorted(members)}


def _ring_steps(group: int, exchange: int, row: ExchangeRow, ring: RingPlan) -> dict[int, GroupStep]:
    """Each member's stripe, those of the others as its spans, and what stays there."""
    steps: dict[int, GroupStep] = {}
    for member in sorted(ring.stripes):
        own = ring.stripe(member)
        others = [(ring.stripe(other), other) for other in ring.stripes if other != member]
        kept = [block for block in ring.kept if block.member == member]
        steps[member] = GroupStep(
            group,
            exchange,
            GroupKind.RING,
            sequence=i64([row.spread.number]),
            start=i64([own.start]),
            stop=i64([own.stop]),
            sample=i8([row.samples and member == row.sampler]),
            stride=i64([own.step]),
            span_row=i32([0] * len(others)),
            span_start=i64([stripe.start for stripe, _ in others]),
            span_stop=i64([stripe.stop for stripe, _ in others]),
            span_member=i32([other for _, other in others]),
            span_stride=i64([stripe.step for stripe, _ in others]),
            keep_row=i32([0] * len(kept)),
            keep_start=i64([block.start for block in kept]),
            keep_stop=i64([block.stop for block in kept]),
        )
    return steps


def _step(group: int, exchange: int, columns: _Columns) -> GroupStep:
    rows, parts = columns.rows, columns.parts
    spans = [(index, span) for index, row in enumerate(rows) for span in row.spans]
    served = [(index, span) for index, part in enumerate(parts) for span in part.spans]
    return GroupStep(
        group,
        exchange,
        GroupKind.MASTERS,
        sequence=i64([row.sequence for row in rows]),
        start=i64([row.block.start for row in rows]),
        stop=i64([row.block.stop for row in rows]),
        sample=i8([row.samples for row in rows]),
        span_row=i32([index for index, _ in spans]),
        span_start=i64([span.start for _, span in spans]),
        span_stop=i64([span.stop for _, span in spans]),
        span_member=i32([span.member for _, span in spans]),
        serve_sequence=i64([part.row.sequence for part in parts]),
        serve_start=i64([part.row.block.start for part in parts]),
        serve_stop=i64([part.row.block.stop for part in parts]),
        serve_member=i32([part.row.block.member for part in parts]),
        serve_span_part=i32([index for index, _ in served]),
        serve_span_start=i64([span.start for _, span in served]),
        serve_span_stop=i64([span.stop for _, span in served]),
    )
