"""Axes of plots: labels stand apart, the SLO is named beside its line, times have the unit that reads best."""

from itertools import pairwise
from math import inf
from typing import Any

import pytest

from simulator.study.plots import cdf_figure, seconds_text

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


def test_a_curve_ends_below_one_by_the_share_that_never_came() -> None:
    pytest.importorskip("matplotlib")
    _, axes = cdf_figure({"TTFT": {"a (2 refused)": [1.0, inf, 2.0, inf], "b (1 failed)": [inf]}}, {})
    lines: list[Any] = list(axes[0].get_lines())
    first, second = lines
    assert first.get_xydata().tolist() == [[1.0, 0.25], [2.0, 0.5]]
    assert (second.get_xydata().tolist(), second.get_label()) == ([], "b (1 failed)")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2e-5, "20 µs"), (0.001, "1 ms"), (0.1, "100 ms"), (0.9999, "1 s"), (2.5, "2.5 s"), (1e4, "10000 s")],
)
def test_times_are_in_the_unit_that_reads_best(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
