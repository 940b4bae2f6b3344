"""The pace of a queue, in exact times."""

import pytest

from services.dispatcher.admission.wait_estimate import WaitEstimator


def test_without_a_queue_no_pace_is_known() -> None:
    pace = WaitEstimator()
    for end_s in range(10):
        pace.on_served(end_s * 100.0, others_wait=False)
    assert pace.wait_s(1000) == 0.0


def test_the_time_between_two_ends_counts_if_others_waited_all_along() -> None:
    pace = WaitEstimator()
    for end_s in (0.0, 2.0, 6.0):
        pace.on_served(end_s, others_wait=True)
    assert (pace.interval_s, pace.wait_s(5)) == (3.0, 15.0)
    pace.on_served(100.0, others_wait=False)
    pace.on_served(200.0, others_wait=True)
    assert pace.interval_s == 3.0, "no request waited in between"
    pace.on_served(203.0, others_wait=True)
    assert pace.interval_s == 3.0


def test_several_that_end_at_once_are_so_many() -> None:
    pace = WaitEstimator()
    for end_s in (0.0, *([4.0] * 4), *([8.0] * 4)):
        pace.on_served(end_s, others_wait=True)
    assert pace.interval_s == pytest.approx(1.0)


def test_the_last_ends_count_most() -> None:
    pace, now_s = WaitEstimator(), 0.0
    for each_s in [1.0] * 100 + [3.0] * 100:
        now_s += each_s
        pace.on_served(now_s, others_wait=True)
    assert 2.9 < pace.interval_s < 3.0
