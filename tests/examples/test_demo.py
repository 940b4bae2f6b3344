"""The demo plays from beginning to end and shows what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.cluster

ACTS = (
    "A chat",
    "streams at once",
    "bursty load",
    "An instance is killed in mid-stream",
    "An engine is killed in mid-stream",
    "An instance is drained",
    "The same text, undisturbed",
    "dunlin explain req-",
    "The end",
)


def test_the_demo_plays(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, "examples/demo.py"], cwd=root, capture_output=True, text=True, timeout=580, check=False
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-2000:]
    places = [done.stdout.find(act) for act in ACTS]
    assert -1 not in places
    assert places == sorted(places)
    shown = " ".join(done.stdout.split())
    assert " 0 errors," in shown
    assert count(r"took (\d+) of them from the host tier", shown) > 300, "the KV survived its instance"
    assert count(r"found (\d+) tokens in the memory", shown) > 450, "the slab survived its engine"
    assert count(r": (\d+) of its streams moved", shown) >= 1
    assert count(r"of 5 streams (\d+) failed", shown) == 0
    assert count(r"Letter by letter the same: (\d+) tokens", shown) >= 320
    assert "as attempt 3" in shown, "the explanation tells of the move"


def count(pattern: str, text: str) -> int:
    """The number that the demo tells there."""
    found = re.search(pattern, text)
    assert found, f"the demo does not say {pattern!r}"
    return int(found[1])
