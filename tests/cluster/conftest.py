"""Real clusters for tests: one that most share, and helpers for those that break theirs."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.harness.processes import ROOT
from cli.launch.cluster_process import ClusterProcess, dunlin_command

Command = Callable[..., "subprocess.CompletedProcess[str]"]
SHARED = pytest.StashKey[ClusterProcess]()


def eventually(holds: Callable[[], bool], limit_s: float = 300.0) -> None:
    """Wait until it holds; fail if it does not within `limit_s`."""
    until_s = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.1)


@pytest.fixture(scope="session", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All clusters here share one copy of the built-in model: nobody makes it anew. None but the shared one has engines
    that stand by: each is one process more to load.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DUNLIN_MODELS", str(tmp_path_factory.mktemp("models")))
        patch.setenv("DUNLIN_INSTANCE__ENGINE__STANDBY", "false")
        yield


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[ClusterProcess]:
    """Three deterministic instances, with engines that stand by. Tests that use it leave it whole."""
    with ClusterProcess("--instances", "3", "--deterministic", "--set", "instance.engine.standby=true") as made:
        request.config.stash[SHARED] = made
        yield made


@pytest.fixture(scope="module")
def chat_cluster() -> Iterator[ClusterProcess]:
    """One instance of the trained built-in model."""
    with ClusterProcess("--instances", "1", "--model", "builtin:chat") as made:
        yield made


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last test of this folder the shared cluster goes: it would idle beside all that follows."""
    here = Path(__file__).parent
    if nextitem is None or not nextitem.path.is_relative_to(here):
        made = item.config.stash.get(SHARED, None)
        if made is not None:
            made.stop()


@pytest.fixture(scope="session")
def command() -> Command:
    """Runs the `dunlin_command` command to its end."""

    def run(*arguments: str, limit_s: float = 300) -> "subprocess.CompletedProcess[str]":
        environment = {name: value for name, value in os.environ.items() if name != "DUNLIN_DATA_DIR"}
        return subprocess.run(
            dunlin_command(*arguments),
            capture_output=True,
            text=True,
            timeout=limit_s,
            cwd=ROOT,
            env=environment,
            check=False,
        )

    return run
