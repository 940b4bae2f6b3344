"""The demo plays from beginning to end, within its time, and leaves nothing behind."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ACTS = ("A chat", "streams at once", "bursty load", "killed in mid-stream", "dunlin explain req-", "The end")


def test_the_demo_plays(root: Path) -> None:
    began_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "examples/demo.py"], cwd=root, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    places = [done.stdout.find(act) for act in ACTS]
    assert -1 not in places
    assert places == sorted(places)
    assert " 0 errors," in done.stdout
    assert "as attempt 2" in done.stdout, "the explanation tells of the second attempt"
    assert "96 tokens came" in done.stdout, "the stream went on after the kill"
    assert time.monotonic() - began_s < 180
