"""One engine process as the instance speaks to it: frames over a socket, and how it ended.

A process may stand by: it has loaded and warmed up, and serves on command. Knows neither why it was started nor which
process follows.
"""

import asyncio
import logging
from typing import cast

from dunlin.effects import Address, Message
from dunlin.engine.process.frames import FRAME_BYTES_MAX, FrameError, FrameReader, frame
from dunlin.engine.process.progress_page import ProgressPage
from dunlin.engine.transfer.peer_rooms import PeerRoomTable
from dunlin.messages.engine import EngineExited, EngineFailed, EngineReady, EngineStarted, Interrupt, StopEngine
from dunlin.messages.types import Header
from dunlin.runtime.child_exit import RunningProcess, wait_for_exit
from dunlin.runtime.core_host import CoreHost
from dunlin.wire.codec import CodecError
from dunlin.wire.envelopes import ENGINE_COMMAND, ENGINE_EVENT
from services.instance.server_engine_peers import EnginePeers
from services.instance.server_transfer_helper import HelperStarter

_log = logging.getLogger(__name__)

EXIT_GRACE_S = 0.5
"""A process whose socket closed is about to exit by itself: its exit status tells the cause. Seconds."""
ACTIVATE = b"\x01"


class EngineProcess(asyncio.Protocol):
    """Owns one engine process. The outlet of the engine's address once it is in charge.

    `page` is shared with it. `lost` says why it is of no use any more, `ready` that it could take steps.
    `is_prepared`: it stands by and waits. `sizes`: what it said when it could first take steps.
    """

    def __init__(
        self,
        host: CoreHost,
        engine: Address,
        process: RunningProcess,
        incarnation: int,
        page: ProgressPage,
        rooms: PeerRoomTable,
        helpers: HelperStarter | None = None,
    ) -> None:
        self.failure: str | None = None
        self.is_prepared = False
        self.sizes: EngineReady | None = None
        loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[str] = loop.create_future()
        self.ready: asyncio.Future[float] = loop.create_future()
        self._loop = loop
        self._host = host
        self._engine = engine
        self._process = process
        self._incarnation = incarnation
        self._page = page
        self._header = Header(host.address)
        self._sender = engine
        self.peers = EnginePeers(engine, self._header, rooms, helpers, self._deliver)
        self._reader = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._is_active = False
        self._was_stopped = False
        self._sent_garbage = False

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def was_ready(self) -> bool:
        """Whether it could take steps."""
        return self.ready.done()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`. Bytes that are no messages end the engine."""
        try:
            for body in self._reader.feed(data):
                if body:
                    self._on_message(*ENGINE_EVENT.decode(body))
                else:
                    self.is_prepared = True
        except (FrameError, CodecError) as error:
            self._sent_garbage = True
            self._end(f"spoke nonsense: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._end(str(exc) if exc else "closed its socket")

    def activate(self, stood_by: bool) -> None:
        """Make this process the instance's engine."""
        self._is_active = True
        if stood_by and self._transport is not None:
            self._transport.write(ACTIVATE)
        self._host.attach(self._engine, self)
        self._host.deliver(self._engine, EngineStarted(self.pid))

    def send(self, message: Message) -> bool:
        """See `dunlin.runtime.core_host.PeerOutlet`. `StopEngine` is carried out here: a stuck process reads
        nothing."""
        if isinstance(message, StopEngine):
            _log.error("ending engine %d: %s", self.pid, message.why)
            self.stop()
            return True
        if self._transport is None or self._transport.is_closing():
            return False
        if self._transport.get_write_buffer_size() > FRAME_BYTES_MAX:
            return False
        if self.peers.takes(message):
            return True
        if isinstance(message, Interrupt):  # the page first: the engine looks for the message as soon as it sees this
            self._page.call(message.ticket)
        self._transport.write(frame(ENGINE_COMMAND.encode(self._header, message)))
        return True

    def close(self, reason: str) -> None:
        """See `dunlin.runtime.core_host.PeerOutlet`."""
        self._end(reason)

    def stop(self) -> None:
        """Kill the process."""
        self._was_stopped |= self._process.poll() is None
        self._process.kill()

    async def exited(self, back_in_s: float) -> EngineExited | None:
        """How it ended, once it did; None if what it said last shows that nothing of it can be believed."""
        try:
            code = await asyncio.wait_for(wait_for_exit(self._process), EXIT_GRACE_S)
        except TimeoutError:
            self.stop()
            code = await wait_for_exit(self._process)
        if self._sent_garbage:
            return None
        return EngineExited(max(code, 0), max(-code, 0), self._was_stopped, back_in_s, self._incarnation)

    def _on_message(self, header: Header, message: Message) -> None:
        """The core hears events from the engine's incarnation, and what this host says of it from incarnation 0."""
        if isinstance(message, EngineReady) and not self.ready.done():
            self.ready.set_result(self._loop.time())
            self.sizes = message
        elif isinstance(message, EngineFailed):
            self.failure = message.reason
        self._sender = self._engine._replace(incarnation=header.sender.incarnation)
        self._deliver(message)
        self.peers.on_engine_event(message)

    def _deliver(self, message: Message) -> None:
        if self._is_active:
            self._host.deliver(self._sender, message)

    def _end(self, reason: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        if not self.lost.done():
            self.lost.set_result(reason)
