"""What each member is sent of an exchange: pure translation of its rows into the columns of `GroupStep`s."""

from dataclasses import dataclass, field

from dunlin.messages.group import GroupStep
from dunlin.messages.types import GroupKind, i8, i32, i64
from dunlin.policies.elastic import Block
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


def group_steps(
    group: int, exchange: int, rows: list[ExchangeRow], kind: GroupKind = GroupKind.MASTERS
) -> dict[int, GroupStep]:
    """The step of each member that masters a row or serves a span, by member.

    A holder serves the parts of one master in the order of that one's rows, as its engine reads them.
    """
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
    return {member: _step(group, exchange, kind, members[member]) for member in sorted(members)}


def _step(group: int, exchange: int, kind: GroupKind, columns: _Columns) -> GroupStep:
    rows, parts = columns.rows, columns.parts
    spans = [(index, span) for index, row in enumerate(rows) for span in row.spans]
    served = [(index, span) for index, part in enumerate(parts) for span in part.spans]
    return GroupStep(
        group,
        exchange,
        kind,
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
