"""Every change is a program, differs from the source in one place, and comes in the same order for the same seed."""

import ast
from pathlib import Path

from benchmarks.mutation.areas import AREAS
from benchmarks.mutation.draw import draw, mutants_of

SOURCE = b'''"""Text."""

from enum import Enum

LIMIT = 3


class Kind(Enum):
    A = 1


def total(values: "list[int]", least: int = 2) -> int:
    """Text."""
    found = 0
    for value in values:
        if value < least and not value == LIMIT:
            continue
        found += max(value, 1)
    assert found >= 0
    values.append(found)
    if found > 100:
        raise ValueError("\xc3\xa4 text")
    return found
'''


def test_the_changes_of_a_small_module() -> None:
    found = [(mutant.line, mutant.before, mutant.text) for mutant in mutants_of("a.py", SOURCE)]
    condition = "value < least and not value == LIMIT"
    assert found == [
        (5, "3", "(3+1)"),
        (14, "0", "(0+1)"),
        (16, condition, "True"),
        (16, condition, "False"),
        (16, condition, "(value < least or not value == LIMIT)"),
        (16, "value < least", "(value <= least)"),
        (16, "not value == LIMIT", "(value == LIMIT)"),
        (16, "value == LIMIT", "(value != LIMIT)"),
        (17, "continue", "break"),
        (18, "found += max(value, 1)", "pass"),
        (18, "found += max(value, 1)", "found -= max(value, 1)"),
        (18, "max", "min"),
        (18, "1", "(1+1)"),
        (20, "values.append(found)", "pass"),
        (21, "found > 100", "True"),
        (21, "found > 100", "False"),
        (21, "found > 100", "(found >= 100)"),
        (21, "100", "(100+1)"),
        (22, 'raise ValueError("ä text")', "pass"),
        (23, "return found", "return None"),
    ]


def test_a_change_changes_its_place_alone() -> None:
    for mutant in mutants_of("a.py", SOURCE):
        changed = mutant.apply(SOURCE)
        ast.parse(changed)
        assert changed[: mutant.start] == SOURCE[: mutant.start]
        assert changed.endswith(SOURCE[mutant.stop :])
        assert SOURCE[mutant.start : mutant.stop].decode() == mutant.before


def test_the_same_seed_draws_the_same_whatever_lies_above(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(SOURCE)
    (tmp_path / "b.py").write_bytes(SOURCE)
    alone = draw(tmp_path, ["a.py"], 1)
    both = draw(tmp_path, ["b.py", "a.py"], 1)
    assert [mutant for mutant in both if mutant.file == "a.py"] == alone
    assert draw(tmp_path, ["a.py"], 2) != alone
    (tmp_path / "a.py").write_bytes(b"# A line more.\n" + SOURCE)
    assert [mutant.name for mutant in draw(tmp_path, ["a.py"], 1)] == [mutant.name for mutant in alone]


def test_the_areas_name_what_there_is_and_a_thousand_mutants(root: Path) -> None:
    for area in AREAS.values():
        assert [name for name in (*area.files, *area.tests) if not (root / name).exists()] == []
    assert sum(len(draw(root, area.files, 1)) for area in AREAS.values()) >= 1000
