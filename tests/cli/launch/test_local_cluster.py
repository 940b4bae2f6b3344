"""A cluster is asked to stop by signals, which come at any moment; and its etcd takes no door's port."""

import random
import signal
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from cli.launch import local_cluster, ports
from cli.launch.cluster_state import DataDirLock
from cli.launch.errors import LaunchError
from cli.launch.local_cluster import LocalCluster, StopRequest
from cli.launch.options import UpOptions
from cli.launch.process_specs import ProcessSpec
from dunlin.config.resolve import resolve
from services.settings import TABLES
from tests.full_disk import no_room


class _Interrupted:
    """Runs the handler of a signal before the line `number` of what is traced, where it must not wait for that."""

    def __init__(self, stop: StopRequest, number: int) -> None:
        self.lines, self.hangs = 0, False
        self._stop, self._number = stop, number

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.lines += 1
            if self.lines == self._number:
                handler = threading.Thread(target=self._stop._heard, args=(signal.SIGINT, frame), daemon=True)
                handler.start()
                handler.join(20.0)
                self.hangs = handler.is_alive()
        return self.trace


def test_a_signal_at_any_line_of_a_wait_is_heard() -> None:
    traced, number = sys.gettrace(), 0
    while True:
        number += 1
        stop = StopRequest()
        at = _Interrupted(stop, number)
        sys.settrace(at.trace)
        try:
            stop.wait(0.0)
        finally:
            sys.settrace(traced)
        if at.lines < number:
            break
        assert not at.hangs, f"at line {number} of the wait"
        assert stop.wait(0.0)
    assert number > 2


def test_a_signal_ends_a_wait_and_all_that_follow() -> None:
    stop = StopRequest()
    assert not stop.wait(0.0)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        stop.install()
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert [stop.wait(1e6) for _ in range(4)] == [True] * 4
    assert stop.signals == 2


def test_etcd_has_no_port_of_a_door_that_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(ports, "_cannot_bind", lambda host, port: "")
    monkeypatch.setattr(random, "sample", lambda numbers, count: [31_011, 31_012, *range(31_013, 31_030)])
    supervised: list[ProcessSpec] = []

    class Recording:
        def __init__(self, specs: list[ProcessSpec], *_: object) -> None:
            supervised.extend(specs)

        def start(self) -> None: ...

    monkeypatch.setattr(local_cluster, "Supervisor", Recording)
    stop, options = StopRequest(), UpOptions(tmp_path, resolve(TABLES, []), http_port=31_011, grpc_port=31_012)
    stop._heard(signal.SIGINT, None)
    cluster = LocalCluster(options, DataDirLock(tmp_path), stop, print)
    assert not cluster.start()
    (etcd,) = supervised
    assert not any("3101" + digit in word for word in etcd.command for digit in "12")


def test_settings_that_cannot_be_written_start_nothing(tmp_path: Path) -> None:
    """A full disk was a traceback, and left half a file that `dunlin replay` would read."""
    folder = DataDirLock(tmp_path)
    cluster = LocalCluster(UpOptions(tmp_path, resolve(TABLES, [])), folder, StopRequest(), print)
    with no_room(), pytest.raises(LaunchError, match=r"settings.toml: cannot be written \(File too large\)"):
        local_cluster._run(cluster, folder)
    folder.close()
    assert not (tmp_path / "settings.toml").exists()
