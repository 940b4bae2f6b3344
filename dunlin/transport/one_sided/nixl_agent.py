"""The agent of the NIXL library, over UCX: the only module that loads it (extra `nodes`).

Metadata comes by arguments, never from the library's own listener, and covers the staging memory alone. There
is no progress thread, for it never sleeps, even when nothing moves: `notices` advances the transfers. The library's
behaviour is that of its Python package, version 1.5.

The package `nixl` only chooses between the builds for the versions of CUDA, and loads torch to find out. Memory of the
host is all that is moved here, and every build can do that: the first that is there is taken, without torch.
"""

import ctypes
import importlib
import importlib.util
import mmap
import os
import secrets
from pathlib import Path
from typing import Any

from dunlin.messages.exchange import TransferAgent
from dunlin.transport.one_sided.agent import AgentError, Write, WriteState
from dunlin.transport.one_sided.staging import StagingLayout

BUILDS = ("nixl_cu13", "nixl_cu12")
BACKEND = "UCX"
UCX_TLS = "^sm"
"""Every transport but shared memory: there is none between nodes, and over it a peer that left cannot connect again."""


def has_fast_network(devices: Path = Path("/sys/class/infiniband")) -> bool:
    """Whether this machine has a network device that writes into memory without its processor (RDMA). Over TCP alone
    the library moves regions more slowly than plain sockets do (docs/measurements).
    """
    try:
        return any(devices.iterdir())
    except OSError:
        return False


def is_installed() -> bool:
    """Whether this Python has the library; does not load it."""
    return _build() is not None


def _build() -> str | None:
    return next((name for name in BUILDS if importlib.util.find_spec(name) is not None), None)


def open_nixl_agent(name: str, cut: StagingLayout | None = None) -> "NixlAgent":
    """An agent with staging memory. `name` may be shared; a random part makes the agent's own one of it.

    Raises:
        AgentError: not installed, no UCX in it, or no memory; the text says what to do.
    """
    if not is_installed():
        raise AgentError("NIXL is not installed: pip install 'dunlin[nodes]', or say --transport sockets")
    os.environ.setdefault("UCX_TLS", UCX_TLS)
    os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
    try:
        return NixlAgent(f"{name}-{secrets.token_hex(8)}", cut or StagingLayout())
    except Exception as error:  # its own exceptions share no base
        raise AgentError(f"NIXL does not start: {type(error).__name__}: {error}") from error


class NixlAgent:
    """Owns the library's agent and the staging memory. See `dunlin.transport.one_sided.agent.Agent`."""

    def __init__(self, name: str, cut: StagingLayout) -> None:
        library = importlib.import_module(f"{_build()}._api")
        config = library.nixl_agent_config(enable_prog_thread=False, enable_listen_thread=False, backends=[BACKEND])
        self._agent: Any = library.nixl_agent(name, config)
        if BACKEND not in self._agent.backends:
            raise AgentError(f"this NIXL has no {BACKEND}")
        self._memory = mmap.mmap(-1, cut.total_bytes)
        self._view = memoryview(self._memory)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._all = self._agent.register_memory([(self._address, cut.total_bytes, 0, "")], "DRAM", [BACKEND])
        metadata = self._agent.get_partial_agent_metadata(self._all, True, [BACKEND])
        self._about = TransferAgent(name, metadata, self._address, cut.lanes, cut.depth, cut.chunk_bytes)
        self._peers: dict[str, None] = {}

    @property
    def descriptor(self) -> TransferAgent:
        """See `Agent.descriptor`."""
        return self._about

    @property
    def staging(self) -> memoryview:
        """See `Agent.staging`."""
        return self._view

    def add_peer(self, other: TransferAgent) -> None:
        """See `Agent.add_peer`."""
        if other.name in self._peers:
            return
        found = self._try("meet", other.name, lambda: self._agent.add_remote_agent(other.metadata))
        if (found.decode() if isinstance(found, bytes) else found) != other.name:
            self._try("leave", str(found), lambda: self._agent.remove_remote_agent(found))
            raise AgentError(f"the metadata of {other.name} is that of {found!r}")
        self._peers[other.name] = None

    def remove_peer(self, name: str) -> None:
        """See `Agent.remove_peer`."""
        if name in self._peers:
            del self._peers[name]
            try:
                self._agent.remove_remote_agent(name)
            except Exception:
                pass  # it is gone by itself

    def notify(self, name: str, notice: bytes) -> None:
        """See `Agent.notify`."""
        if name not in self._peers:
            raise AgentError(f"{name} is no peer")
        self._try("notify", name, lambda: self._agent.send_notif(name, notice))

    def write(self, name: str, offset_bytes: int, address: int, length_bytes: int, notice: bytes) -> Write:
        """See `Agent.write`."""

        def begin() -> Any:
            here = self._agent.get_xfer_descs([(self._address + offset_bytes, length_bytes, 0)], "DRAM")
            there = self._agent.get_xfer_descs([(address, length_bytes, 0)], "DRAM")
            handle = self._agent.initialize_xfer("WRITE", here, there, name, notice, [BACKEND])
            if self._agent.transfer(handle) == "ERR":
                self._agent.release_xfer_handle(handle)
                raise AgentError("it failed at once")
            return handle

        return self._try("write to", name, begin)

    def state(self, write: Write) -> WriteState:
        """See `Agent.state`."""
        try:
            state = self._agent.check_xfer_state(write)
        except Exception:  # the library says so where the peer is gone
            return WriteState.FAILED
        return {"DONE": WriteState.DONE, "PROC": WriteState.PENDING}.get(state, WriteState.FAILED)

    def release(self, write: Write) -> None:
        """See `Agent.release`."""
        self._try("release a write to", "a peer", lambda: self._agent.release_xfer_handle(write))

    def notices(self) -> list[tuple[str, bytes]]:
        """See `Agent.notices`."""
        found = self._try("hear", "the peers", self._agent.get_new_notifs)
        return [(name, notice) for name, notices in found.items() for notice in notices]

    def close(self) -> None:
        """See `Agent.close`."""
        for name in list(self._peers):
            self.remove_peer(name)
        self._try("deregister", "its memory", lambda: self._agent.deregister_memory(self._all, [BACKEND]))
        self._agent = None

    def _try(self, what: str, whom: str, call: Any) -> Any:
        try:
            return call()
        except AgentError:
            raise
        except Exception as error:  # its own exceptions share no base
            raise AgentError(f"cannot {what} {whom}: {type(error).__name__}: {error}") from error
