"""The rows of runs: kept in a file of JSON lines, and put together over seeds."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

from benchmarks.papers.conserve_scenes import Scene, System
from benchmarks.papers.running import Plan, Row, Window, run

R = TypeVar("R")


class Found:
    """The rows of each scene, one for each seed, by figure and in order."""

    def __init__(self) -> None:
        self.scenes: dict[str, list[Scene]] = {}
        self._rows: dict[tuple[str, str], list[Row]] = {}

    def add(self, scene: Scene, rows: dict[str, Row]) -> None:
        """Those of one more seed."""
        known = self.scenes.setdefault(scene.figure, [])
        if scene.title not in [each.title for each in known]:
            known.append(scene)
        for name, row in rows.items():
            self._rows.setdefault((scene.title, name), []).append(row)

    def first(self, scene: Scene, system: str) -> Row:
        """That of the first seed."""
        return self._rows[scene.title, system][0]

    def mean(self, scene: Scene, system: str, value: Callable[[Row], float]) -> float:
        """Over all seeds."""
        values = [value(row) for row in self._rows[scene.title, system]]
        return sum(values) / len(values)


class KeptRows(Generic[R]):
    """Rows in a file of JSON lines (None: nowhere), with what they were made of; `read` makes a row of one there."""

    def __init__(self, path: Path | None, read: Callable[[Mapping[str, Any]], R]) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self._rows = {_key(line["run"]): read(line["row"]) for line in map(json.loads, lines)}

    def has(self, made_of: Mapping[str, Any]) -> bool:
        """Whether it is there."""
        return _key(made_of) in self._rows

    def row(self, made_of: Mapping[str, Any], make: Callable[[], R], plain: Callable[[R], Mapping[str, Any]]) -> R:
        """The row that is there, or one that is made and kept as `plain` data."""
        key = _key(made_of)
        if key not in self._rows:
            row = self._rows[key] = make()
            if self._path is not None:
                with self._path.open("a") as file:
                    file.write(json.dumps({"run": made_of, "row": plain(row)}) + "\n")
        return self._rows[key]


class Results:
    """The rows found so far, in a file of JSON lines (None: nowhere): a run that is there is not made again."""

    def __init__(self, path: Path | None) -> None:
        self._kept = KeptRows(path, _row)

    def row(self, plan: Plan, scene: Scene, system: System, ideal: Row | None) -> Row:
        """The row, found or run."""
        made_of = {
            "setup": plan.setup.name,
            "horizon_s": plan.horizon_s,
            "seed": plan.seed,
            "overhead": plan.overhead,
            "load": scene.load,
            "preset": system.preset,
            "settings": [list(each) for each in system.settings],
        }
        return self._kept.row(made_of, lambda: run(plan, scene, system, ideal), asdict)


def _key(made_of: Mapping[str, Any]) -> str:
    return json.dumps(made_of, sort_keys=True)


def _row(found: Mapping[str, Any]) -> Row:
    return Row(**{**found, "windows": tuple(Window(**window) for window in found["windows"])})
