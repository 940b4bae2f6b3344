"""How an engine process is started: the same dataclass makes the command line and reads it. Loads no torch."""

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dunlin.engine.device.names import CPU, INTERPRET, DeviceNameError, check_device_name
from dunlin.model.kv_dtypes import NARROW

ENGINE_MODULE = "dunlin.engine"
ENGINE_MODULES = ("dunlin.engine.process.main", "dunlin.engine.remote.main")
"""What engines, and the processes that exchange KV for them, import: torch above all."""
DTYPES = ("float32", "bfloat16")
"""Of weights and hidden states."""
CANNOT_START = 2
"""The exit code of one that will never start with these options."""
CANNOT_CONTINUE = 3
"""The exit code of one that has failed while it served."""
SPINS = 10_000
"""How often an OpenMP thread looks for the next parallel region before it sleeps: 0.1 to 0.5 ms, longer than the gaps
within a step. libgomp's own choice is 30 times as long, and other threads wait for the core meanwhile.
"""
_WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The options of one engine process.

    The three descriptors are inherited (`pass_fds`): a stream socket to the parent, the arena's memfd, the progress
    counter's memfd. KV in the arena outlives the process; give the next one the same options. One that is to
    `standby` loads and warms up, says so with an empty frame, and starts when it gets a byte.
    """

    model: Path
    name: str
    incarnation: int
    parent_pid: int
    socket_fd: int
    arena_fd: int
    progress_fd: int
    kv_bytes: int
    dtype: str = "float32"
    narrow_kv: str = ""
    """The numbers of KV where they are narrower than `dtype` (`model/kv_dtypes.py`)."""
    deterministic: bool = False
    threads: int = 1
    node: str = ""
    """The node's name in the cluster: engines write into the memory of those with the same one."""
    standby: bool = False
    device: str = CPU
    """What it computes on: see `device/names.py`."""
    adapters: tuple[str, ...] = ()
    """LoRA adapters, each as DIGEST=DIR: one whose files have another digest by now is refused."""
    ranks: int = 1
    """Processes that compute each layer together; this one is number `rank`, and starts the others if that is 0."""
    rank: int = 0
    rank_arena_fds: tuple[int, ...] = ()
    """Of rank 0: the other ranks' arenas."""
    shared_fd: int = -1
    """Of the other ranks: the memory that all of them share; `socket_fd` is a socket to rank 0."""
    rendezvous_fd: int = -1
    """Of all ranks, where there are several: an empty memory file, by which devices find each other."""
    gpu_share: float = 0.0
    """Of the device's whole memory, for weights, KV and work space; `kv_bytes` 0: what of it is left is KV."""
    step_tokens: int = 0
    step_rows: int = 0
    """Of the largest step: tokens, and rows; work space is left for it."""

    @property
    def kv_dtype(self) -> str:
        """The numbers of KV."""
        return self.narrow_kv or self.dtype

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors that the child inherits."""
        shared = [each for each in (self.shared_fd, self.rendezvous_fd) if each >= 0]
        return self.socket_fd, self.arena_fd, self.progress_fd, *self.rank_arena_fds, *shared

    def command(self, module: str = ENGINE_MODULE) -> list[str]:
        """The command line that starts the engine."""
        flags = [f"--{name.replace('_', '-')}={getattr(self, name)}" for name in _TYPES]
        flags += [f"--{name}" for name in _SWITCHES if getattr(self, name)]
        flags += [f"--adapter={each}" for each in self.adapters]
        flags += [f"--rank-arena-fd={each}" for each in self.rank_arena_fds]
        return [sys.executable, "-m", module, *flags]

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The engine's environment: see `engine_environment`."""
        return engine_environment(inherited, self.device)


def engine_environment(inherited: Mapping[str, str], device: str) -> dict[str, str]:
    """The environment of an engine, and of what imports torch for it: the inherited one, plus how its threads wait
    where that sets nothing, and what its device asks for.
    """
    chosen = {} if any(name in inherited for name in _WAITING) else {"GOMP_SPINCOUNT": str(SPINS)}
    if device == INTERPRET:
        chosen["TRITON_INTERPRET"] = "1"
    return {**inherited, **chosen}


_TYPES = {
    "model": Path,
    "name": str,
    "incarnation": int,
    "parent_pid": int,
    "socket_fd": int,
    "arena_fd": int,
    "progress_fd": int,
    "kv_bytes": int,
    "dtype": str,
    "narrow_kv": str,
    "threads": int,
    "node": str,
    "device": str,
    "ranks": int,
    "rank": int,
    "shared_fd": int,
    "rendezvous_fd": int,
    "gpu_share": float,
    "step_tokens": int,
    "step_rows": int,
}
_SWITCHES = ("deterministic", "standby")


def parse_options(arguments: list[str]) -> EngineOptions:
    """The options in a command line; exits with a message when they are wrong."""
    parser = argparse.ArgumentParser(
        "python -m dunlin.engine", description="One engine process; an instance starts it."
    )
    for name, kind in _TYPES.items():
        choices = {"dtype": DTYPES, "narrow_kv": ("", *NARROW)}.get(name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, required=True, choices=choices)
    for name in _SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--adapter", dest="adapters", action="append", default=[], metavar="DIGEST=DIR")
    parser.add_argument("--rank-arena-fd", dest="rank_arena_fds", action="append", default=[], type=int, metavar="FD")
    given = vars(parser.parse_args(arguments))
    try:
        check_device_name(given["device"])
    except DeviceNameError as error:
        parser.error(str(error))
    several = {name: tuple(given[name]) for name in ("adapters", "rank_arena_fds")}
    return EngineOptions(**{**given, **several})
