"""One engine process under a soak: its socket, its memory files, and what the kernel says of it."""

import os
import select
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dunlin.effects import Address
from dunlin.engine.process.frames import FrameReader, frame
from dunlin.engine.process.options import EngineOptions
from dunlin.engine.process.progress_page import ProgressPage
from dunlin.engine.transfer.peer_rooms import PeerRoomTable
from dunlin.messages.engine import EngineFailed, EngineReady, Interrupt
from dunlin.messages.types import Header
from dunlin.wire.envelopes import ENGINE_COMMAND, ENGINE_EVENT

START_LIMIT_S = 600.0
_READ_BYTES = 1 << 20
_MIB = 1 << 20


class SoakError(Exception):
    """An engine did what it must not; the text says what."""


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """Of one process: its own resident memory and shared memory that it maps, in MiB; its open descriptors."""

    anonymous_mib: float
    shared_mib: float
    descriptors: int


class EngineChild:
    """Owns one engine process and the descriptors that it inherits. `rooms`: the table of rooms that peers may write.

    `ready` is what it said of itself.
    """

    def __init__(self, model: Path, name: str, kv_bytes: int) -> None:
        """:raises SoakError: it does not start."""
        self.address = Address("engine", name)
        self._socket, theirs = socket.socketpair()
        self.arena_fd, self._progress_fd = os.memfd_create("soak-arena"), os.memfd_create("soak-progress")
        self._page = ProgressPage(self._progress_fd)
        self.rooms = PeerRoomTable(self._progress_fd)
        descriptors = (theirs.fileno(), self.arena_fd, self._progress_fd)
        options = EngineOptions(model, name, 1, os.getpid(), *descriptors, kv_bytes, deterministic=True)
        self.process = subprocess.Popen(options.command(), pass_fds=options.fds, env=options.environment(os.environ))
        theirs.close()
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._reader = FrameReader()
        self._header = Header(Address("instance", name, 1))
        first = self._wait_for_first()
        if not isinstance(first, EngineReady):
            raise SoakError(f"{name} does not start: {first}")
        self.ready = first

    def send(self, *messages: Any) -> None:
        """Send commands; an interrupt's ticket is written into the shared page before it, as an instance does."""
        for message in messages:
            if isinstance(message, Interrupt):
                self._page.call(message.ticket)
            self._socket.sendall(frame(ENGINE_COMMAND.encode(self._header, message)))

    def receive(self, wait_s: float) -> list[Any]:
        """What it has said, after at most `wait_s`. :raises SoakError: it ended, or says that it cannot go on."""
        if not self._readable.poll(1000 * wait_s):
            return []
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise SoakError(f"{self.address.name} ended with {self.process.wait()}")
        events = [ENGINE_EVENT.decode(body)[1] for body in self._reader.feed(data)]
        for event in events:
            if isinstance(event, EngineFailed):
                raise SoakError(f"{self.address.name}: {event.reason}")
        return events

    def memory(self) -> ProcessMemory:
        """What it uses now."""
        return process_memory(self.process.pid)

    def peer_page(self) -> int:
        """The file with the table of rooms."""
        return self._progress_fd

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self.process.kill()
        self.process.wait()
        os.close(self.arena_fd)
        os.close(self._progress_fd)

    def _wait_for_first(self) -> Any:
        events = self.receive(START_LIMIT_S)
        return events[0] if events else "no word"


def process_memory(pid: int) -> ProcessMemory:
    """What a process uses now, from /proc."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    sizes = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}
    count = len(os.listdir(f"/proc/{pid}/fd"))
    return ProcessMemory(sizes["RssAnon"] / _MIB, (sizes["RssShmem"] + sizes["RssFile"]) / _MIB, count)
