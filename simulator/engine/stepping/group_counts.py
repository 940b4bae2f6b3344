"""What a step with peers computes and exchanges, in counts for its timing."""

from collections.abc import Callable, Collection
from itertools import pairwise

from dunlin.cost.group_steps import GroupWork, PeerWork
from dunlin.cost.models import BatchCounts
from dunlin.effects import Address
from dunlin.messages.engine import Step
from dunlin.messages.types import GroupKind
from simulator.engine.stepping.step_queue import row_positions

Span = tuple[int, int, int]
"""(start, stop, stride) of tokens."""


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
    own, is_ring, spans = BatchCounts(), step.group is GroupKind.RING, _spans_by_row(step)
    for row in rows:
        positions, split = row_positions(step, row), spans.get(row, {})
        if is_ring:
            _count_stripe(own, peers, positions, split)
        else:
            _count_master(own, peers, positions, split, prompt_tokens(step.sequence[row]))
    if is_serving:
        _count_served(step, peers)
    return GroupWork(own, peers, _kept(step, rows))


def _kept(step: Step, rows: Collection[int]) -> int:
    """Tokens of these rows that stay here after a ring."""
    keep = step.keep
    if keep is None:
        return 0
    return sum(stop - start for row, start, stop in zip(keep.row, keep.start, keep.stop, strict=True) if row in rows)


def _spans_by_row(step: Step) -> dict[int, dict[int, list[Span]]]:
    """The spans elsewhere, by row and peer."""
    found: dict[int, dict[int, list[Span]]] = {}
    strides = step.span_stride or [1] * len(step.span_row)
    columns = zip(step.span_row, step.span_holder, step.span_start, step.span_stop, strides, strict=True)
    for row, peer, *span in columns:
        found.setdefault(row, {}).setdefault(peer, []).append((span[0], span[1], span[2]))
    return found


def _count_master(
    own: BatchCounts, peers: list[PeerWork], positions: range, split: dict[int, list[Span]], prompt_tokens: int
) -> None:
    """Rows attend here to the keys that lie here; to the others their holders do, for a partial result per span."""
    queries, elsewhere = len(positions), 0
    for peer, spans in split.items():
        keys = _tokens(spans)
        elsewhere += keys
        peers[peer].asked.add(queries, keys)
        peers[peer].queries_out += queries
        peers[peer].results_in += queries * _runs(spans)
    here = max(0, positions.start - elsewhere)
    if queries == 1 and positions.start >= prompt_tokens:
        own.add_decode(here + 1)
    else:
        own.add_prefill(queries, here)


def _count_stripe(own: BatchCounts, peers: list[PeerWork], positions: range, split: dict[int, list[Span]]) -> None:
    """A stripe attends to all keys before each of its tokens, whoever computed them."""
    for peer, spans in split.items():
        peers[peer].keys_in += _tokens(spans)
        peers[peer].keys_out += len(positions)
    own.add_stripe(positions)


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
        peers[peer].results_out += queries * _runs(spans[part])


def _tokens(spans: list[Span]) -> int:
    return sum(len(range(*span)) for span in spans)


def _runs(spans: list[Span]) -> int:
    """Spans, those that touch counted as one: each has a partial result of its own."""
    ordered = sorted(spans)
    return len(ordered) - sum(one[1] == two[0] for one, two in pairwise(ordered))
