"""A cluster that is told how much memory each instance may have: it says what that gives, and keeps to it."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import dunlin
from cli.launch.cluster_process import ClusterProcess
from cli.launch.memory import slots_of
from dunlin.messages.fleet import FleetStatus
from tests.cluster.conftest import Command, eventually

pytestmark = pytest.mark.cluster

GIVEN_BYTES = 100 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[ClusterProcess]:
    with ClusterProcess("--instances", "1", "--memory", "100MiB") as made:
        yield made


def status(cluster: ClusterProcess) -> FleetStatus:
    with dunlin.Client(cluster.grpc) as client:
        return client.status()


def engine(cluster: ClusterProcess) -> int:
    """The engine's pid; 0 while there is none."""
    reports = [each.instance for each in status(cluster).members if each.instance is not None]
    return reports[0].engine_pid if reports and reports[0].ready else 0


def test_its_slots_are_as_stated_also_after_a_crash(cluster: ClusterProcess) -> None:
    eventually(lambda: "memory:" in cluster.output())
    line = r"instance-0: KV for ([\d,]+) tokens \(([\d.]+) MiB of --memory 100.0 MiB\), weights ([\d.]+) MiB"
    said = re.search(line, cluster.output())
    assert said is not None, cluster.output()
    slots, kv_mib, weights_mib = int(said[1].replace(",", "")), float(said[2]), float(said[3])
    assert slots_of(status(cluster)) == {"instance-0": slots}
    assert 99 <= kv_mib + weights_mib <= GIVEN_BYTES >> 20
    assert f"KV for {slots:,} tokens ({kv_mib} MiB), weights {weights_mib} MiB" in cluster.log("instance-0")
    before = engine(cluster)
    os.kill(before, signal.SIGKILL)
    eventually(lambda: engine(cluster) not in (0, before))
    assert slots_of(status(cluster)) == {"instance-0": slots}


def test_a_memory_that_is_too_little_is_said_in_one_line(command: Command, tmp_path: Path) -> None:
    flags = ("--http-port", "0", "--grpc-port", "0", "--data-dir", str(tmp_path), "--instances", "1")
    done = command("up", "--memory", "20MiB", *flags)
    assert done.returncode == 2
    assert "20.0 MiB are too little: 27.6 MiB are needed (weights 19.6 MiB" in done.stderr.splitlines()[-1]
