"""From outcomes to figures, with exact times."""

from array import array
from math import inf
from typing import Any

import pytest

from dunlin.workload.loadgen.slo import Slo
from dunlin.workload.loadgen.stats import Percentiles, RequestRecord
from simulator.study.report import SimulationOutcome, figures, slowest
from simulator.study.samples import InstanceTrack


def record(at_s: float = 0.0, first_s: float = 1.0, last_s: float = 3.0, **changes: Any) -> RequestRecord:
    values = {"outcome": "ok", "request": f"req-1-{int(at_s)}", "end_s": last_s, **changes}
    return RequestRecord(at_s, 10, 3, sent_s=at_s, token_s=[first_s, 2.0, last_s], **values)


def track(used: int = 50, busy_s: float = 2.0, **counters: int) -> InstanceTrack:
    made = InstanceTrack(array("d", [0.0, 2.0]))
    made.used_slots.extend([0, used])
    made.cached_slots.extend([0, 0])
    made.capacity_slots.extend([100, 100])
    made.step_busy_s.extend([0.0, busy_s])
    for name, value in counters.items():
        getattr(made, f"{name}_total").extend([0, value])
    return made


def outcome(**changes: Any) -> SimulationOutcome:
    values: dict[str, Any] = {
        "preset": "chunked",
        "records": [record(), record(at_s=1.0, first_s=1.5, last_s=4.0)],
        "queued_s": [0.25, -1.0],
        "tracks": {"instance-0": track(), "instance-1": track(used=100, busy_s=1.0)},
    }
    return SimulationOutcome(**{**values, **changes})


def test_shares_are_of_all_instances_from_the_first_arrival_to_the_last_token() -> None:
    found = figures(outcome(), {})
    assert found.instances == 2
    assert found.report.span_s == 4.0
    assert found.utilisation == pytest.approx(3.0 / 8.0)
    assert found.memory_mean == pytest.approx((25 + 50) / 200)
    assert found.memory_max == 1.0
    assert found.queueing_s == Percentiles(0.25, inf, inf, inf)  # the other never ran


def test_counters_are_summed() -> None:
    tracks = {
        "instance-0": track(preemptions=3, migrations=1, moved_bytes=500, prefix_hit_tokens=5),
        "instance-1": track(preemptions=1, moved_bytes=20),
    }
    found = figures(outcome(tracks=tracks), {})
    assert (found.preemptions, found.migrations, found.moved_bytes, found.cached_share) == (4, 1, 520, 0.25)


def test_an_slo_makes_goodput() -> None:
    assert figures(outcome(), {}).report.goodput_per_s is None
    found = figures(outcome(), {"": Slo(ttft=0.6)}).report
    assert (found.slo_attainment, found.goodput_per_s) == (0.5, 0.25)


def test_classes_are_told_apart_where_there_are_some() -> None:
    assert figures(outcome(), {}).classes == {}
    records = [record(label="a"), record(label="b", first_s=2.0), record(label="b", outcome="refused")]
    found = figures(outcome(records=records), {"b": Slo(ttft=1.5)}).classes
    assert {label: one.requests for label, one in found.items()} == {"a": 1, "b": 2}
    assert (found["a"].slo_attainment, found["b"].slo_attainment) == (1.0, 0.0)


def test_the_slowest_waited_longest_for_a_token() -> None:
    records = [record(first_s=1.0), record(at_s=7.0, first_s=9.5, last_s=10.0), RequestRecord(0.0, 1, 1)]
    assert [one.request for one in slowest(records)] == ["req-1-7", "req-1-0"]
    assert figures(outcome(records=records), {}).slowest == ("req-1-7", "req-1-0")


def test_nothing_divides_by_nothing() -> None:
    found = figures(outcome(records=[], queued_s=[], tracks={"instance-0": InstanceTrack()}), {"": Slo(ttft=1)})
    assert (found.utilisation, found.memory_mean, found.memory_max, found.report.slo_attainment) == (0, 0, 0, 0)
