"""Real clusters for tests: one that most share, and helpers for those that break theirs."""

import os
import subprocess
from collections.abc import Callable, Iterator

import pytest

from benchmarks.cluster import ROOT, ClusterProcess, dunlin

Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def cluster() -> Iterator[ClusterProcess]:
    """Three deterministic instances. Tests that use it leave it whole."""
    with ClusterProcess("--instances", "3", "--deterministic") as made:
        yield made


@pytest.fixture(scope="session")
def command() -> Command:
    """Runs the `dunlin` command to its end."""

    def run(*arguments: str, limit_s: float = 100) -> "subprocess.CompletedProcess[str]":
        environment = {name: value for name, value in os.environ.items() if name != "DUNLIN_DATA_DIR"}
        return subprocess.run(
            dunlin(*arguments), capture_output=True, text=True, timeout=limit_s, cwd=ROOT, env=environment, check=False
        )

    return run
