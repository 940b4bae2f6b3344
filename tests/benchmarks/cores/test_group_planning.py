"""The planner's benchmark and tables, small."""

import argparse

import pytest

from benchmarks.cores.group_planning import IDLE, costs
from benchmarks.harness.planner_times import fleet_times
from benchmarks.harness.report import BenchmarkResult
from benchmarks.simulation import group_plan, group_times


def test_every_kind_of_moment_is_planned() -> None:
    timing, times = fleet_times("a100", "lwm-text-1m-7b", 1)
    result = BenchmarkResult("small")
    costs(result, times, timing.slots, argparse.Namespace(instances=9, pending=20, plans=2))
    assert len(result.figures) == 2 * (2 * len(IDLE) + 1)


def test_a_moment_s_plan_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["group_plan", "--seed", "4"])
    assert group_plan.main() == 0
    shown = capsys.readouterr().out
    assert "i2        node-0           0  110,337  idle" in shown
    assert "instances, leader first" in shown
    assert "weighed grow" in shown


def test_rings_within_a_node_are_faster_than_between_nodes() -> None:
    timing, _ = fleet_times("a100", "lwm-text-1m-7b", 1)
    (line,) = [each for each in group_times.prefills(timing).splitlines() if each.startswith(" 10,000")]
    for cell in line.split(" s ")[1].split("  "):
        if cell.strip():
            near, far = map(float, cell.split("/"))
            assert 1.0 < far < near
