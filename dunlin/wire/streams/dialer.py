"""The calling side of a conversation with one peer: connects, and connects again while the peer is wanted."""

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from dunlin.effects import Address
from dunlin.runtime.core_host import CoreHost
from dunlin.wire.channels import open_channel
from dunlin.wire.envelopes import StreamProtocol
from dunlin.wire.security import IdentitySource, TlsIdentity
from dunlin.wire.streams.stream import (
    BROKEN,
    PeerStream,
    StreamCounters,
    StreamEnd,
    StreamLimits,
    describe_error,
    identity_metadata,
    read_identities,
)

if TYPE_CHECKING:
    Attach = grpc.aio.StreamStreamMultiCallable[bytes, bytes]
    AttachCall = grpc.aio.StreamStreamCall[bytes, bytes]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DialBackoff:
    """Seconds between attempts: doubles from `first_s` to `most_s`, each drawn from its upper half.

    A stream that held for `most_s` starts over at `first_s`. An attempt may take `connect_s`.
    """

    first_s: float = 0.05
    most_s: float = 1.0
    connect_s: float = 3.0


class StreamDialer:
    """Owns the channel to one incarnation of one process. One that does not persist makes one attempt."""

    def __init__(
        self,
        host: CoreHost,
        peer: Address,
        endpoint: str,
        conversation: StreamProtocol,
        *,
        counters: StreamCounters | None = None,
        limits: StreamLimits | None = None,
        backoff: DialBackoff | None = None,
        security: IdentitySource | None = None,
        on_end: Callable[["StreamDialer"], None] | None = None,
        persists: bool = True,
    ) -> None:
        self.peer = peer
        self.endpoint = endpoint
        self.connected = False
        self.counters = counters or StreamCounters()
        self._host = host
        self._conversation = conversation
        self._limits = limits or StreamLimits()
        self._backoff = backoff or DialBackoff()
        self._security = security
        self._identity: TlsIdentity | None = None
        self._channel: grpc.aio.Channel | None = None
        self._wanted = True
        self._persists = persists
        self._task = asyncio.create_task(self._run(), name=f"dialer of {peer}")
        self._task.add_done_callback(host.crash_on_error)
        if on_end is not None:
            # Not in the task: one that is cancelled before its first step never runs.
            self._task.add_done_callback(lambda _: on_end(self))

    def set_wanted(self, wanted: bool) -> None:
        """Whether to connect again. An open stream stays open; without one, an unwanted dialer ends."""
        self._wanted = wanted
        if not wanted and not self.connected:
            self._task.cancel()

    @property
    def ended(self) -> bool:
        """Whether it will never connect again; true from its cancellation on, before the task has noticed."""
        return self._task.done() or self._task.cancelling() > 0

    async def stop(self) -> None:
        """End at once, with the stream."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            await self._keep_dialing()
        finally:
            if self._channel is not None:
                await self._channel.close(None)

    async def _keep_dialing(self) -> None:
        delay_s, last = self._backoff.first_s, ""
        while self._wanted:
            began_s = self._host.clock()
            end = await self._once(await self._current_channel())
            level = logging.DEBUG if end.reason == last else logging.INFO
            _log.log(level, "stream to %s at %s: %s", self.peer, self.endpoint, end.reason)
            last = end.reason
            if not self._persists:
                return
            if self._host.clock() - began_s >= self._backoff.most_s:
                delay_s = self._backoff.first_s
            if self._wanted:
                await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
            delay_s = min(2 * delay_s, self._backoff.most_s)

    async def _current_channel(self) -> grpc.aio.Channel:
        """The channel, opened anew when the certificates have changed: it would connect again with the old ones."""
        identity = self._security.current() if self._security is not None else None
        if self._channel is None or identity is not self._identity:
            if self._channel is not None:
                await self._channel.close(None)
            self._channel = open_channel(self.endpoint, identity, self.peer.role, self.peer.name)
            self._identity = identity
        return self._channel

    async def _once(self, channel: grpc.aio.Channel) -> StreamEnd:
        """One stream, from the call to its end."""
        attach: Attach = channel.stream_stream(self._conversation.method)
        call = attach(metadata=identity_metadata(self._host.address, self.peer))
        try:
            await self._check(call)
            stream = PeerStream(
                self._host, self.peer, self._conversation.command, self._conversation.event, self._limits, self.counters
            )
            self.connected = True
            return await stream.run(call)
        except BROKEN as error:
            return StreamEnd(describe_error(error))
        except TimeoutError:
            return StreamEnd(f"no answer within {self._backoff.connect_s:g} s")
        finally:
            self.connected = False
            call.cancel()

    async def _check(self, call: "AttachCall") -> None:
        async with asyncio.timeout(self._backoff.connect_s):
            metadata = await call.initial_metadata()
            try:
                answering, meant = read_identities(metadata)
            except ValueError as error:
                await call.read()  # a call that failed has no metadata, and says here why it failed
                raise grpc.aio.UsageError(f"no dunlin process answers at {self.endpoint}: {error}") from error
        if answering != self.peer or meant != self._host.address:
            self.counters.misdirected += 1
            raise grpc.aio.UsageError(f"{answering} answers to {meant} at {self.endpoint}, wanted {self.peer}")
