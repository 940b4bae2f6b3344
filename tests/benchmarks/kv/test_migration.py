"""Which gaps of a stream belong to moves."""

import pytest

from benchmarks.kv.migration import gaps_at, usual_gaps
from dunlin.workload.loadgen.stats import RequestRecord


def record(*token_s: float) -> RequestRecord:
    return RequestRecord(0.0, 4, len(token_s), token_s=list(token_s))


def test_the_gap_at_a_move_is_that_before_the_first_token_of_the_next_attempt() -> None:
    stream = record(1.0, 1.1, 1.2, 1.7, 1.8)
    (gap,) = gaps_at(stream, [3])
    assert gap.gap_s == pytest.approx(0.5)
    assert gap.usual_s == pytest.approx(0.1)
    assert gap.added_s == pytest.approx(0.4)
    assert usual_gaps(stream, [3]) == pytest.approx([0.1, 0.1, 0.1])


def test_a_move_before_the_first_token_or_after_the_last_has_no_gap() -> None:
    assert gaps_at(record(1.0, 1.1, 1.2), [0, 3]) == []


def test_a_stream_of_moves_alone_says_nothing_of_what_is_usual() -> None:
    assert gaps_at(record(1.0, 1.1), [1]) == []


def test_a_move_that_cost_nothing_adds_nothing() -> None:
    (gap,) = gaps_at(record(1.0, 1.3, 1.4, 1.7), [2])
    assert gap.added_s == 0.0
