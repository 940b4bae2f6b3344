"""How a transfer helper is started: the same dataclass makes the command line and reads it."""

import argparse
import sys
from dataclasses import dataclass, fields
from pathlib import Path

HELPER_MODULE = "dunlin.engine.remote"


@dataclass(frozen=True, slots=True)
class HelperOptions:
    """The options of one transfer helper.

    `socket_fd` is inherited: a stream socket to the instance, with the frames of an engine. `name` is the instance's.
    It listens at `listen` ("host" without port) and `port` (0: any), and tells peers to dial `advertise`. Without a
    `tls_dir` connections are plain text. A connection that takes or brings no byte in the midst of a chunk for
    `stall_s` is closed.
    """

    name: str
    parent_pid: int
    socket_fd: int
    listen: str = "127.0.0.1"
    advertise: str = "127.0.0.1"
    port: int = 0
    backend: str = "sockets"
    tls_dir: Path | None = None
    stall_s: float = 5.0

    def command(self) -> list[str]:
        """The command line that starts the helper."""
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in told.items() if value is not None]
        return [sys.executable, "-m", HELPER_MODULE, *flags]


_TYPES = {
    "name": str,
    "parent_pid": int,
    "socket_fd": int,
    "listen": str,
    "advertise": str,
    "port": int,
    "backend": str,
    "stall_s": float,
}


def parse_options(arguments: list[str]) -> HelperOptions:
    """The options in a command line; exits with a message when they are wrong."""
    parser = argparse.ArgumentParser(f"python -m {HELPER_MODULE}", description="One transfer helper.")
    for name, kind in _TYPES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, required=True)
    parser.add_argument("--tls-dir", type=Path)
    return HelperOptions(**vars(parser.parse_args(arguments)))
