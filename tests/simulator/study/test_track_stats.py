"""Columns over time: stretches of groups, rises of counters, means that weigh by time."""

from array import array

import pytest

from simulator.study.samples import InstanceTrack
from simulator.study.track_stats import (
    RoleInterval,
    column_sums,
    counter_rises,
    full_height,
    kv_usage,
    last_value,
    mean_over_time,
    role_intervals,
)


def track(**columns: list[float]) -> InstanceTrack:
    made = InstanceTrack(array("d", [0.0, 1.0, 2.0, 3.0]))
    for name, values in columns.items():
        getattr(made, name).extend(values)
    return made


def test_stretches_end_where_the_group_or_the_part_changes() -> None:
    made = track(group=[1, 1, 2, 2], part=[0, 0, 0, 3])
    assert role_intervals(made) == [
        RoleInterval(0.0, 2.0, 1, 0),
        RoleInterval(2.0, 3.0, 2, 0),
        RoleInterval(3.0, 3.0, 2, 3),
    ]
    assert role_intervals(InstanceTrack()) == []


def test_a_counter_rises_where_it_is_seen_to() -> None:
    made = track(preemptions_total=[0, 0, 2, 3])
    assert counter_rises(made, made.preemptions_total) == [2.0, 3.0]


def test_a_mean_weighs_by_time_and_stops() -> None:
    assert mean_over_time([0.0, 1.0, 4.0], [10.0, 20.0, 0.0], stop_s=4.0) == pytest.approx(17.5)
    assert mean_over_time([0.0, 1.0, 4.0], [10.0, 20.0, 99.0], stop_s=2.0) == pytest.approx(15.0)
    assert mean_over_time([], [], 5.0) == 0.0


def test_the_end_of_a_counter() -> None:
    made = track(moved_bytes_total=[0, 5, 5, 9])
    assert last_value(made.moved_bytes_total) == 9
    assert last_value(made.step_busy_s) == 0.0


def test_what_is_only_cached_is_not_needed() -> None:
    made = track(used_slots=[0, 50, 100, 0], cached_slots=[0, 25, 0, 0], capacity_slots=[100, 100, 100, 0])
    assert kv_usage(made) == [0.0, 0.25, 1.0, 0.0]


def test_columns_add_up_as_far_as_all_go() -> None:
    assert column_sums([[1, 2, 3], [10, 20]]) == [11, 22]
    assert column_sums([]) == []


SHARES = [([0.004, 0.01], 0.01), ([0.011], 0.02), ([0.5], 0.5), ([0.51], 1.0), ([], 1.0)]


@pytest.mark.parametrize(("shares", "full"), SHARES)
def test_nearly_empty_instances_are_shown_higher(shares: list[float], full: float) -> None:
    assert full_height(shares) == full
