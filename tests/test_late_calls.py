"""`make late`: system calls of what it runs, and of the processes which that starts, return late."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DELAY_S = 0.02
EACH = 5

CALLER = f"""
import json, os, subprocess, sys, time

def took_s():
    began_s = time.perf_counter()
    os.write(sink, b"x")
    return time.perf_counter() - began_s

sink = os.open(os.devnull, os.O_WRONLY)
times = [took_s() for _ in range({3 * EACH})]
if "--child" in sys.argv:
    print(json.dumps(times))
else:
    child = subprocess.run([sys.executable, __file__, "--child"], capture_output=True, text=True, check=True)
    with open(os.environ["TOLD"], "w") as file:
        json.dump({{"arguments": sys.argv[1:], "own": times, "child": json.loads(child.stdout)}}, file)
"""


def can_trace() -> bool:
    """Containers may forbid it."""
    strace = shutil.which("strace")
    return strace is not None and subprocess.run([strace, "-qq", "-o", os.devnull, "true"], check=False).returncode == 0


def has_rhythm(times_s: list[float]) -> bool:
    """Whether each fifth call was late; the first ones were the process's own, so where it begins is not known."""
    return any(all(each >= DELAY_S for each in times_s[first::EACH]) for first in range(EACH))


@pytest.mark.skipif(not can_trace(), reason="needs strace, and that it may trace")
def test_each_fifth_call_is_late_in_children_too(tmp_path: Path) -> None:
    caller, told = tmp_path / "caller.py", tmp_path / "told.json"
    caller.write_text(CALLER)
    # As `make` runs it, but for the interpreter: `-o install` leaves the environment alone.
    command = ["make", "-o", "install", "late", f"PY={sys.executable} {caller}", "TESTS=tests/wire", "PYTEST=-x"]
    outside = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        command, cwd=ROOT, env={**outside, "TOLD": str(told)}, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(told.read_text())
    assert found["arguments"] == ["-m", "pytest", "-n", "2", "--dist", "loadfile", "-x", "tests/wire"]
    assert has_rhythm(found["own"]), found["own"]
    assert has_rhythm(found["child"]), found["child"]
