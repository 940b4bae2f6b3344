"""One conversation between two processes: an outlet of the host on one side, a gRPC stream on the other.

Identity travels in the call's metadata: the caller's address and the address that it wants, and back the answering one.
Every frame repeats the sender and is checked. Knows envelopes, not their meaning; `dialer.py` opens streams,
`acceptor.py` accepts them.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import grpc
import grpc.aio

from dunlin.effects import Address, Message
from dunlin.messages.types import I64_MOST, Header
from dunlin.runtime.core_host import CoreHost
from dunlin.wire.codec import CodecError
from dunlin.wire.envelopes import Envelope
from dunlin.wire.metadata import metadata_values

BROKEN = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)
"""What gRPC raises when a stream is over: its own errors, and InvalidStateError for a write after the end."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """The most messages and bytes that may wait for one peer."""

    messages: int = 8_192
    size_bytes: int = 64 << 20


@dataclass(slots=True)
class StreamCounters:
    """Faults of a process's streams: frames that could not be read, calls for or from another address than they say,
    and calls refused for their certificate.
    """

    malformed: int = 0
    misdirected: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """How a stream ended. `code` is what an acceptor tells the dialer."""

    reason: str
    code: grpc.StatusCode = grpc.StatusCode.ABORTED


class FrameChannel(Protocol):
    """The methods that gRPC's call (of a dialer) and context (of an acceptor) share."""

    async def read(self) -> object: ...

    async def write(self, message: bytes, /) -> None: ...


class PeerStream:
    """The outlet to `peer`, and the tasks that move frames. `run` owns it: it returns when the stream is over."""

    def __init__(
        self,
        host: CoreHost,
        peer: Address,
        out: Envelope,
        back: Envelope,
        limits: StreamLimits,
        counters: StreamCounters,
    ) -> None:
        self._host = host
        self._peer = peer
        self._out = out
        self._back = back
        self._limits = limits
        self._counters = counters
        self._header = Header(host.address)
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._filled = asyncio.Event()
        self._ended: asyncio.Future[StreamEnd] = asyncio.get_running_loop().create_future()

    def send(self, message: Message) -> bool:
        """Queue a frame. False when the peer does not keep up.

        Raises:
            CodecError: this conversation does not carry `message`: the core's mistake.
        """
        frame = self._out.encode(self._header, message)
        if self._ended.done():
            return True  # lost like any frame in flight; `Gone` is on its way with the reason
        if len(self._queue) >= self._limits.messages or self._queued_bytes + len(frame) > self._limits.size_bytes:
            return False
        self._queue.append(frame)
        self._queued_bytes += len(frame)
        self._filled.set()
        return True

    def close(self, reason: str) -> None:
        """End the stream; frames not yet written are dropped."""
        self._end(StreamEnd(reason))

    async def run(self, pipe: FrameChannel) -> StreamEnd:
        """Join the host, carry frames until either side ends, leave the host."""
        tasks = [asyncio.create_task(self._read(pipe)), asyncio.create_task(self._write(pipe))]
        for task in tasks:
            task.add_done_callback(self._host.crash_on_error)
        try:
            self._host.attach(self._peer, self)
            await asyncio.wait([self._ended])
            return self._ended.result()
        finally:
            self._end(StreamEnd("the call was cancelled or its connection lost"))
            for task in tasks:
                task.cancel()
            self._host.detach(self._peer, self._ended.result().reason, self)

    def _end(self, end: StreamEnd) -> None:
        if not self._ended.done():
            self._ended.set_result(end)

    async def _read(self, pipe: FrameChannel) -> None:
        try:
            while True:
                frame = await pipe.read()
                if not isinstance(frame, bytes):
                    return self._end(StreamEnd("the peer ended the stream", grpc.StatusCode.OK))
                self._deliver(frame)
        except BROKEN as error:
            self._end(StreamEnd(describe_error(error)))
        except asyncio.CancelledError:  # ours, or gRPC's word for a call that the peer cancelled
            self._end(StreamEnd("the peer cancelled the stream"))
            raise

    def _deliver(self, frame: bytes) -> None:
        try:
            header, message = self._back.decode(frame)
        except CodecError as error:
            self._counters.malformed += 1
            return self._end(StreamEnd(str(error), grpc.StatusCode.INVALID_ARGUMENT))
        if header.sender != self._peer:
            self._counters.misdirected += 1
            text = f"a frame of {header.sender} on the stream of {self._peer}"
            return self._end(StreamEnd(text, grpc.StatusCode.INVALID_ARGUMENT))
        if not self._ended.done():  # a replaced stream may still hold frames; its peer is Gone for the core
            self._host.deliver(self._peer, message)

    async def _write(self, pipe: FrameChannel) -> None:
        try:
            while True:
                await self._filled.wait()
                self._filled.clear()
                while self._queue:
                    frame = self._queue.popleft()
                    await pipe.write(frame)
                    self._queued_bytes -= len(frame)
        except BROKEN as error:
            # The reader knows better why: a failed write says only that the stream is over.
            await asyncio.sleep(_READER_FIRST_S)
            self._end(StreamEnd(describe_error(error)))


_READER_FIRST_S = 0.05
_FROM = ("dunlin-from-role-bin", "dunlin-from-name-bin", "dunlin-from-incarnation")
_MEANT = ("dunlin-to-role-bin", "dunlin-to-name-bin", "dunlin-to-incarnation")

Metadata = tuple[tuple[str, str | bytes], ...]


def describe_error(error: BaseException) -> str:
    """One line for a `Gone`."""
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details() or 'no details'}"
    return f"{type(error).__name__}: {error}"


def identity_metadata(sender: Address, meant: Address) -> Metadata:
    """Metadata that names the sender and the address that it wants."""
    return (*_spelled(_FROM, sender), *_spelled(_MEANT, meant))


def read_identities(metadata: object) -> tuple[Address, Address]:
    """The sender and the address that it wants, out of `identity_metadata`'s metadata.

    Raises:
        ValueError: the metadata is not `identity_metadata`'s.
    """
    pairs: dict[str, str | bytes] = metadata_values(metadata)
    return _read_address(_FROM, pairs), _read_address(_MEANT, pairs)


def _spelled(keys: tuple[str, str, str], address: Address) -> Metadata:
    # "-bin" values are bytes on every side, so that a name may hold any character.
    return (
        (keys[0], address.role.encode()),
        (keys[1], address.name.encode()),
        (keys[2], str(address.incarnation)),
    )


def _read_address(keys: tuple[str, str, str], pairs: dict[str, str | bytes]) -> Address:
    try:
        role, name, incarnation = (pairs[key] for key in keys)
        number = int(incarnation)
        if number > I64_MOST:  # no message could name it
            raise ValueError(f"{number} is no incarnation")
        return Address(bytes(role).decode(), bytes(name).decode(), number)  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no identity in the call's metadata ({keys[0].rsplit('-', 2)[0]}…: {error!r})") from error
