"""What a step says of keys that lie elsewhere: its columns, checked and made into spans by row.

Knows no sequence, no link and no tensor.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dunlin.engine.attention.spans import SlotSpan, slot_run
from dunlin.messages.engine import Step
from dunlin.messages.types import GroupKind

WITH_PEERS = (GroupKind.RING, GroupKind.MASTERS)


@dataclass(frozen=True, slots=True)
class PeerSpan:
    """Tokens of a row that lie at a peer, which is asked for them, or the stripe of a ring that it computes."""

    peer: int
    positions: range
    is_stripe: bool = False


@dataclass(frozen=True, slots=True)
class RetainedSpan:
    """Tokens `[start, stop)` that this engine retains in its slots from `slot` on."""

    start: int
    stop: int
    slot: int


@dataclass(frozen=True, slots=True)
class ServedPart:
    """A master's row of which this engine holds keys: its queries' positions, and where the spans lie."""

    master: int
    queries: range
    spans: tuple[SlotSpan, ...]


def check_columns(step: Step) -> str:
    """What contradicts itself in the step's columns of peers, spans and parts; empty if nothing does."""
    serve, keep = step.serve, step.keep
    groups: list[tuple[str, list[Sequence[int]]]] = [
        ("peers", [range(len(step.peers)), step.own_room, step.peer_room]),
        ("spans", [step.span_row, step.span_start, step.span_stop, step.span_holder]),
        ("strides of spans", [step.span_stride or step.span_row, step.span_row]),
        ("asked spans", [step.span_asked or step.span_row, step.span_row]),
    ]
    if serve is not None:
        groups.append(("served parts", [serve.sequence, serve.start, serve.stop, serve.stride, serve.master]))
        groups.append(("served spans", [serve.span_part, serve.span_start, serve.span_stop, serve.slot]))
    if keep is not None:
        groups.append(("keep", [keep.row, keep.layer_start, keep.layer_stop, keep.start, keep.stop, keep.slot]))
    uneven = [name for name, columns in groups if len(set(map(len, columns))) != 1]
    return f"columns of different lengths: {', '.join(uneven)}" if uneven else _check_values(step)


def _check_values(step: Step) -> str:
    rows, peers = len(step.sequence), len(step.peers)
    if peers and step.exchange <= 0:
        return "peers without the number of an exchange"
    if any(not 0 <= row < rows for row in step.span_row) or any(not 0 <= peer < peers for peer in step.span_holder):
        return (
            f"spans of rows {sorted(set(step.span_row))} of {rows} at peers {sorted(set(step.span_holder))} of {peers}"
        )
    if any(not 0 <= start < stop for start, stop in zip(step.span_start, step.span_stop, strict=True)):
        return "an empty span"
    if any(stride < 1 for stride in step.span_stride):
        return "a stride of a span below 1"
    if any(asked and stride != 1 for asked, stride in zip(step.span_asked, step.span_stride, strict=False)):
        return "a stride of a span that its holder is asked for"
    serve = step.serve
    if serve is None:
        return ""
    if any(not 0 <= master < peers for master in serve.master) or any(stride < 1 for stride in serve.stride):
        return "served parts of no peer, or with a stride below 1"
    if any(not 0 <= part < len(serve.master) for part in serve.span_part):
        return "served spans of no part"
    if any(not 0 <= start < stop for start, stop in zip(serve.span_start, serve.span_stop, strict=True)):
        return "an empty served span"
    if any(not 0 <= start < stop for start, stop in zip(serve.start, serve.stop, strict=True)):
        return "a served part without queries"
    return ""


def striped_rows(step: Step) -> set[int]:
    """The rows of which peers compute stripes: they go round."""
    if step.group is not GroupKind.RING:
        return set()
    asked = step.span_asked or [0] * len(step.span_row)
    return {row for row, is_asked in zip(step.span_row, asked, strict=True) if not is_asked}


def spans_by_row(step: Step) -> dict[int, tuple[PeerSpan, ...]]:
    """The spans that lie elsewhere, by row, in order of position; those of one peer that touch are one."""
    spans, is_ring = len(step.span_row), step.group is GroupKind.RING
    strides, asked = step.span_stride or [1] * spans, step.span_asked or [0] * spans
    found: dict[int, list[PeerSpan]] = {}
    columns = zip(step.span_start, step.span_stop, strides, step.span_holder, step.span_row, asked, strict=True)
    for start, stop, stride, peer, row, is_asked in sorted(columns):
        known, span = found.setdefault(row, []), PeerSpan(peer, range(start, stop, stride), is_ring and not is_asked)
        last = known[-1] if known else None
        is_next = last is not None and (last.peer, last.is_stripe) == (peer, span.is_stripe)
        if last is not None and is_next and _touch(last.positions, span.positions):
            known[-1] = PeerSpan(peer, range(last.positions.start, stop), span.is_stripe)
        else:
            known.append(span)
    return {row: tuple(spans) for row, spans in found.items()}


def kept_by_row(step: Step) -> dict[int, list[RetainedSpan]]:
    """The regions that the step retains, by row, in order of position."""
    found: dict[int, list[RetainedSpan]] = {}
    if step.keep is not None:
        columns = zip(step.keep.start, step.keep.stop, step.keep.slot, step.keep.row, strict=True)
        for start, stop, slot, row in sorted(columns):
            found.setdefault(row, []).append(RetainedSpan(start, stop, slot))
    return found


def served_parts(step: Step) -> list[ServedPart]:
    """The parts that the step answers for, in their order. Spans that touch are one, as for the master."""
    serve = step.serve
    if serve is None:
        return []
    pieces: list[list[tuple[range, int]]] = [[] for _ in serve.master]
    columns = zip(serve.span_start, serve.span_stop, serve.slot, serve.span_part, strict=True)
    for start, stop, slot, part in sorted(columns):
        pieces[part].append((range(start, stop), slot))
    queries = zip(serve.start, serve.stop, serve.stride, strict=True)
    return [
        ServedPart(master, range(*each), _joined(own))
        for master, each, own in zip(serve.master, queries, pieces, strict=True)
    ]


def _joined(pieces: Sequence[tuple[range, int]]) -> tuple[SlotSpan, ...]:
    spans: list[SlotSpan] = []
    for positions, slot in pieces:
        last = spans[-1] if spans else None
        if last is None or not _touch(last.positions, positions):
            spans.append(slot_run(positions, slot))
            continue
        last.run_at.append(len(last.positions))
        last.run_slot.append(slot)
        spans[-1] = SlotSpan(range(last.positions.start, positions.stop), last.run_at, last.run_slot)
    return tuple(spans)


def part_of(span: SlotSpan, positions: range) -> SlotSpan:
    """The part of a span without stride at `positions`, which lie in it."""
    if positions == span.positions:
        return span
    first = positions.start - span.positions.start
    slots = span.slots()[first : first + len(positions)].tolist()
    starts = [at for at in range(len(slots)) if not at or slots[at] != slots[at - 1] + 1]
    runs = type(span.run_at)("q", starts), type(span.run_slot)("q", [slots[at] for at in starts])
    return SlotSpan(positions, *runs)


def _touch(first: range, second: range) -> bool:
    return first.step == second.step == 1 and first.stop == second.start
