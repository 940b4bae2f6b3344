"""Pictures are drawn of any outcome, and drawn alike twice; without matplotlib it is said what to install."""

import sys
from array import array
from pathlib import Path

import pytest

from dunlin.workload.slo import Slo
from dunlin.workload.stats import Record
from dunlin.workload.trace import Arrival
from simulator.pictures import draw
from simulator.plots import PlotsMissing
from simulator.report import Outcome
from simulator.samples import Track


def track() -> Track:
    made = Track(array("d", [0.0, 1.0, 2.0]))
    for column in (made.running, made.waiting, made.used_slots, made.preemptions_total, made.migrations_total):
        column.extend([0, 1, 2])
    made.cached_slots.extend([0, 0, 1])
    made.capacity_slots.extend([4, 4, 4])
    made.group.extend([0, 1, 1])
    made.part.extend([0, 0, 1])
    return made


def outcomes() -> list[Outcome]:
    record = Record(0.0, 1, 2, token_s=[0.5, 0.75], outcome="ok")
    tracks = {f"instance-{index}": track() for index in range(3)}
    return [Outcome("a", [record], [0.1], tracks), Outcome("b", [], [], {"instance-0": Track()})]


def test_pictures_are_written_and_the_same_run_draws_the_same(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arrivals, slos = [Arrival(0.0, 1, 2)], {"": Slo(ttft=1.0)}
    one, two = (draw(tmp_path / name, arrivals, outcomes(), slos) for name in ("one", "two"))
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
        draw(tmp_path, [Arrival(0.0, 1, 1)], outcomes(), {})
