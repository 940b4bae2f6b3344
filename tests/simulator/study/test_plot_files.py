"""The plots of a study are drawn of any outcome, and alike twice; without matplotlib the error says what to install."""

import sys
from array import array
from math import inf
from pathlib import Path
from typing import Any

import pytest

from dunlin.workload.loadgen.slo import Slo
from dunlin.workload.loadgen.stats import RequestRecord
from dunlin.workload.traffic.trace import Arrival
from simulator.study import plot_files
from simulator.study.plot_files import draw_study
from simulator.study.plots import PlotsMissing
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


def test_what_never_came_is_in_every_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Any] = {}
    titles: list[str] = []
    monkeypatch.setattr(plot_files, "cdfs", lambda path, found, limits: drawn.update(measures=found, limits=limits))
    monkeypatch.setattr(plot_files, "over_time", lambda path, at_s, tracks: drawn.update(at_s=at_s))
    monkeypatch.setattr(plot_files, "timeline", lambda path, title, tracks: titles.append(title))
    records = [
        RequestRecord(1.0, 1, 3, token_s=[1.5, 2.0, 3.0], outcome="ok"),
        RequestRecord(2.0, 1, 1, token_s=[2.25], outcome="ok"),
        RequestRecord(3.0, 1, 1, token_s=[9.0], outcome="error", clipped=True),
        RequestRecord(4.0, 1, 1, outcome="refused"),
    ]
    outcome = SimulationOutcome("a", records, [0.5, -1.0, 0.0], {})
    draw_study(tmp_path, [Arrival(7.0, 1, 2)], [outcome], {"": Slo(tpot=0.5), "chat": Slo(ttft=9.0)})
    name = "a (1 refused, 1 failed, 1 clipped)"
    assert drawn["measures"] == {
        "TTFT": {name: [0.5, 0.25, 6.0, inf]},
        "TPOT": {name: [0.75]},
        "queueing": {name: [0.5, inf, 0.0]},
        "JCT": {name: [2.0, 0.25, inf, inf]},
    }
    assert (drawn["limits"], drawn["at_s"], titles) == ({"TPOT": 0.5}, [7.0], [f"{name}: memory of each instance"])
