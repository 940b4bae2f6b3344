"""The state file, and the lock on a data directory."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.launch.cluster_state import ClusterState, DataDirLock, default_data_dir, read_state, write_state
from cli.launch.errors import LaunchError
from tests.full_disk import no_room


def state(data_dir: Path, **changes: object) -> ClusterState:
    made = ClusterState(
        pid=os.getpid(),
        http="http://127.0.0.1:1",
        grpc="127.0.0.1:2",
        monitor="127.0.0.1:3",
        metrics="http://127.0.0.1:5/metrics",
        etcd="127.0.0.1:4",
        data_dir=str(data_dir),
        model="builtin:tiny",
        instances=3,
        deterministic=False,
        started_at_s=1.5,
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_state(state(tmp_path))
    assert read_state(tmp_path) == state(tmp_path)


def test_the_cluster_of_a_dead_supervisor_is_none(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    write_state(state(tmp_path, pid=dead.pid))
    assert read_state(tmp_path) is None


def test_the_cluster_of_another_user_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kill(pid: int, number: int) -> None:
        raise PermissionError

    write_state(state(tmp_path))
    monkeypatch.setattr(os, "kill", kill)
    assert read_state(tmp_path) == state(tmp_path)


def test_a_file_that_must_not_be_read_is_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_text(path: Path) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    write_state(state(tmp_path))
    monkeypatch.setattr(Path, "read_text", read_text)
    assert read_state(tmp_path) is None


def test_a_process_that_cannot_be_is_no_cluster(tmp_path: Path) -> None:
    write_state(state(tmp_path, pid=1 << 70))
    assert read_state(tmp_path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", json.dumps({"pid": 1})])
def test_a_broken_file_is_no_cluster(tmp_path: Path, text: str) -> None:
    (tmp_path / "dunlin.json").write_text(text)
    assert read_state(tmp_path) is None


def test_a_directory_belongs_to_one_cluster_at_a_time(tmp_path: Path) -> None:
    first = DataDirLock(tmp_path)
    with pytest.raises(LaunchError, match="another cluster runs there"):
        DataDirLock(tmp_path)
    first.close()
    DataDirLock(tmp_path).close()


def test_closing_forgets_the_cluster(tmp_path: Path) -> None:
    held = DataDirLock(tmp_path)
    write_state(state(tmp_path))
    held.close()
    assert read_state(tmp_path) is None


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match=r"file.*choose another with --data-dir"):
        DataDirLock(tmp_path / "file")


def test_where_the_default_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUNLIN_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "/x")
    assert default_data_dir() == Path("/x/dunlin")
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert default_data_dir() == Path("/h/.local/state/dunlin")
    monkeypatch.setenv("DUNLIN_DATA_DIR", "/d")
    assert default_data_dir() == Path("/d")


def test_a_state_that_cannot_be_written_is_a_launch_error_and_no_file(tmp_path: Path) -> None:
    with no_room(), pytest.raises(LaunchError, match=r"dunlin.json: cannot be written \(File too large\)"):
        write_state(state(tmp_path))
    assert list(tmp_path.iterdir()) == []
