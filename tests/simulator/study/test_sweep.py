"""Comparing and searching, with a runner whose answer is known."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dunlin.workload.loadgen.slo import Slo
from dunlin.workload.loadgen.stats import RequestRecord
from dunlin.workload.traffic.trace import Arrival
from simulator.study.report import SimulationOutcome
from simulator.study.sweep import Case, attainment_of, run_all, smallest_cluster


def case(**changes: Any) -> Case:
    return Case(**{"preset": "chunked", "instances": 1, "device": "d", "shape": "s", **changes})


def echo(one: Case, arrivals: Sequence[Arrival], progress: Callable[[float], None] | None) -> SimulationOutcome:
    """A runner that says what it was given."""
    if progress is not None:
        progress(1.0)
    return SimulationOutcome(one.preset, [RequestRecord(arrivals[0].at_s, 1, 1)], [], {})


@pytest.mark.parametrize("jobs", [1, 2])
def test_outcomes_come_in_the_order_of_the_cases(jobs: int) -> None:
    shown: list[tuple[str, float]] = []
    cases = [case(preset=name) for name in ("a", "b", "c")]
    found = run_all(cases, [Arrival(7.0, 1, 1)], echo, jobs, lambda one, share: shown.append((one.preset, share)))
    assert [one.preset for one in found] == ["a", "b", "c"]
    assert found[0].records[0].at_s == 7.0
    assert sorted(shown) == [("a", 1.0), ("b", 1.0), ("c", 1.0)]


def fake(enough: int, ran: list[int]) -> Callable[[Case], SimulationOutcome]:
    """A cluster that meets its objective from `enough` instances on."""

    def run(one: Case) -> SimulationOutcome:
        ran.append(one.instances)
        ok = one.instances >= enough
        record = RequestRecord(0.0, 1, 1, token_s=[1.0 if ok else 9.0], outcome="ok")
        return SimulationOutcome(str(one.instances), [record], [], {})

    return run


@pytest.mark.parametrize("most", [1, 2, 7, 16, 100])
@pytest.mark.parametrize("enough", [1, 2, 3, 5, 8, 16, 50])
def test_the_smallest_is_found_by_few_runs(enough: int, most: int) -> None:
    ran: list[int] = []
    found = smallest_cluster(case(), most, 1.0, attainment_of({"": Slo(ttft=2)}), fake(enough, ran))
    if enough > most:
        assert found.outcome is None
    else:
        assert found.outcome is not None
        assert found.outcome.preset == str(enough)
    assert len(ran) == len(set(ran)) == len(found.tried) <= 14
    assert [share for size, share in found.tried] == [float(size >= enough) for size, _ in found.tried]
