"""A changed source takes effect in a module that is loaded, and in those that imported from it."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mutation.patch import module_name, patch_module

SOURCE = """
from dataclasses import dataclass
from functools import cache

LIMIT = 3

def add(a, b=1):
    return a + b

class Box:
    size = 2
    def get(self):
        return 1
    @property
    def twice(self):
        return 2
    @classmethod
    def make(cls):
        return 3
    @staticmethod
    def free():
        return 4

@dataclass(slots=True)
class Row:
    count: int = 5

@cache
def slow():
    return 6

def each(values):
    for value in values:
        yield value + 7
"""


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "planted_module.py").write_text(SOURCE)
    (tmp_path / "planted_user.py").write_text("from planted_module import LIMIT, add\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("planted_module")
    for name in ("planted_module", "planted_user"):
        sys.modules.pop(name, None)


def patch(before: str, after: str) -> int:
    assert SOURCE.count(before) == 1
    return patch_module("planted_module.py", SOURCE.replace(before, after).encode())


def test_functions_methods_and_generators_have_the_new_code(loaded: Any) -> None:
    box, user = loaded.Box(), importlib.import_module("planted_user")
    for before, after in (("return 1", "return 10"), ("return 2", "return 20"), ("return 3", "return 30"),
                          ("return 4", "return 40"), ("return 6", "return 60"), ("value + 7", "value + 70"),
                          ("a + b", "a - b"), ("count: int = 5", "count: int = 50"), ("b=1", "b=2")):  # fmt: skip
        assert patch(before, after) >= 1, before
        if before == "a + b":
            assert user.add(3, 1) == 2
        if before == "count: int = 5":
            assert loaded.Row().count == 50
        if before == "return 1":
            assert box.get() == 10
        if before == "value + 7":
            assert list(loaded.each([1])) == [71]
    assert (loaded.Box().get(), box.twice, box.make(), box.free()) == (1, 2, 3, 4), "each change is of the source alone"
    assert user.add(3) == 5


def test_a_constant_changes_also_where_it_was_imported(loaded: Any) -> None:
    user = importlib.import_module("planted_user")
    assert patch("LIMIT = 3", "LIMIT = 30") == 1
    assert (loaded.LIMIT, user.LIMIT) == (30, 30)


def test_what_cannot_be_exchanged_is_no_change(loaded: Any) -> None:
    assert patch("    size = 2", "    size = 3") == 0
    assert loaded.Box.size == 2
    with pytest.raises(ZeroDivisionError):
        patch("LIMIT = 3", "LIMIT = 1 // 0")


def test_names_of_modules() -> None:
    assert module_name("dunlin/effects.py") == "dunlin.effects"
    assert module_name("dunlin/engine/__init__.py") == "dunlin.engine"
