"""A data directory on a disk that is full: a clear refusal at the start, and no harm to what runs already.

Needs the right to mount a small file system in memory.
"""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import dunlin
from benchmarks.harness.processes import wait_gone
from cli.launch.cluster_process import ClusterProcess
from tests.cluster.conftest import Command

PROMPT = "a disk that is full"


@contextlib.contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """A file system of that size."""
    options = f"size={mebibytes}m"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False)
    if mounted.returncode:
        pytest.skip("no right to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Leave not one byte."""
    with contextlib.suppress(OSError), (folder / "fill").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))
    with contextlib.suppress(OSError), (folder / "crumbs").open("wb", buffering=0) as file:
        while True:
            file.write(b"0" * 64)
    assert os.statvfs(folder).f_bavail == 0


def kill_an_engine_and_the_other_instance(client: dunlin.Client) -> list[int]:
    """Both are started anew, on the full disk; the pids of those that were."""
    found = [(member.pid, member.instance) for member in client.status().members if member.instance is not None]
    (idle, _), (_, busy) = sorted(found, key=lambda one: one[1].running)
    for pid in (busy.engine_pid, idle):
        os.kill(pid, signal.SIGKILL)
    return [busy.engine_pid, idle]


def test_too_little_disk_is_refused_in_one_line(tmp_path: Path, command: Command) -> None:
    with small_disk(tmp_path, 8) as folder:
        done = command("up", "--data-dir", str(folder), "--http-port", "0", "--grpc-port", "0")
    assert done.returncode == 2
    assert f"--data-dir {folder}: 8 MiB are free there, 192 are needed" in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


def test_a_disk_that_gets_full_stops_nothing_and_loses_nothing(tmp_path: Path) -> None:
    flags = ("--instances", "2", "--deterministic")
    with small_disk(tmp_path, 240) as folder, ClusterProcess(*flags, data_dir=folder) as cluster:
        with dunlin.Client(cluster.grpc) as client:
            expected = client.generate(PROMPT, max_tokens=300, temperature=0.0, ignore_eos=True).tokens
            fill(folder)
            tokens: list[int] = []
            killed: list[int] = []
            for piece in client.stream(PROMPT, max_tokens=300, temperature=0.0, ignore_eos=True):
                tokens += piece.tokens
                if tokens and not killed:
                    killed = kill_an_engine_and_the_other_instance(client)
            assert wait_gone(killed) == []
            assert tokens == list(expected)
            assert list(client.generate(PROMPT, max_tokens=5, temperature=0.0, ignore_eos=True).tokens) == tokens[:5]
