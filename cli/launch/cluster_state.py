"""Where a running cluster says how it is reached: `<data-dir>/dunlin.json`.

Written by `dunlin up`, read by every other command. Knows no service.
"""

import fcntl
import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cli.launch.errors import LaunchError
from dunlin.runtime.replace_file import replace_file

STATE_FILE = "dunlin.json"
LOCK_FILE = "lock"


@dataclass(frozen=True, slots=True)
class ClusterState:
    """One running cluster. Endpoints are `host:port`, `http` and `metrics` (the monitor's page) URLs.

    `http` and `grpc` name a door of each dispatcher, separated by commas. `pid` is the supervisor's.
    `tls_dir` holds a client's certificates, empty without TLS. `model` is what was launched, `model_name` what clients
    call it.
    """

    pid: int
    http: str
    grpc: str
    monitor: str
    metrics: str
    etcd: str
    data_dir: str
    model: str
    instances: int
    deterministic: bool
    started_at_s: float
    tls_dir: str = ""
    preset: str = ""
    model_name: str = ""


def default_data_dir() -> Path:
    """`$DUNLIN_DATA_DIR`, else `dunlin` in the user's state directory (`$XDG_STATE_HOME`, `~/.local/state`)."""
    given = os.environ.get("DUNLIN_DATA_DIR")
    if given:
        return Path(given)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "dunlin"


def write_state(state: ClusterState) -> None:
    """Publish `state`. Raises LaunchError when it cannot be written."""
    write_launch_file(Path(state.data_dir) / STATE_FILE, json.dumps(asdict(state), indent=2) + "\n")


def write_launch_file(path: Path, text: str) -> None:
    """Replace a file in a data directory. Raises LaunchError when it cannot be written."""
    try:
        replace_file(path, text.encode())
    except OSError as error:
        raise LaunchError(f"{path}: cannot be written ({error.strerror})") from None


def remove_state(data_dir: Path) -> None:
    """The cluster is no more."""
    (data_dir / STATE_FILE).unlink(missing_ok=True)


def read_state(data_dir: Path) -> ClusterState | None:
    """The cluster that runs in `data_dir`, or None: no file, a broken one, or one whose supervisor is gone."""
    try:
        values: dict[str, Any] = json.loads((data_dir / STATE_FILE).read_text())
        state = ClusterState(**values)
        with suppress(PermissionError):  # another user's process, which runs
            os.kill(state.pid, 0)
    except (OSError, ValueError, TypeError, OverflowError):
        return None
    return state


class DataDirLock:
    """A data directory that this process has to itself until it closes it or ends, however it ends."""

    def __init__(self, path: Path) -> None:
        """Make and lock `path`. Raises LaunchError when that cannot be, or another cluster runs there."""
        self.path = path.absolute()
        try:
            (self.path / "logs").mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / LOCK_FILE, "w")  # noqa: SIM115 - held until close
        except OSError as error:
            raise LaunchError(f"data directory {path}: {error.strerror}; choose another with --data-dir") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise LaunchError(
                f"data directory {path}: another cluster runs there; stop it or choose another with --data-dir"
            ) from None

    def log(self, name: str) -> Path:
        """The file that the output of the process `name` goes to."""
        return self.path / "logs" / f"{name}.log"

    def close(self) -> None:
        """Forget the cluster and let another one have the directory."""
        remove_state(self.path)
        self._lock.close()
