"""The engine as a child process: spawned, spoken to in frames, watched, ended and started again.

One `EngineChild` is one process; `EngineKeeper` keeps one running. Neither knows what the messages say but for
`StopEngine`, which is for whoever holds the process.
"""

import asyncio
import logging
import os
import socket
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from dunlin.effects import Address, Message
from dunlin.engine.frames import FRAME_BYTES_MAX, FrameError, FrameReader, frame
from dunlin.engine.options import EngineOptions
from dunlin.engine.progress import ProgressCounter
from dunlin.host import Host
from dunlin.messages.engine import EngineFailed, EngineReady, EngineStarted, Progress, StopEngine
from dunlin.processes import ended
from dunlin.wire.codec import CodecError
from dunlin.wire.envelopes import ENGINE_COMMAND, ENGINE_EVENT, Header

_log = logging.getLogger(__name__)

PROGRESS_INTERVAL_S = 0.1
BACKOFF_MAX_S = 10.0
_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What every engine process of this instance is told. `dtype` is `float32` or `bfloat16`."""

    model: Path
    kv_bytes: int
    dtype: str = "float32"
    deterministic: bool = False
    threads: int = 1


class EngineChild(asyncio.Protocol):
    """One engine process. The outlet of the engine's address while it lives."""

    def __init__(self, host: Host, engine: Address, process: "subprocess.Popen[bytes]") -> None:
        self.failure: str | None = None
        self.was_ready = False
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._host = host
        self._engine = engine
        self._process = process
        self._header = Header(host.address)
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`. Bytes that are no messages end the engine."""
        try:
            for body in self._reader.feed(data):
                self._take(ENGINE_EVENT.decode(body)[1])
        except (FrameError, CodecError) as error:
            self._end(f"spoke nonsense: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._end(str(exc) if exc else "closed its socket")

    def send(self, message: Message) -> bool:
        """See `dunlin.host.Outlet`. `StopEngine` is carried out here: a stuck process reads nothing."""
        if isinstance(message, StopEngine):
            _log.error("ending engine %d: %s", self.pid, message.why)
            self._process.kill()
            return True
        if self._transport is None or self._transport.is_closing():
            return False
        if self._transport.get_write_buffer_size() > FRAME_BYTES_MAX:
            return False
        self._transport.write(frame(ENGINE_COMMAND.encode(self._header, message)))
        return True

    def close(self, reason: str) -> None:
        """See `dunlin.host.Outlet`."""
        self._end(reason)

    def _take(self, message: Message) -> None:
        if isinstance(message, EngineReady):
            self.was_ready = True
        elif isinstance(message, EngineFailed):
            self.failure = message.reason
        self._host.deliver(self._engine, message)

    def _end(self, reason: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        if not self.lost.done():
            self.lost.set_result(reason)


class EngineKeeper:
    """Owns the arena and the progress counter, which outlive each engine, and starts one engine after the other."""

    def __init__(self, host: Host, settings: EngineSettings, cannot_start: Callable[[str], None]) -> None:
        self._host = host
        self._settings = settings
        self._cannot_start = cannot_start
        self._engine = Address("engine", host.address.name)
        self._arena_fd = os.memfd_create("dunlin-arena")
        self._progress_fd = os.memfd_create("dunlin-progress")
        self._progress = ProgressCounter(self._progress_fd)
        self._process: subprocess.Popen[bytes] | None = None

    async def run(self) -> None:
        """Keep an engine running until cancelled. One that never got ready is the start's failure."""
        failures, ever_ready = 0, False
        while True:
            child = await self._one_life()
            ever_ready |= child.was_ready
            if not ever_ready:
                self._cannot_start(child.failure or f"the engine ended before it was ready: {child.lost.result()}")
                return
            failures = 0 if child.was_ready else failures + 1
            delay_s = min(2.0**failures / 4, BACKOFF_MAX_S)
            _log.error("the engine ended (%s); the next one starts in %.2f s", child.lost.result(), delay_s)
            await asyncio.sleep(delay_s)

    async def report_progress(self) -> None:
        """Give the core the counter, now and then, until cancelled."""
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            self._host.deliver(self._engine, Progress(self._progress.passed))

    def close(self) -> None:
        """End the engine and let the memory go."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._arena_fd)

    async def _one_life(self) -> EngineChild:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            process = self._process = self._spawn(theirs)
        loop = asyncio.get_running_loop()
        child = EngineChild(self._host, self._engine, process)
        await loop.create_connection(lambda: child, sock=ours)
        self._host.attach(self._engine, child)
        self._host.deliver(self._engine, EngineStarted(process.pid))
        try:
            reason = await child.lost
        finally:
            process.kill()
            code = await ended(process)
            self._host.detach(self._engine, f"{child.failure or 'engine lost'} (exit code {code})", child)
        _log.info("engine %d: %s, exit code %d", process.pid, reason, code)
        return child

    def _spawn(self, theirs: socket.socket) -> "subprocess.Popen[bytes]":
        settings, name = self._settings, self._host.address.name
        options = EngineOptions(
            model=settings.model,
            name=name,
            incarnation=0,
            parent_pid=os.getpid(),
            socket_fd=theirs.fileno(),
            arena_fd=self._arena_fd,
            progress_fd=self._progress_fd,
            kv_bytes=settings.kv_bytes,
            dtype=settings.dtype,
            deterministic=settings.deterministic,
            threads=settings.threads,
        )
        return subprocess.Popen(options.command(), pass_fds=options.fds, stdin=subprocess.DEVNULL)
