"""A group's step as a step of the own engine: members become peers, positions become slots. Knows no queue."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dunlin.effects import Address
from dunlin.messages.engine import Step
from dunlin.messages.group import GroupStep
from dunlin.messages.types import I32, I64, GroupKind, GroupRole, Keep, Serve, i32, i64
from services.instance.group.guests import Guest, GuestTable
from services.instance.kv.residency import Span


class StepRefusal(Exception):
    """The step cannot be computed here; the text says why. Nothing of it was done."""


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """Where a member stands: its index `me` in the group, the engines of the others by theirs, its own layers."""

    me: int
    engines: Mapping[int, Address]
    layers: int
    layout: int


@dataclass(slots=True)
class GuestRow:
    """Row `index` of a step. It writes the positions `covered`, or a ring's stripe of them, and `kept` stays here.

    `elsewhere` are the spans that lie at other members, in order; `others` the stripes that those compute.
    """

    index: int
    guest: Guest
    positions: range
    elsewhere: list[range] = field(default_factory=list)
    others: list[range] = field(default_factory=list)
    kept: list[Span] = field(default_factory=list)

    @property
    def is_ring(self) -> bool:
        """Whether it is a stripe."""
        return len(self.others) > 0

    @property
    def covered(self) -> range:
        """The tokens that are computed, here or by other members of the ring."""
        if not self.is_ring:
            return self.positions
        stripes = [self.positions, *self.others]
        return range(min(each.start for each in stripes), max(each[-1] for each in stripes) + 1)

    @property
    def written(self) -> list[Span]:
        """The positions that have slots here after the step."""
        return self.kept if self.is_ring else [(self.positions.start, self.positions.stop)]

    @property
    def slots_needed(self) -> int:
        """Slots for the step, beside those of the positions before it."""
        return _tokens(self.written) + (len(self.positions) if self.is_ring else 0)


def read_rows(step: GroupStep, guests: GuestTable, place: MemberPlace) -> list[GuestRow]:
    """The step's rows, if it can be computed here.

    Raises:
        StepRefusal: it names a guest that is not open, a member that is not known, or tokens that do not lie here.
    """
    _check_columns(step)
    rows = _rows(step, guests)
    for member in sorted({*step.span_member, *step.serve_member}):
        if member == place.me or member not in place.engines:
            raise StepRefusal(f"member {member} is not one of {sorted(place.engines)}")
    for row in rows:
        _check_row(row, guests)
    _check_served(step, guests, rows)
    return rows


def bind_rows(rows: Iterable[GuestRow], guests: GuestTable) -> None:
    """Give the positions that the rows write their slots; those bound before, from the rows' first on, are void, but
    for those that the leader said lie here.
    """
    for row in rows:
        guests.unbind_row(row.guest, row.covered)
        for start, stop in row.written:
            guests.bind(row.guest, start, stop)


def compose_step(
    number: int, step: GroupStep, rows: Sequence[GuestRow], guests: GuestTable, place: MemberPlace
) -> Step:
    """The own engine's step, once the rows are bound."""
    members = sorted({*step.span_member, *step.serve_member})
    peers = {member: index for index, member in enumerate(members)}
    extents = _extents(rows, guests)
    return Step(
        number,
        i64(row.guest.number for row in rows),
        step.start,
        step.stop,
        step.sample,
        *extents,
        stride=step.stride,
        group=step.kind if peers else GroupKind.LOCAL,
        part=GroupRole.MEMBER if peers else GroupRole.LOCAL,
        peers=tuple(place.engines[member] for member in members),
        keep=_keep(rows, guests, place.layers),
        layout=place.layout,
        span_row=step.span_row,
        span_start=step.span_start,
        span_stop=step.span_stop,
        span_holder=i32(peers[member] for member in step.span_member),
        span_stride=step.span_stride,
        span_asked=step.span_asked,
        exchange=step.exchange,
        own_room=i64(member + 1 for member in members),
        peer_room=i64([place.me + 1] * len(members)),
        serve=_serve(step, guests, peers),
    )


def named_guests(step: GroupStep) -> set[int]:
    """The guests that have rows in the step, or keys that it reads."""
    return {*step.sequence, *step.serve_sequence}


# --- what a step says ---


def _check_columns(step: GroupStep) -> None:
    rows, spans, parts = len(step.sequence), len(step.span_row), len(step.serve_sequence)
    groups = (
        (rows, (step.start, step.stop, step.sample, step.stride or step.start)),
        (spans, (step.span_start, step.span_stop, step.span_member)),
        (spans, (step.span_stride or step.span_start, step.span_asked or step.span_start)),
        (parts, (step.serve_start, step.serve_stop, step.serve_member, step.serve_stride or step.serve_start)),
        (len(step.serve_span_part), (step.serve_span_start, step.serve_span_stop)),
        (len(step.keep_row), (step.keep_start, step.keep_stop)),
    )
    if any(len(column) != count for count, columns in groups for column in columns):
        raise StepRefusal("columns of different lengths")
    if step.kind not in (GroupKind.RING, GroupKind.MASTERS) or not (rows or parts):
        raise StepRefusal(f"a step of {rows} rows and {parts} parts as {step.kind.name}")
    if len(set(step.sequence)) != rows:
        raise StepRefusal("a guest is named twice")
    named = [(rows, [*step.span_row, *step.keep_row]), (parts, step.serve_span_part)]
    if any(not 0 <= each < count for count, column in named for each in column):
        raise StepRefusal("a span of no row, or of no part")
    ends = [*zip(step.start, step.stop, strict=True), *zip(step.span_start, step.span_stop, strict=True)]
    ends += [*zip(step.serve_span_start, step.serve_span_stop, strict=True)]
    ends += [*zip(step.keep_start, step.keep_stop, strict=True)]
    strides = (*step.stride, *step.span_stride, *step.serve_stride)
    if any(not 0 <= start < stop for start, stop in ends) or min(strides, default=1) < 1:
        raise StepRefusal("an empty row or span")


def _rows(step: GroupStep, guests: GuestTable) -> list[GuestRow]:
    strides = step.stride or i64([1] * len(step.sequence))
    rows = []
    for index, number in enumerate(step.sequence):
        positions = range(step.start[index], step.stop[index], strides[index])
        rows.append(GuestRow(index, _guest(guests, number), positions))
    count, is_ring = len(step.span_row), step.kind is GroupKind.RING
    span_strides, asked = step.span_stride or i64([1] * count), step.span_asked or [0] * count
    spans = zip(step.span_start, step.span_stop, span_strides, step.span_row, asked, strict=True)
    for start, stop, stride, row, is_asked in sorted(spans):
        (rows[row].others if is_ring and not is_asked else rows[row].elsewhere).append(range(start, stop, stride))
    for row, start, stop in sorted(zip(step.keep_row, step.keep_start, step.keep_stop, strict=True)):
        rows[row].kept.append((start, stop))
    return rows


def _guest(guests: GuestTable, number: int) -> Guest:
    guest = guests.get(number)
    if guest is None:
        raise StepRefusal(f"guest {number} is not open")
    return guest


def _check_row(row: GuestRow, guests: GuestTable) -> None:
    number, covered = row.guest.number, row.covered
    at = 0
    for span in row.elsewhere:
        if span.start < at or span.stop > covered.start:
            raise StepRefusal(f"guest {number}: spans overlap, or reach beyond token {covered.start}")
        _check_here(guests, row.guest, at, span.start)
        at = span.stop
    _check_here(guests, row.guest, at, covered.start)
    if row.kept and not row.is_ring:
        raise StepRefusal(f"guest {number}: of a row that does not go round all stays")
    if any(start < covered.start or stop > covered.stop for start, stop in row.kept):
        raise StepRefusal(f"guest {number}: what is to stay lies outside the stripes")
    if any(after[0] < before[1] for before, after in zip(row.kept, row.kept[1:], strict=False)):
        raise StepRefusal(f"guest {number}: what is to stay overlaps")
    needed = guests.bound_beside(row.guest, covered) + row.slots_needed
    if needed > guests.slots(row.guest):
        raise StepRefusal(f"guest {number}: {needed} slots are needed, {guests.slots(row.guest)} are set aside")


def _check_here(guests: GuestTable, guest: Guest, start: int, stop: int) -> None:
    if not guests.has(guest, start, stop):
        raise StepRefusal(f"guest {guest.number}: tokens {start} to {stop} do not lie here")


def _check_served(step: GroupStep, guests: GuestTable, rows: Sequence[GuestRow]) -> None:
    """What is served lies here, or is written by the step itself."""
    own = {row.guest: row for row in rows}
    served = zip(step.serve_span_part, step.serve_span_start, step.serve_span_stop, strict=True)
    for part, start, stop in served:
        guest = _guest(guests, step.serve_sequence[part])
        row = own.get(guest)
        if row is None:
            _check_here(guests, guest, start, stop)
            continue
        _check_here(guests, guest, start, min(stop, row.covered.start))
        if stop > row.covered.start and (row.is_ring or stop > row.covered.stop):
            raise StepRefusal(f"guest {guest.number}: tokens {start} to {stop} do not lie here")


# --- columns ---


def _extents(rows: Sequence[GuestRow], guests: GuestTable) -> tuple[I32, I64, I64]:
    """(row, first slot, length) of what the rows write."""
    row_of, starts, lengths = i32(), i64(), i64()
    for row in rows:
        if row.is_ring:
            found = guests.spare_extents(row.guest, len(row.positions))
        else:
            found = guests.extents(row.guest, row.positions.start, row.positions.stop)
        for first, length in found:
            row_of.append(row.index)
            starts.append(first)
            lengths.append(length)
    return row_of, starts, lengths


def _keep(rows: Sequence[GuestRow], guests: GuestTable, layers: int) -> Keep | None:
    found = []
    for row in rows:
        for start, stop in row.kept:
            for first, length in guests.extents(row.guest, start, stop):
                found.append((row.index, start, start + length, first))
                start += length
    if not found:
        return None
    index, starts, stops, slots = zip(*found, strict=True)
    count = len(found)
    return Keep(i32(index), i32([0] * count), i32([layers] * count), i64(starts), i64(stops), i64(slots))


def _serve(step: GroupStep, guests: GuestTable, peers: Mapping[int, int]) -> Serve | None:
    parts = len(step.serve_sequence)
    if not parts:
        return None
    serve = Serve(
        step.serve_sequence,
        step.serve_start,
        step.serve_stop,
        step.serve_stride or i64([1] * parts),
        i32(peers[member] for member in step.serve_member),
    )
    for part, start, stop in zip(step.serve_span_part, step.serve_span_start, step.serve_span_stop, strict=True):
        for first, length in guests.extents(_guest(guests, step.serve_sequence[part]), start, stop):
            serve.span_part.append(part)
            serve.span_start.append(start)
            serve.span_stop.append(start + length)
            serve.slot.append(first)
            start += length
    return serve


def _tokens(spans: Iterable[Span]) -> int:
    total = 0
    for start, stop in spans:
        total += stop - start
    return total
