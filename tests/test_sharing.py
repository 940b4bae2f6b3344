"""How `make test` shares tests out to its processes: a mistake here makes clusters fight, or lose their tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

SAYS = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(3))
def test_says_where(number):
    where = os.environ.get("PYTEST_XDIST_WORKER", "alone")
    (pathlib.Path(__file__).parent / f"{pathlib.Path(__file__).stem}.{number}").write_text(where)
"""
# In two parts: this file itself starts no cluster.
MARKED = "import pytest\npytestmark = pytest.mark." + "cluster\n"


def test_clusters_share_a_process_and_so_do_the_tests_of_a_file(tmp_path: Path, root: Path) -> None:
    shutil.copy(root / "tests" / "conftest.py", tmp_path)
    for name in "abcd":
        is_cluster = name in "ab"
        (tmp_path / f"test_{name}.py").write_text(MARKED * is_cluster + SAYS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile"]
    hidden = ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "12 passed" in done.stdout, done.stdout
    ran_in = {name: {path.read_text() for path in tmp_path.glob(f"test_{name}.[0-9]")} for name in "abcd"}
    assert ran_in["a"] == ran_in["b"]
    assert [len(processes) for processes in ran_in.values()] == [1, 1, 1, 1]
    assert len(set.union(*ran_in.values())) == 2
    assert "alone" not in ran_in["a"]
