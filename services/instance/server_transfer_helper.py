"""One transfer helper as the instance speaks to it: a process, and the frames of an engine over a socket.

Knows neither what is sent nor which process follows.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from dunlin.effects import Message
from dunlin.engine.process.frames import FRAME_BYTES_MAX, FrameError, FrameReader, frame
from dunlin.engine.remote.options import HelperOptions
from dunlin.messages.types import Header
from dunlin.runtime.child_exit import RunningProcess, wait_for_exit
from dunlin.runtime.fork_server.client import ForkServer
from dunlin.wire.codec import CodecError
from dunlin.wire.envelopes import ENGINE_COMMAND, ENGINE_EVENT


class TransferHelperProcess(asyncio.Protocol):
    """Owns one helper process. `lost` says why it is of no use any more."""

    def __init__(self, header: Header, process: RunningProcess, heard: Callable[[Message], None]) -> None:
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._header = header
        self._process = process
        self._heard = heard
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`. Bytes that are no messages end the helper."""
        try:
            for body in self._reader.feed(data):
                self._heard(ENGINE_EVENT.decode(body)[1])
        except (FrameError, CodecError) as error:
            self.end(f"spoke nonsense: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.end(str(exc) if exc else "ended")

    def send(self, message: Message) -> bool:
        """Whether the message was taken."""
        transport = self._transport
        if transport is None or transport.is_closing() or transport.get_write_buffer_size() > FRAME_BYTES_MAX:
            return False
        transport.write(frame(ENGINE_COMMAND.encode(self._header, message)))
        return True

    def end(self, reason: str) -> None:
        """Kill the process."""
        if self._transport is not None:
            self._transport.abort()
        if self._process.poll() is None:
            self._process.kill()
        if not self.lost.done():
            self.lost.set_result(reason)

    async def exited(self) -> None:
        """Return once the process is gone."""
        await wait_for_exit(self._process)


class HelperStarter:
    """Starts the transfer helpers of an instance, one after the other, with the same options."""

    def __init__(self, options: HelperOptions, forks: ForkServer) -> None:
        self._options = options
        self._forks = forks

    async def start(self, header: Header, heard: Callable[[Message], None]) -> TransferHelperProcess:
        """A helper process; `heard` takes its events. The options' socket is made here."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        child = TransferHelperProcess(header, await asyncio.to_thread(self._spawn, theirs), heard)
        await asyncio.get_running_loop().create_connection(lambda: child, sock=ours)
        return child

    def _spawn(self, theirs: socket.socket) -> RunningProcess:
        with theirs:
            options = replace(self._options, socket_fd=theirs.fileno())
            return self._forks.spawn(options.command(), os.environ, fds=(options.socket_fd,))
