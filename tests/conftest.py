"""What every test may use: the tree's root, the optional shared folder, quiet defaults for threads and hypothesis."""

import functools
import gc
import os
from pathlib import Path

# Before anything loads torch, and inherited by the processes that tests start: many small processes share few cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Triton asks once, when it is loaded: kernels for GPUs are interpreted on CPU tensors, on machines with a GPU too.
os.environ.setdefault("TRITON_INTERPRET", "1")
# Tests fork children that must not end as their parent does. With gRPC's own handlers, which would have channels
# survive a fork, the parent was once aborted: its threads had not come to rest.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# What checks a change tries the same examples every time and everywhere, and remembers none: a red run can be repeated.
# No deadline: a slow example is no wrong example.
settings.register_profile("checked", deadline=None, derandomize=True, database=None)
# `make fuzz`: the examples that `--hypothesis-seed` draws.
settings.register_profile("fuzz", deadline=None, derandomize=False, database=None, print_blob=True)
settings.load_profile("checked")
SEARCH_S = 900
LONGER = 3
"""`make fuzz` gives state machines this many times as many steps."""
CLUSTERS = "cluster"
"""The share of the tests that start clusters."""


class ClustersInOne(LoadFileScheduling):  # type: ignore[misc]  # xdist ships no types
    """How `make test` shares the tests out to its processes: all that start clusters to one of them, from the start.

    They wait more than they compute, and two clusters would fight for the cores. All else goes file by file to the
    process that is free, so the fixtures of a file are made once. Groups of xdist would say the same, but they are lost
    with pytest 9.2 and xdist 3.8.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return CLUSTERS if _starts_clusters(self.config.rootpath / file) else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        if CLUSTERS in self.workqueue:  # a third of all time: last, it would be waited for
            self.workqueue.move_to_end(CLUSTERS, last=False)
        super()._assign_work_unit(node)


@functools.cache
def _starts_clusters(file: Path) -> bool:
    return "pytest.mark.cluster" in file.read_text()


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ClustersInOne | None:
    """With `--dist loadfile`."""
    return ClustersInOne(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish(session: pytest.Session) -> None:
    """What was loaded to collect the tests stays to the end: collections of garbage need not look through it. Each
    simulation begins with a full one.
    """
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Random search goes further from the start."""
    if config.getoption("--hypothesis-profile") == "fuzz":
        _lengthen(items)


def _lengthen(items: list[pytest.Item]) -> None:
    """Let state machines take more steps; a slow machine may need the time."""
    machines = {item.cls: None for item in items if isinstance(item, pytest.Function) and item.cls is not None}
    for machine in machines:
        given = getattr(machine, "settings", None)
        if isinstance(given, settings):
            machine.settings = settings(given, stateful_step_count=LONGER * given.stateful_step_count)
    for item in items:
        item.add_marker(pytest.mark.timeout(SEARCH_S))


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
