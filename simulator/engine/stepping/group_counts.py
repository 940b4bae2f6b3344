"""What a step with peers computes and exchanges, in counts for its timing."""

from collections.abc import Callable, Collection

from dunlin.cost.group_steps import GroupWork, PeerWork
from dunlin.cost.models import BatchCounts
from dunlin.effects import Address
from dunlin.messages.engine import Step
from dunlin.messages.types import GroupKind
from simulator.engine.stepping.step_queue import row_positions

Span = tuple[int, int, int]
"""(start, stop, stride) of tokens."""
Spans = dict[int, dict[int, list[Span]]]
"""By row and peer."""


def count_group_work(
    step: Step,
    rows: Collection[int],
    is_serving: bool,
    prompt_tokens: Callable[[int], int],
    is_near: Callable[[Address], bool],
) -> GroupWork:
    """The work of the step's `rows`, and of what it serves. `prompt_tokens(sequence)`: the length of its prompt;
    `is_near(peer)`: it is an engine of the same node.
    """
    peers = [PeerWork(is_near(peer)) for peer in step.peers]
    own, (asked, stripes) = BatchCounts(), _spans_by_row(step)
    for row in rows:
        positions = row_positions(step, row)
        elsewhere = _count_asked(peers, len(positions), asked.get(row, {}))
        if row in stripes:
            _count_stripe(own, peers, positions, stripes[row], elsewhere)
        else:
            _count_master(own, positions, elsewhere, prompt_tokens(step.sequence[row]))
    if is_serving:
        _count_served(step, peers)
    return GroupWork(own, peers, _kept(step, rows))


def _kept(step: Step, rows: Collection[int]) -> int:
    """Tokens of these rows that stay here after a ring."""
    keep = step.keep
    if keep is None:
        return 0
    return sum(stop - start for row, start, stop in zip(keep.row, keep.start, keep.stop, strict=True) if row in rows)


def _spans_by_row(step: Step) -> tuple[Spans, Spans]:
    """The spans that peers are asked for, and their stripes of a ring."""
    asked_spans: Spans = {}
    stripes: Spans = {}
    count, is_ring = len(step.span_row), step.group is GroupKind.RING
    strides, asked = step.span_stride or [1] * count, step.span_asked or [0] * count
    columns = zip(step.span_row, step.span_holder, step.span_start, step.span_stop, strides, asked, strict=True)
    for row, peer, start, stop, stride, is_asked in columns:
        found = stripes if is_ring and not is_asked else asked_spans
        found.setdefault(row, {}).setdefault(peer, []).append((start, stop, stride))
    return asked_spans, stripes


def _count_asked(peers: list[PeerWork], queries: int, split: dict[int, list[Span]]) -> int:
    """Holders attend to the keys that lie there, for a partial result per query; returns how many keys those are."""
    elsewhere = 0
    for peer, spans in split.items():
        keys = _tokens(spans)
        elsewhere += keys
        peers[peer].asked.add(queries, keys)
        peers[peer].queries_out += queries
        peers[peer].results_in += queries
    return elsewhere


def _count_master(own: BatchCounts, positions: range, elsewhere: int, prompt_tokens: int) -> None:
    """Rows attend here to the keys that lie here."""
    queries = len(positions)
    here = max(0, positions.start - elsewhere)
    if queries == 1 and positions.start >= prompt_tokens:
        own.add_decode(here + 1)
    else:
        own.add_prefill(queries, here)


def _count_stripe(
    own: BatchCounts, peers: list[PeerWork], positions: range, split: dict[int, list[Span]], elsewhere: int
) -> None:
    """A stripe attends to all keys before each of its tokens, wherever computed, but those that lie `elsewhere`."""
    for peer, spans in split.items():
        peers[peer].keys_in += _tokens(spans)
        peers[peer].keys_out += len(positions)
    own.add_stripe(range(positions.start - elsewhere, positions.stop - elsewhere, positions.step))


def _count_served(step: Step, peers: list[PeerWork]) -> None:
    serve = step.serve
    if serve is None:
        return
    spans: list[list[Span]] = [[] for _ in serve.master]
    for part, start, stop in zip(serve.span_part, serve.span_start, serve.span_stop, strict=True):
        spans[part].append((start, stop, 1))
    for part, peer in enumerate(serve.master):
        queries = len(range(serve.start[part], serve.stop[part], serve.stride[part]))
        peers[peer].served.add(queries, _tokens(spans[part]))
        peers[peer].queries_in += queries
        peers[peer].results_out += queries


def _tokens(spans: list[Span]) -> int:
    return sum(len(range(*span)) for span in spans)
