"""What every test may use: the tree's root, the optional shared folder, quiet defaults for threads and hypothesis."""

import os
from pathlib import Path

# Before anything loads torch, and inherited by the processes that tests start: many small processes share few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings

# No deadline: a slow example is no wrong example. Derandomised in CI, so that a red run can be repeated.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout that holds this file."""
    return Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder with public traces and checkpoints that DUNLIN_SHARED names; a test that needs it skips without it."""
    named = os.environ.get("DUNLIN_SHARED")
    if not named:
        pytest.skip("DUNLIN_SHARED is not set")
    folder = Path(named)
    if not folder.is_dir():
        pytest.fail(f"DUNLIN_SHARED={named} is no folder")
    return folder
