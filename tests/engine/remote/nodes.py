"""Nodes reduced to an engine's memory and its transfer helper, a real process; and a cable between two of them."""

import contextlib
import mmap
import os
import signal
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, cast

import numpy as np
import torch

from benchmarks.harness.processes import stop
from dunlin.effects import Address
from dunlin.engine.process.frames import FrameReader, frame
from dunlin.engine.remote.options import HelperOptions
from dunlin.engine.transfer.peer_access import PeerAccess
from dunlin.engine.transfer.peer_rooms import PeerRoomTable
from dunlin.engine.transfer.slab import KvSlab
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.agent import EngineAgent
from dunlin.messages.engine import Meet, Met, Transfer, TransferDone
from dunlin.messages.types import Header, Region, TransferKind, i64
from dunlin.wire.codec import decode, encode
from dunlin.wire.envelopes import ENGINE_COMMAND, ENGINE_EVENT
from tests.fakes.forks import shared_forks

LAYERS, SLOTS, SLOT_BYTES = 2, 16384, 512
LAYER_BYTES = SLOTS * SLOT_BYTES
"""A transfer of all slots has 32 chunks, four times as many as may be on their way."""
LIMIT_S = 120.0


class Node:
    """An engine's memory in this process, and the helper beside it. `agent` is what its peers are told."""

    def __init__(self, name: str, seed: int = 0, **options: Any) -> None:
        self.address, self.name = Address("engine", name), name
        self.arena_fd, self.page_fd = os.memfd_create("arena"), os.memfd_create("page")
        os.ftruncate(self.arena_fd, LAYERS * LAYER_BYTES)
        self.memory = np.frombuffer(mmap.mmap(self.arena_fd, LAYERS * LAYER_BYTES), dtype=np.uint8)
        self.memory[:] = np.random.default_rng(seed).integers(0, 256, LAYERS * LAYER_BYTES, dtype=np.uint8)
        kv = list(torch.from_numpy(self.memory).view(torch.bfloat16).view(LAYERS, SLOTS, 2, 2, 64))
        self.slab, self.activations = KvSlab(kv, [SLOTS] * LAYERS), TransitRooms(4, 1 << 20)
        self.runs = {layer: [(layer * LAYER_BYTES, LAYER_BYTES)] for layer in range(LAYERS)}
        self.access, self.rooms = PeerAccess(self.page_fd, self.activations, name), PeerRoomTable(self.page_fd)
        self.access.publish(self.arena_fd, self.slab, self.runs)
        self._options = HelperOptions(name, os.getpid(), -1, **{"stall_s": LIMIT_S, **options})
        self._start()

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        self._socket.close()

    def order(self, message: Any) -> None:
        """A command to the helper."""
        self._socket.sendall(frame(ENGINE_COMMAND.encode(Header(self.address), message)))

    def event(self) -> Any:
        """The helper's next event."""
        while not self._events:
            data = self._socket.recv(1 << 16)
            assert data, "the helper ended"
            self._events += [ENGINE_EVENT.decode(body)[1] for body in self._reader.feed(data)]
        return self._events.pop(0)

    def serve(self) -> None:
        """Tell the helper of the engine's life of now."""
        self.order(Meet(self.address, self.access.agent))
        met = self.event()
        assert met.agent, met
        self.agent = met.agent

    def meet(self, other: "Node", **changed: Any) -> str:
        """Why the other cannot be reached; empty if it can. `changed` are fields of its agent."""
        agent = replace(cast(EngineAgent, decode("EngineAgent", other.agent)), **changed)
        self.order(Meet(other.address, encode(agent)))
        met = self.event()
        assert isinstance(met, Met), met
        assert met.peer == other.address
        return met.detail

    def send(self, transfer: Transfer) -> TransferDone:
        """One transfer, to its end."""
        self.order(transfer)
        done = self.event()
        assert isinstance(done, TransferDone), done
        return done

    def pause(self) -> None:
        """Stop the helper: nothing more is taken out of its sockets."""
        stop(self.helper.pid)

    def go_on(self) -> None:
        os.kill(self.helper.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.helper.kill()
        self.helper.wait()

    def restart(self) -> None:
        """Another helper over the same memory."""
        self.kill()
        self._socket.close()
        self._start()

    def slots(self, slots: Sequence[int] | range, layers: range = range(LAYERS)) -> bytes:
        """What lies there, layer by layer."""
        whole = self.memory.reshape(LAYERS, SLOTS, SLOT_BYTES)
        return b"".join(whole[layer, list(slots)].tobytes() for layer in layers)

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(LIMIT_S)
        self._socket, self._reader, self._events = ours, FrameReader(), list[Any]()
        with theirs:
            options = replace(self._options, socket_fd=theirs.fileno())
            self.helper = shared_forks().spawn(options.command(), os.environ, fds=(theirs.fileno(),))
        self.serve()


def kv_transfer(ticket: int, to: Node, tokens: int = SLOTS, handle: int = 1, **overrides: Any) -> Transfer:
    """The first tokens, which lie in the slots of the same numbers, into an open room."""
    values = {
        "region": Region(0, LAYERS, 0, tokens),
        "extent_start": i64([0]),
        "extent_length": i64([tokens]),
        "peer": to.address,
        "peer_handle": handle,
        **overrides,
    }
    return Transfer(ticket, TransferKind.SLAB_TO_PEER, 1, **values)


class Cable:
    """A TCP relay in front of a node's helper, that can be cut or spoil a byte. `endpoint` is where it is dialled."""

    def __init__(self, to: Node) -> None:
        host, _, port = cast(EngineAgent, decode("EngineAgent", to.agent)).endpoint.rpartition(":")
        self._target = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.connections = 0
        self.cut_at: Callable[[int], bool] = lambda count: False
        """Whether to cut the connection, once it carried so many bytes to the target."""
        self.spoil_at = -1
        self.held: threading.Event | None = None
        """The first connection brings nothing to the target until this is set."""
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            held, self.held = self.held, None
            far = socket.create_connection(self._target)
            threading.Thread(target=self._carry, args=(near, far, True, held), daemon=True).start()
            threading.Thread(target=self._carry, args=(far, near, False, None), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, is_out: bool, held: threading.Event | None) -> None:
        carried = 0
        try:
            while data := source.recv(1 << 16):
                if held is not None and carried > 1 << 10:  # the greeting goes through
                    held.wait()
                if is_out and carried <= self.spoil_at < carried + len(data):
                    at = self.spoil_at - carried
                    data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
                carried += len(data)
                target.sendall(data)
                if is_out and self.cut_at(carried):
                    break
        except OSError:
            pass
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes the other thread
            each.close()  # what was not read yet makes it a reset
