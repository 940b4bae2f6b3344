"""Rows whose keys do not all lie here: what a step says of them, checked against their sequences, and as batch rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from dunlin.engine.attention.base import Attention, BatchRow, covered_by
from dunlin.engine.attention.spans import KeySpan, SlotSpan, slot_span
from dunlin.engine.execution.peers.exchange import SplitRow
from dunlin.engine.execution.peers.peer_spans import PeerSpan, RetainedSpan, kept_by_row, spans_by_row
from dunlin.engine.execution.sequence import ELSEWHERE, SlotMap
from dunlin.messages.engine import Step

Extents = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class RowSplit:
    """Where the keys of a row lie beside here: `spans` at peers that are asked for them, in order of position. A ring's
    row computes a `stripe`, its peers `others`, and `kept` is what stays of them all.
    """

    spans: tuple[PeerSpan, ...]
    stripe: SlotSpan | None = None
    others: tuple[PeerSpan, ...] = ()
    kept: tuple[RetainedSpan, ...] = ()

    @property
    def covered(self) -> range:
        """The tokens of all stripes together."""
        assert self.stripe is not None
        stripes = [self.stripe.positions, *(span.positions for span in self.others)]
        return range(min(each.start for each in stripes), max(each[-1] + 1 for each in stripes))

    def extents(self) -> Iterator[tuple[int, int]]:
        """The slots of `covered` after the step, (start, length) in order."""
        at, covered = self.covered.start, self.covered
        for region in self.kept:
            if at < region.start:
                yield ELSEWHERE, region.start - at
            yield region.slot, region.stop - region.start
            at = region.stop
        if at < covered.stop:
            yield ELSEWHERE, covered.stop - at


def row_splits(step: Step, extents: Sequence[Extents]) -> dict[int, RowSplit]:
    """The rows of a step with keys elsewhere, by their index."""
    kept = kept_by_row(step)
    found = {}
    for row, spans in spans_by_row(step).items():
        asked = tuple(span for span in spans if not span.is_stripe)
        others = tuple(span for span in spans if span.is_stripe)
        if not others:
            found[row] = RowSplit(asked)
            continue
        positions = row_positions(step, row)
        slots = list(chain.from_iterable(range(start, start + length) for start, length in extents[row]))
        stripe = slot_span(positions, slots[: len(positions)])
        found[row] = RowSplit(asked, stripe, others, tuple(kept.get(row, ())))
    return found


def row_positions(step: Step, row: int) -> range:
    """The tokens that a row of a step computes."""
    return range(step.start[row], step.stop[row], step.stride[row] if step.stride else 1)


def wrong_split(split: RowSplit, positions: range, slots: SlotMap, layers_held: int) -> str:
    """Why the row cannot be computed with its keys where they are; empty if it can. `layers_held`: tokens with KV."""
    start = positions.start if split.stripe is None else split.covered.start
    try:
        for own in _own_positions(split, start):
            if own.stop > layers_held:
                return f"token {start} is computed, but the KV before it ends at {layers_held}"
            slots.here(own.start, own.stop)
    except ValueError as error:
        return str(error)
    return "" if split.stripe is None else _wrong_stripes(split, positions)


def _wrong_stripes(split: RowSplit, positions: range) -> str:
    covered = split.covered
    stripes = [positions, *(span.positions for span in split.others)]
    mask = bytearray(len(covered))
    for each in stripes:
        mask[each.start - covered.start : each[-1] + 1 - covered.start : each.step] = b"\1" * len(each)
    if not all(mask) or sum(map(len, stripes)) != len(covered):
        return f"stripes {stripes} do not make up the tokens {covered.start} to {covered.stop}"
    ends = [covered.start, *(region.stop for region in split.kept)]
    starts = [*(region.start for region in split.kept), covered.stop]
    if any(start < end for end, start in zip(ends, starts, strict=True)):
        return "regions to keep that overlap, or lie outside the stripes"
    return ""


def batch_row(split: RowSplit, positions: range, start: int, slots: SlotMap, backend: Attention) -> BatchRow:
    """The row as attention sees it, with packed tokens from `start` on."""
    stop, length = start + len(positions), positions[-1] + 1
    first = positions.stop if split.stripe is None else split.covered.start
    own: list[KeySpan] = [slots.here(each.start, each.stop) for each in _own_positions(split, first)]
    awaited: list[range] = []
    for spans in _by_peer(split.spans).values():
        results, rooms = backend.share(spans, length)
        awaited += [*map(covered_by, results), *rooms]
    if split.stripe is not None:
        own.append(split.stripe)
    return BatchRow(start, stop, positions, tuple(own), (*awaited, *(span.positions for span in split.others)))


def split_rows(
    step: Step, splits: Mapping[int, RowSplit], numbers: Mapping[int, int], peers: int
) -> list[list[SplitRow]]:
    """By peer, the rows with keys there, in order of the step; `numbers`: those that run, by index in it. A ring's row
    whose peer has a stripe and keys before it is there twice.
    """
    found: list[list[SplitRow]] = [[] for _ in range(peers)]
    for row, split in sorted(splits.items()):
        number, queries = numbers.get(row), row_positions(step, row)
        for peer, spans in _by_peer(split.spans).items():
            found[peer].append(SplitRow(number, queries, spans))
        for peer, spans in _by_peer(split.others).items():
            found[peer].append(SplitRow(number, queries, spans, split.stripe, split.kept))
    return found


def _by_peer(spans: Sequence[PeerSpan]) -> dict[int, tuple[range, ...]]:
    found: dict[int, tuple[range, ...]] = {}
    for span in spans:
        found[span.peer] = (*found.get(span.peer, ()), span.positions)
    return found


def feeding_rows(step: Step, extents: Sequence[Extents], numbers: Mapping[int, int]) -> list[set[int | None]]:
    """By peer, the rows whose keys the step writes and serves to that peer: their numbers, None for those that do not
    run.
    """
    found: list[set[int | None]] = [set() for _ in step.peers]
    serve = step.serve
    if serve is None:
        return found
    for part, start, stop, slot in zip(serve.span_part, serve.span_start, serve.span_stop, serve.slot, strict=True):
        for row, written in enumerate(extents):
            if any(first < slot + stop - start and slot < first + length for first, length in written):
                found[serve.master[part]].add(numbers.get(row))
    return found


def _own_positions(split: RowSplit, stop: int) -> Iterator[range]:
    """The tokens before `stop` that no span names. :raises ValueError: spans overlap, or reach beyond it."""
    at = 0
    for span in split.spans:
        if span.positions.step != 1 or span.positions.start < at or span.positions.stop > stop:
            raise ValueError(f"spans {[each.positions for each in split.spans]} before token {stop}")
        if at < span.positions.start:
            yield range(at, span.positions.start)
        at = span.positions.stop
    if at < stop:
        yield range(at, stop)
