"""Pictures are drawn of any outcome, and drawn alike twice; without matplotlib it is said what to install."""

import sys
from array import array
from itertools import pairwise
from pathlib import Path

import pytest

from dunlin.workload.loadgen.slo import Slo
from dunlin.workload.loadgen.stats import RequestRecord
from dunlin.workload.traffic.trace import Arrival
from simulator.study.plot_files import draw_study
from simulator.study.plots import PlotsMissing, cdf_figure, seconds_text
from simulator.study.report import SimulationOutcome
from simulator.study.samples import InstanceTrack


def track() -> InstanceTrack:
    made = InstanceTrack(array("d", [0.0, 1.0, 2.0]))
    for column in (made.running, made.waiting, made.used_slots, made.preemptions_total, made.migrations_total):
        column.extend([0, 1, 2])
    made.cached_slots.extend([0, 0, 1])
    made.capacity_slots.extend([4, 4, 4])
    made.group.extend([0, 1, 1])
    made.part.extend([0, 0, 1])
    return made


def outcomes() -> list[SimulationOutcome]:
    record = RequestRecord(0.0, 1, 2, token_s=[0.5, 0.75], outcome="ok")
    tracks = {f"instance-{index}": track() for index in range(3)}
    return [
        SimulationOutcome("a", [record], [0.1], tracks),
        SimulationOutcome("b", [], [], {"instance-0": InstanceTrack()}),
    ]


def test_pictures_are_written_and_the_same_run_draws_the_same(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arrivals, slos = [Arrival(0.0, 1, 2)], {"": Slo(ttft=1.0)}
    one, two = (draw_study(tmp_path / name, arrivals, outcomes(), slos) for name in ("one", "two"))
    assert [path.name for path in one] == ["latency.png", "load.png", "instances-a.png", "instances-b.png"]
    for first, second in zip(one, two, strict=True):
        assert first.read_bytes()[:4] == b"\x89PNG"
        assert first.read_bytes() == second.read_bytes()
    assert one[2].read_bytes() != one[3].read_bytes()


def test_without_matplotlib_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PlotsMissing, match=r"pip install 'dunlin\[sim\]'"):
        draw_study(tmp_path, [Arrival(0.0, 1, 1)], outcomes(), {})


RANGES = [
    (1e-4, 1e3),
    (0.011, 0.1),
    (0.02, 2.0),
    (0.004, 0.12),
    (0.05, 15.0),
    (0.07, 14.0),
    (0.03, 0.05),
    (0.0199, 0.0201),
    (1.0, 900.0),
]


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_labels_of_a_time_axis_stand_apart(low: float, high: float) -> None:
    pytest.importorskip("matplotlib")
    figure, axes = cdf_figure({"TTFT": {"a": [low, high]}, "TPOT": {"a": [low, high], "b": [high]}}, {"TPOT": high})
    figure.canvas.draw()
    for axis in axes[:2]:
        left, right = axis.get_xlim()
        assert left <= low < high <= right
        shown = [label for label in axis.get_xticklabels(which="both") if label.get_text()]
        assert 2 <= len(shown) <= 7
        boxes = sorted((label.get_window_extent() for label in shown), key=lambda box: box.x0)
        assert all(first.x1 + 8 < second.x0 for first, second in pairwise(boxes))


def test_the_slo_is_named_beside_its_line() -> None:
    pytest.importorskip("matplotlib")
    limits = {"TTFT": 2.0, "TPOT": 0.1}
    figure, axes = cdf_figure({name: {"a": [0.01, 0.3]} for name in ("TTFT", "TPOT", "JCT")}, limits)
    figure.canvas.draw()
    named = [[text.get_text() for text in axis.texts] for axis in axes[:3]]
    assert named == [["SLO 2 s"], ["SLO 100 ms"], []]
    for axis in axes[:2]:
        box, frame = axis.texts[0].get_window_extent(), axis.get_window_extent()
        assert frame.x0 <= box.x0 < box.x1 <= frame.x1
        assert frame.y0 <= box.y0 < box.y1 <= frame.y1


def test_where_nothing_finished_there_is_nothing_to_draw() -> None:
    pytest.importorskip("matplotlib")
    cdf_figure({"TTFT": {"a": []}, "TPOT": {}}, {})[0].canvas.draw()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2e-5, "20 µs"), (0.001, "1 ms"), (0.1, "100 ms"), (0.9999, "1 s"), (2.5, "2.5 s"), (1e4, "10000 s")],
)
def test_times_are_in_the_unit_that_reads_best(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
