"""From records to figures, with exact times."""

import math
from typing import Any

import pytest

from dunlin.workload.loadgen.stats import Percentiles, RequestRecord, nearest_rank, percentiles, summarize


def record(at_s: float = 0.0, token_s: tuple[float, ...] = (1.0, 1.5, 3.0), **changes: Any) -> RequestRecord:
    made = RequestRecord(
        at_s, 10, len(token_s), sent_s=at_s, token_s=list(token_s), end_s=token_s[-1] if token_s else at_s, outcome="ok"
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_one_request() -> None:
    found = summarize([record(at_s=0.5)])
    assert found.ttft_s == Percentiles(0.5, 0.5, 0.5, 0.5)
    assert found.tpot_s == Percentiles(1.0, 1.0, 1.0, 1.0)
    assert found.itl_s == Percentiles(0.5, 1.5, 1.5, 1.5)
    assert found.jct_s == Percentiles(2.5, 2.5, 2.5, 2.5)
    assert (found.span_s, found.requests_per_s, found.output_tokens_per_s) == (2.5, 1 / 2.5, 3 / 2.5)


def test_latency_counts_from_the_schedule_not_from_a_late_sending() -> None:
    found = summarize([record(sent_s=0.75)])
    assert found.ttft_s.max == 1.0
    assert found.lateness_s.max == 0.75


def test_what_never_came_is_infinitely_late_and_counted() -> None:
    failed = record(token_s=(9.0,), outcome="error", detail="boom")
    refused = record(token_s=(), outcome="refused")
    expired = record(token_s=(), outcome="expired")
    found = summarize([record(), failed, refused, expired])
    assert (found.requests, found.completed, found.errors, found.refused, found.expired) == (4, 1, 1, 1, 1)
    assert found.unanswered == 2
    assert found.first_errors == ("boom",)
    assert (found.ttft_s.p50, found.ttft_s.p90) == (9.0, math.inf)
    assert (found.jct_s.p50, found.itl_s.max) == (math.inf, 1.5)


def test_a_few_that_never_came_leave_the_median() -> None:
    found = summarize([*(record() for _ in range(99)), record(token_s=(), outcome="refused")])
    assert (found.ttft_s.p50, found.ttft_s.p99, found.ttft_s.max) == (1.0, 1.0, math.inf)


def test_tokens_of_requests_that_were_open_at_the_end_came_within_the_span() -> None:
    cut_off = record(token_s=tuple(map(float, range(2, 101))), outcome="error", end_s=0.0)
    found = summarize([record(), cut_off])
    assert found.span_s == 100.0
    assert (found.requests_per_s, found.output_tokens_per_s) == (1 / 100.0, 102 / 100.0)
    assert summarize([record(at_s=5.0, token_s=(), outcome="error", end_s=0.0)]).span_s == 0.0


def test_a_single_token_has_no_time_per_token() -> None:
    assert summarize([record(token_s=(1.0,))]).tpot_s == Percentiles()


def test_clipped_requests_are_counted() -> None:
    found = summarize([record(), record(clipped=True), record(), record()])
    assert (found.clipped, found.clipped_share) == (1, 0.25)


def test_no_records_give_zeros() -> None:
    found = summarize([])
    assert (found.requests, found.requests_per_s, found.clipped_share, found.jct_s) == (0, 0.0, 0.0, Percentiles())


@pytest.mark.parametrize(("share", "value"), [(0.5, 50), (0.9, 90), (0.99, 99), (0.991, 100), (1.0, 100), (0.0, 1)])
def test_nearest_rank(share: float, value: float) -> None:
    assert nearest_rank(list(range(1, 101)), share) == value


def test_spread_sorts() -> None:
    assert percentiles([3, 1, 2]) == Percentiles(2, 3, 3, 3)
