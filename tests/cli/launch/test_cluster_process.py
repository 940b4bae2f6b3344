"""`dunlin up` as a child: nothing of it is left, however its start ends."""

import os
import sys
from pathlib import Path

import pytest

from cli.launch import cluster_process
from cli.launch.cluster_process import ClusterProcess


def test_a_start_that_is_broken_off_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "import time; print('ready', flush=True); time.sleep(1000)"
    monkeypatch.setattr(cluster_process, "dunlin_command", lambda *_: [sys.executable, "-c", said])
    cluster = ClusterProcess(data_dir=tmp_path)
    with pytest.raises(KeyError), cluster:  # the line says no door
        pass
    with pytest.raises(ChildProcessError):
        os.waitpid(cluster.pid, os.WNOHANG)
    cluster.stop()


def test_a_start_that_is_interrupted_leaves_no_process_and_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(cluster: ClusterProcess) -> None:
        started(cluster)
        raise KeyboardInterrupt

    said = "import time; print('ready http=a grpc=b', flush=True); time.sleep(1000)"
    monkeypatch.setattr(cluster_process, "dunlin_command", lambda *_: [sys.executable, "-c", said])
    started = ClusterProcess.start
    monkeypatch.setattr(ClusterProcess, "start", start)
    cluster = ClusterProcess()
    with pytest.raises(KeyboardInterrupt), cluster:
        pass
    with pytest.raises(ChildProcessError):
        os.waitpid(cluster.pid, os.WNOHANG)
    assert not cluster.data_dir.exists()
