"""The random search finds what is planted, says how to repeat it, and does not call an empty search a success."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import settings

from benchmarks.fuzzing import properties

PLANTED = """
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule


@given(st.integers())
def test_holds(number):
    assert number == number


@given(st.integers(0, 1 << 40))
def test_fails(number):
    assert number < 1 << 20


class Counter(RuleBasedStateMachine):
    count = 0

    @rule()
    def add(self):
        self.count += 1
        assert self.count <= 12


TestCounter = Counter.TestCase
TestCounter.settings = settings(max_examples=10, stateful_step_count=6)


def test_without_examples():
    assert False
"""


@pytest.fixture
def planted(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two properties that fail, one of them beyond the steps that `make test` takes; one that holds; a plain test."""
    shutil.copy(root / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_planted.py").write_text(PLANTED)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_planted_defect_is_found_once_and_can_be_repeated(planted: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert properties.main(["--minutes", "0", "--rounds", "2", "test_planted.py"]) == 1
    out, err = capfd.readouterr()
    rounds = [line.partition(" held, ")[2] for line in err.splitlines() if line.startswith("round ")]
    assert rounds == ["2 tests failed", "0 tests failed"], "what failed is left out of the next round"
    assert err.count("  replay: ") == out.count("  replay: ") == 2
    assert "@reproduce_failure" in err
    assert "number=1048576" in err
    assert "test_without_examples" not in out + err
    machine = "test_planted.py::TestCounter::runTest"
    (line,) = [line for line in out.splitlines() if "replay: " in line and machine in line]
    command = line.partition("replay: ")[2]
    repeated = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert repeated.returncode == 1
    assert f"FAILED {machine}" in repeated.stdout


def test_what_make_test_tries_is_the_same_everywhere(root: Path) -> None:
    """Neither a remembered example, nor a seed, nor a test of its own mind."""
    for tried in (settings(), settings.get_profile("checked")):
        assert (tried.derandomize, tried.database) == (True, None)
    own = re.compile(r"derandomize=|database=|load_profile\(|@seed\(")
    files = [path for path in (root / "tests").rglob("test_*.py") if path != Path(__file__)]
    assert [path.name for path in files if own.search(path.read_text())] == []


def test_nothing_to_search_is_an_error(planted: Path) -> None:
    with pytest.raises(RuntimeError, match="no test that uses hypothesis in nowhere"):
        properties.search(["nowhere"], minutes=0)


def test_a_failure_is_read_whatever_else_is_said() -> None:
    said = """
    - 60 passing, 0 failing, and 7 invalid test cases
    - 100 passing, 1 failing, and 0 invalid test cases
FAILED tests/a.py::TestA::runTest - AssertionError: no - never
ERROR tests/b.py
2 failed, 3 passed, 4 deselected in 6.10s
"""
    assert properties.read(said) == properties.SearchRound(160, 3, ("tests/a.py::TestA::runTest", "tests/b.py"))
    assert properties.read("==== 5 passed in 1s ====") == properties.SearchRound(0, 5, ())
