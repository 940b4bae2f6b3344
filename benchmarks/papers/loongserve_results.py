"""The rows of LoongServe's figures: kept in a file, put together over seeds, and what a system serves in time."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import inf, log
from pathlib import Path
from typing import Any

from benchmarks.papers.loongserve_runs import Plan, Row, run
from benchmarks.papers.loongserve_scenes import Scene, System
from benchmarks.papers.results import KeptRows

ByRate = Mapping[float, Row]
GOODPUT_SHARE = 0.9
"""P90 goodput: so many of the requests keep their objectives."""


class LoongRuns:
    """The rows found so far. `only_kept`: no other run is made."""

    def __init__(self, path: Path | None, only_kept: bool = False) -> None:
        self._kept = KeptRows(path, _row)
        self._only_kept = only_kept

    def row(self, plan: Plan, scene: Scene, system: System, rate: float) -> Row:
        """The row, found or run."""
        return self._kept.row(_made_of(plan, scene, system, rate), lambda: run(plan, scene, system, rate), asdict)

    def by_rate(self, plan: Plan, scene: Scene, system: System) -> ByRate:
        """The rows by rate, up to the first at which it is beyond both objectives."""
        found: dict[float, Row] = {}
        for rate in scene.rates:
            if self._only_kept and not self._kept.has(_made_of(plan, scene, system, rate)):
                continue
            row = found[rate] = self.row(plan, scene, system, rate)
            if scene.figure == "10" and row.token_ms > row.token_slo and row.input_ms > row.input_slo:
                break
        return found


class Panel:
    """A scene's rows by system, of every seed."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._rows: dict[str, list[ByRate]] = {}

    def add(self, system: System, rows: ByRate) -> None:
        """Those of one more seed."""
        self._rows.setdefault(system.name, []).append(rows)

    def rates(self, system: str) -> list[float]:
        """The rates at which the system was run with every seed."""
        first, *others = self._rows.get(system) or [{}]
        return [rate for rate in first if all(rate in other for other in others)]

    def mean(self, system: str, rate: float, value: Callable[[Row], float]) -> float:
        """Over all seeds."""
        values = [value(rows[rate]) for rows in self._rows[system]]
        return sum(values) / len(values)

    def most(self, system: str, value: Callable[[Row], float]) -> tuple[float, bool]:
        """The rate up to which `value` (of a row, 1 at the objective) is at most 1, and whether it was exceeded at all.

        Between two rates its logarithm is taken to be linear; below the lowest rate it is taken to fall in proportion.
        """
        before, low = 0.0, 0.0
        for rate in self.rates(system):
            found = self.mean(system, rate, value)
            if found > 1.0:
                if not before:
                    return (rate / found if found < inf else 0.0), True
                share = 0.0 if found == inf else log(1.0 / low) / log(found / low)
                return before + share * (rate - before), True
            before, low = rate, max(found, 1e-9)
        return before, False


def token_share(row: Row) -> float:
    """Of the objective of all tokens."""
    return row.token_ms / row.token_slo


def input_share(row: Row) -> float:
    """Of the objective of prompts."""
    return row.input_ms / row.input_slo


def missed_share(row: Row) -> float:
    """Of the requests that may miss theirs."""
    return (1.0 - row.met) / (1.0 - GOODPUT_SHARE)


def _made_of(plan: Plan, scene: Scene, system: System, rate: float) -> dict[str, Any]:
    return {
        "load": scene.load,
        "rate": rate,
        "nodes": scene.nodes,
        "seed": plan.seed,
        "overhead": plan.overhead_of(system),
        "preset": system.preset,
        "instances": [system.instances, system.tp],
        "settings": [list(each) for each in system.settings],
    }


def _row(found: Mapping[str, Any]) -> Row:
    return Row(**found)
