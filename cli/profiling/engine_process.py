"""The process of a live engine that is measured: its start, its end, its clocks, its messages. Blocking sockets."""

import os
import select
import socket
import subprocess
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dunlin.effects import Address, Message
from dunlin.engine.device.names import CPU, device_kind
from dunlin.engine.process.frames import FrameReader, frame
from dunlin.engine.process.options import EngineOptions
from dunlin.engine.process.progress_page import ProgressPage
from dunlin.messages.engine import EngineFailed, EngineReady, Unsupported
from dunlin.messages.types import Header
from dunlin.wire.envelopes import ENGINE_COMMAND, ENGINE_EVENT

STEP_TIMEOUT_S = 60.0
LOAD_TIMEOUT_S = 600.0
_PROCESS_CLOCK = 2
"""Linux: of the clock that counts a process's CPU time."""


class ProbeError(Exception):
    """The engine cannot be measured; the message says why."""


@dataclass(frozen=True, slots=True)
class ProbeOptions:
    """Which engine to start. `model` is a checkpoint's directory."""

    model: Path
    kv_bytes: int
    dtype: str = "float32"
    narrow_kv: str = ""
    threads: int = 1
    deterministic: bool = False
    device: str = "cpu"
    ranks: int = 1


class EngineProcess:
    """Owns the engine's process and its memory. Raises ProbeError if it does not start.

    `shares_core`: this process runs on the engine's core. `ready`: the engine's first word, after `load_s` seconds.
    """

    def __init__(self, choice: ProbeOptions) -> None:
        self.is_on_cpu = device_kind(choice.device) == CPU
        self._fds = [
            os.memfd_create("dunlin-progress"),
            *(os.memfd_create("dunlin-arena") for _ in range(choice.ranks)),
        ]
        self.page = ProgressPage(self._fds[0])
        self._socket, theirs = socket.socketpair()
        options = EngineOptions(
            model=choice.model,
            name="profile",
            incarnation=1,
            parent_pid=os.getpid(),
            socket_fd=theirs.fileno(),
            arena_fd=self._fds[1],
            progress_fd=self._fds[0],
            kv_bytes=choice.kv_bytes,
            dtype=choice.dtype,
            narrow_kv=choice.narrow_kv,
            deterministic=choice.deterministic,
            threads=max(choice.threads // choice.ranks, 1),  # of each rank, as the instance shares them out
            device=choice.device,
            ranks=choice.ranks,
            rank_arena_fds=tuple(self._fds[2:]),
        )
        began_s = time.perf_counter()
        environment = options.environment(os.environ)
        self._process = subprocess.Popen(options.command(), pass_fds=options.fds, env=environment)
        theirs.close()
        self._poll = select.poll()  # `select` takes no descriptor beyond 1023
        self._poll.register(self._socket, select.POLLIN)
        self._reader = FrameReader()
        self._events: deque[Message] = deque()
        self._header = Header(Address("instance", "profile", 1))
        self.shares_core = len(os.sched_getaffinity(0)) == 1
        self.ready = self._get_ready()
        self.load_s = time.perf_counter() - began_s

    def close(self) -> None:
        """End the engine and let its memory go."""
        self._socket.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for fd in self._fds:
            os.close(fd)

    def now_s(self) -> float:
        """Seconds on a clock that stands still while this process keeps the engine from its core."""
        return time.perf_counter() - (time.process_time() if self.shares_core else 0.0)

    def engine_s(self) -> float:
        """Seconds on the engine's clock: the CPU time of its process where it shares this one's core, so that
        neighbours there do not count. Elsewhere the clock: of a process that runs on another core Linux tells the CPU
        time of its last tick, which may be milliseconds ago.
        """
        if not self.shares_core:
            return time.perf_counter()
        return time.clock_gettime(~self._process.pid << 3 | _PROCESS_CLOCK)

    def _get_ready(self) -> EngineReady:
        self._socket.settimeout(LOAD_TIMEOUT_S)
        try:
            ready: EngineReady = self.receive(EngineReady)
        except ProbeError:
            self.close()
            raise
        self._socket.settimeout(STEP_TIMEOUT_S)
        return ready

    def has_answered(self) -> bool:
        """Whether bytes of an answer wait to be received."""
        return bool(self._poll.poll(0))

    def send(self, *messages: Message) -> None:
        """Send all in one write. Raises ProbeError if the engine is gone."""
        data = b"".join(frame(ENGINE_COMMAND.encode(self._header, message)) for message in messages)
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise ProbeError(f"the engine is gone: {error}") from error

    def receive(self, *kinds: type[Any]) -> Any:
        """The next event, of one of the `kinds`. Raises ProbeError if it is another, or none comes in time."""
        while not self._events:
            try:
                data = self._socket.recv(1 << 20)
            except OSError as error:
                raise ProbeError(f"the engine does not answer: {error}") from error
            if not data:
                raise ProbeError("the engine ended")
            self._events += [ENGINE_EVENT.decode(body)[1] for body in self._reader.feed(data)]
        event = self._events.popleft()
        if isinstance(event, EngineFailed):
            raise ProbeError(event.reason)
        if isinstance(event, Unsupported):
            raise ProbeError(f"the engine refuses {event.what}: {event.detail}")
        if not isinstance(event, kinds):
            raise ProbeError(f"the engine said {type(event).__name__} where {kinds[0].__name__} was due")
        return event


class ProbeHostTier:
    """A host tier for measuring: shared memory that is there already. Close it after the engine."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._fd = os.memfd_create("dunlin-tier")
        os.posix_fallocate(self._fd, 0, size_bytes)
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """Release the memory; every mapping of it must be gone."""
        os.close(self._fd)
