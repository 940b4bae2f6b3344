"""A session over a planted module finds what a test notices, what none does, and what never ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.mutation.results import Results, SampledMutant, as_markdown
from benchmarks.mutation.trial import Outcome

MODULE = """
def count(values, step):
    found, at = 0, 0
    while at < len(values):
        found += values[at]
        at += step
    return found


def unseen():
    return 3
"""
TESTS = """
import planted


def test_it():
    assert planted.count([1, 2, 3], 1) == 6
"""
RUN = """
import sys
import pytest
from pathlib import Path
from benchmarks.mutation.areas import Area
from benchmarks.mutation.results import Results
from benchmarks.mutation.session import MutationSession

sys.path.insert(0, ".")
plugin = MutationSession("a", Area(("planted.py",), ()), Results(Path("results")), 1, 60.0, int(sys.argv[1]))
pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", ".", "test_planted.py"], plugins=[plugin])
print(plugin.failure)
"""


def run(folder: Path, root: Path, most: int) -> str:
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", RUN, str(most)]
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "planted.py").write_text(MODULE)
    (tmp_path / "test_planted.py").write_text(TESTS)
    return tmp_path


def test_a_session_goes_on_where_another_ended(folder: Path, root: Path) -> None:
    assert run(folder, root, 5) == ""
    first = Results(folder / "results").all
    assert len(first) == 5
    run(folder, root, 1000)
    found = Results(folder / "results").all
    assert found[:5] == first
    assert len({each.name for each in found}) == len(found)
    outcomes = {each.place.partition(" ")[2]: each.outcome for each in found}
    assert outcomes["return found -> return None"] is Outcome.CAUGHT
    assert outcomes["at += step -> pass"] is Outcome.ENDLESS
    assert {place for place, each in outcomes.items() if each is Outcome.SURVIVED} == {
        "return 3 -> return None",
        "3 -> (3+1)",
    }
    assert (folder / "planted.py").read_text() == MODULE
    assert all(each.by == "test_planted.py::test_it" for each in found if each.outcome is Outcome.CAUGHT)


def test_tests_that_fail_as_they_are_say_nothing_of_mutants(folder: Path, root: Path) -> None:
    (folder / "test_planted.py").write_text("def test_it():\n    assert False\n")
    assert run(folder, root, 5) == "a test fails without any change: test_planted.py::test_it"
    assert not (folder / "results").exists()


def test_the_table_counts_what_was_noticed(tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    outcomes = [Outcome.CAUGHT, Outcome.ENDLESS, Outcome.SURVIVED, Outcome.UNAPPLIED]
    for number, outcome in enumerate(outcomes):
        results.add(SampledMutant("a", f"name {number}", f"file.py:{number} x -> y", outcome, "", 0.1))
    results.add(SampledMutant("b", "name", "file.py:9 x -> y", Outcome.CAUGHT, "", 0.1))
    text = as_markdown(Results(tmp_path / "results"))
    assert "| a | 3 | 2 | 67 % |" in text
    assert "| all | 4 | 3 | 75 % |" in text
    assert "## Survivors (1)\n\n- a: `file.py:2 x -> y`" in text
