"""What the members' steps of one exchange say of each other: read row by row, and checked."""

from collections.abc import Iterator, Mapping, Sequence

from dunlin.messages.group import GroupStep
from dunlin.messages.types import GroupKind

Span = tuple[int, int, int, int]
"""(row, first token, last, member)."""


def asked_spans(step: GroupStep) -> Iterator[Span]:
    """The spans that others answer for."""
    return (span for span, _, is_asked in _spans(step) if is_asked)


def stripes_of(step: GroupStep, row: int) -> list[range]:
    """The stripes of a row that others compute; none: it does not go round."""
    return [range(a, b, stride) for (at, a, b, _), stride, is_asked in _spans(step) if at == row and not is_asked]


def covered_by(step: GroupStep, row: int) -> range:
    """The tokens of a row that goes round."""
    stripes = [_own(step, row), *stripes_of(step, row)]
    return range(min(each.start for each in stripes), max(each[-1] for each in stripes) + 1)


def kept_of(step: GroupStep, row: int) -> list[int]:
    """The tokens that stay at the member."""
    columns = zip(step.keep_row, step.keep_start, step.keep_stop, strict=True)
    return [position for at, first, stop in columns if at == row for position in range(first, stop)]


def check_rings(found: Sequence[tuple[GroupStep, int]]) -> None:
    """The stripes of a sequence are every token once, as each member names them; each stays somewhere."""
    by_sequence: dict[int, list[tuple[GroupStep, int]]] = {}
    for step, row in found:
        by_sequence.setdefault(step.sequence[row], []).append((step, row))
    for each in by_sequence.values():
        stripes = sorted((_own(step, row) for step, row in each), key=lambda stripe: stripe.start)
        for step, row in each:
            assert sorted([_own(step, row), *stripes_of(step, row)], key=lambda stripe: stripe.start) == stripes
        tokens = sorted(position for stripe in stripes for position in stripe)
        assert tokens == list(covered_by(*each[0]))
        assert {position for step, row in each for position in kept_of(step, row)} == set(tokens)


def check_parts(steps: Mapping[int, GroupStep]) -> None:
    """What masters name at a holder is what it serves, in the order of the masters' rows; steps are by member."""
    for holder, served in steps.items():
        for master, step in steps.items():
            named = []
            for row, number in enumerate(step.sequence):
                spans = sorted((a, b) for at, a, b, member in asked_spans(step) if at == row and member == holder)
                if spans:
                    named.append((number, _own(step, row), spans))
            parts = []
            for part, number in enumerate(served.serve_sequence):
                held = zip(served.serve_span_part, served.serve_span_start, served.serve_span_stop, strict=True)
                spans = sorted((a, b) for at, a, b in held if at == part)
                if served.serve_member[part] == master:
                    stride = served.serve_stride[part] if served.serve_stride else 1
                    parts.append((number, range(served.serve_start[part], served.serve_stop[part], stride), spans))
            assert named == parts


def _own(step: GroupStep, row: int) -> range:
    return range(step.start[row], step.stop[row], step.stride[row] if step.stride else 1)


def _spans(step: GroupStep) -> Iterator[tuple[Span, int, bool]]:
    """(span, stride, whether others answer for it)."""
    count, is_ring = len(step.span_row), step.kind is GroupKind.RING
    strides = step.span_stride or [1] * count
    asked = (step.span_asked or [0] * count) if is_ring else [1] * count
    spans = zip(step.span_row, step.span_start, step.span_stop, step.span_member, strict=True)
    return ((span, stride, bool(one)) for span, stride, one in zip(spans, strides, asked, strict=True))
