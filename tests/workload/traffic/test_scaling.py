"""Cut, stretched, thinned, repeated, overlaid: the pattern in time stays, and prefixes stay apart."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.workload.traffic.scaling import cut_window, overlay, resample_to_rate, stretch_time
from dunlin.workload.traffic.trace import Arrival

TRACE = [Arrival(float(i), 100 + i, 10, blocks=(i // 10,)) for i in range(100)]
"""One a second; tens share a prefix."""


def test_a_cut_begins_anew() -> None:
    assert [one.at_s for one in cut_window(TRACE, 10.0, 13.0)] == [0.0, 1.0, 2.0]
    assert cut_window(TRACE, 10.0, 13.0)[0].input_tokens == 110


def test_stretching_changes_times_alone() -> None:
    slow = stretch_time(TRACE, 2.5)
    assert [one.at_s for one in slow[:3]] == [0.0, 2.5, 5.0]
    assert [replace(one, at_s=0.0) for one in slow] == [replace(one, at_s=0.0) for one in TRACE]


@given(st.floats(0.05, 5.0), st.integers(0, 5))
def test_rate_times_duration_requests_come_out_in_order(rate: float, seed: int) -> None:
    made = resample_to_rate(TRACE, rate, 100.0, seed)
    assert len(made) == round(rate * 100.0)
    assert all(one.at_s <= other.at_s for one, other in itertools.pairwise(made))
    assert all(0 <= one.at_s < 100.0 for one in made)


def test_thinning_takes_rows_as_they_are() -> None:
    made = resample_to_rate(TRACE, 0.3, 100.0, seed=1)
    assert all(one in TRACE for one in made)
    assert len({one.at_s for one in made}) == 30


def test_thinning_keeps_the_pattern() -> None:
    bursty = [Arrival(i / 100, 1, 1) for i in range(9000)] + [Arrival(90 + i / 100, 1, 1) for i in range(1000)]
    bursty = [one for one in bursty if one.at_s < 10 or one.at_s >= 90]  # silence between two loud parts
    made = resample_to_rate(bursty, 5.0, 100.0, seed=1)
    assert not [one for one in made if 10 <= one.at_s < 90]
    assert sum(one.at_s < 10 for one in made) == pytest.approx(250, rel=0.2)


def test_repeating_adds_copies_a_little_later() -> None:
    made = resample_to_rate(TRACE, 2.0, 100.0, seed=1, jitter_s=0.25)
    assert [one for one in made if one.blocks[0] < 10] == TRACE
    copies = [one for one in made if one.blocks[0] >= 10]
    assert [one.input_tokens for one in copies] == [one.input_tokens for one in TRACE]
    assert all(0 <= copy.at_s - one.at_s <= 0.25 for copy, one in zip(copies, TRACE, strict=True))


def test_copies_share_prefixes_among_themselves_alone() -> None:
    made = resample_to_rate(TRACE, 3.0, 100.0, seed=1)
    groups: dict[tuple[int, ...], int] = {}
    for one in made:
        groups[one.blocks] = groups.get(one.blocks, 0) + 1
    assert sorted(groups.values()) == [10] * 30


def test_nothing_stays_nothing() -> None:
    assert resample_to_rate([], 3.0, 10.0, seed=0) == []


def test_laid_over_one_another_no_part_shares_with_another() -> None:
    copied = resample_to_rate(TRACE, 2.0, 100.0, seed=1)
    both = overlay([copied, copied])
    assert len(both) == 400
    assert len({one.blocks for one in both}) == 40
    assert [one.at_s for one in both] == sorted(one.at_s for one in both)
