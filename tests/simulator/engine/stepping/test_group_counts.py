"""What steps with peers compute and exchange, counted against tokens one by one."""

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from dunlin.cost.group_steps import PeerWork
from dunlin.cost.models import AttentionCounts, own_attention
from dunlin.effects import Address
from dunlin.messages.engine import Interrupt, Step, StepDone
from dunlin.messages.types import GroupKind, Keep, Serve, Verdict, i8, i32, i64
from simulator.engine.stepping.group_counts import count_group_work
from simulator.engine.stepping.group_steps import SplitSpans
from tests.simulator.engine.engine_bench import step_of
from tests.simulator.engine.stepping.test_group_steps import ask, group, serving, split_pair

PEERS = (Address("engine", "b"), Address("engine", "c"))
PROMPT = 20


def work_of(step: Step, serves: bool = False) -> Any:
    return count_group_work(
        step, range(len(step.sequence)), serves, lambda number: PROMPT, lambda peer: peer is PEERS[0]
    )


def spread(step: Step, kind: GroupKind, *spans: tuple[int, int, int, int, int]) -> Step:
    """Spans as (row, peer, start, stop, stride)."""
    row, peer, start, stop, stride = zip(*spans, strict=True)
    columns: dict[str, Any] = {"span_start": i64(start), "span_stop": i64(stop), "span_stride": i64(stride)}
    return replace(step, group=kind, peers=PEERS, span_row=i32(row), span_holder=i32(peer), **columns)


def test_a_master_attends_to_what_lies_here_and_asks_for_the_rest() -> None:
    rows = step_of(1, (7, 10, 14), (8, 30, 31))
    step = spread(rows, GroupKind.MASTERS, (0, 0, 0, 4, 1), (0, 0, 4, 6, 1), (0, 1, 8, 10, 1), (1, 1, 0, 5, 1),
                  (1, 1, 9, 12, 1))  # fmt: skip
    work = work_of(step)
    # Of sequence 7, tokens 6 and 7 lie here; of 8 all but eight.
    assert own_attention(work.own) == AttentionCounts(4, 4 * 2 + 10, 1, 31 - 8)
    assert work.peers == [
        PeerWork(True, AttentionCounts(4, 4 * 6), queries_out=4, results_in=4),
        PeerWork(False, AttentionCounts(4, 4 * 2, 1, 8), queries_out=5, results_in=5),
    ]


def test_what_is_served_is_counted_with_its_results() -> None:
    serve = Serve(
        sequence=i64([7, 8, 9]), start=i64([10, 30, 4]), stop=i64([14, 31, 8]), stride=i64([1, 1, 1]),
        master=i32([1, 0, 0]), span_part=i32([0, 0, 1, 1, 2]), span_start=i64([0, 4, 0, 9, 0]),
        span_stop=i64([4, 6, 5, 12, 4]), slot=i64([0, 40, 60, 80, 100]),
    )  # fmt: skip
    step = replace(serving(2, 9, 10, (0, 6, 100), **group("b")), peers=PEERS, serve=serve)
    work = work_of(step, serves=True)
    assert work.peers == [
        PeerWork(True, served=AttentionCounts(4, 4 * 4, 1, 8), queries_in=5, results_out=5),
        PeerWork(False, served=AttentionCounts(4, 4 * 6), queries_in=4, results_out=4),
    ]
    assert work_of(step).peers == [PeerWork(True), PeerWork(False)]


@given(st.integers(0, 40), st.integers(2, 60), st.integers(0, 2))
def test_the_stripes_of_a_ring_make_up_the_whole(first: int, tokens: int, at: int) -> None:
    """Three members, each with every third token; all pairs of a query and a key are computed once."""
    last = first + max(3, tokens)
    stripes = [range(first + member, last, 3) for member in range(3)]
    mine, others = stripes[at], [each for number, each in enumerate(stripes) if number != at]
    row = replace(step_of(1, (7, mine.start, mine.stop)), stride=i64([3]))
    step = spread(row, GroupKind.RING, *((0, peer, each.start, each.stop, 3) for peer, each in enumerate(others)))
    work = work_of(step)
    pairs = sum(len(range(query + 1)) for query in mine)
    assert own_attention(work.own) == AttentionCounts(len(mine), pairs)
    assert [(peer.keys_out, peer.keys_in) for peer in work.peers] == [(len(mine), len(each)) for each in others]


def test_a_stripe_asks_for_what_lies_elsewhere_and_attends_to_the_rest() -> None:
    """Of 30 tokens before the chunk 10 lie at a peer; a row without stripes rides along."""
    row = replace(step_of(1, (7, 31, 40), (8, 5, 9)), stride=i64([2, 1]))
    spans = ((0, 0, 10, 20, 1), (0, 0, 30, 40, 2), (1, 1, 0, 5, 1))
    step = replace(spread(row, GroupKind.RING, *spans), span_asked=i8([1, 0, 1]))
    work = work_of(step)
    stripe = range(31, 40, 2)
    pairs = sum(query + 1 - 10 for query in stripe) + 4 * 5 // 2
    assert own_attention(work.own) == AttentionCounts(len(stripe) + 4, pairs)
    assert work.peers == [
        PeerWork(True, AttentionCounts(5, 5 * 10), queries_out=5, results_in=5, keys_out=5, keys_in=5),
        PeerWork(False, AttentionCounts(4, 4 * 5), queries_out=4, results_in=4),
    ]


def test_what_a_ring_leaves_here_is_counted() -> None:
    keep = Keep(i32([0, 1]), i32([0, 0]), i32([2, 2]), i64([2, 0]), i64([6, 3]), i64([300, 400]))
    step = spread(step_of(1, (7, 0, 9), (8, 0, 5)), GroupKind.RING, (0, 0, 1, 9, 2), (1, 1, 1, 5, 2))
    step = replace(step, keep=keep)
    assert work_of(step).kept == 4 + 3
    assert count_group_work(step, [1], False, lambda number: PROMPT, lambda peer: True).kept == 3


def test_a_group_takes_its_time_from_when_its_last_member_begins() -> None:
    """A step takes 80 ms: the holder begins 50 ms after the master, who cannot be through 80 ms after his own start."""
    pair = split_pair()
    began_s = pair.world.now_s
    pair.tell("a", ask())
    pair.run(began_s + 0.05)
    later_s = pair.world.now_s
    pair.tell("b", serving(2, 9, 10, (0, 6, 100), **group("a")))
    pair.run(later_s + 0.078)
    assert pair.of(StepDone) == []
    pair.run(later_s + 0.2)
    assert [round(done.compute_s, 3) for done in pair.of(StepDone, "a")] == [round(0.08 + later_s - began_s, 3)]


def test_a_peer_that_is_past_the_exchange_is_waited_for_no_more() -> None:
    """The holder goes on to its next step at the moment at which the master may be through."""
    pair = split_pair()
    began_s = pair.world.now_s
    pair.tell("a", ask())
    for number in (2, 3):
        pair.tell("b", serving(number, 9, 10, (0, 6, 100), **group("a", exchange=5 + number)))
    pair.run(began_s + 0.1)
    assert [round(done.compute_s, 3) for done in pair.of(StepDone, "a")] == [0.08]


def test_who_waits_for_a_late_member_passes_safepoints_and_can_be_interrupted() -> None:
    pair = split_pair()
    began_s = pair.world.now_s
    pair.tell("a", ask())
    pair.run(began_s + 0.09)
    runner = pair.supervisors["a"].engine.runner
    passed = runner.progress(pair.world.now_s)
    pair.run(began_s + 2.0)
    waited = runner.progress(pair.world.now_s)
    assert waited > passed + 1000
    pair.tell("a", Interrupt(Verdict.DISCARD))
    pair.run(began_s + 2.01)
    assert [list(done.left) for done in pair.of(StepDone, "a")] == [[1]]
    assert runner.safepoints > passed + 1000


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), max_size=6), st.integers(0, 30), st.integers(1, 20))
def test_spans_cover_what_their_tokens_do(spans: list[tuple[int, int]], start: int, length: int) -> None:
    split = SplitSpans(tuple((PEERS[at % 2], range(first, first + more)) for at, (first, more) in enumerate(spans)))
    assert split.covers(start, start + length) == split.positions.issuperset(range(start, start + length))
