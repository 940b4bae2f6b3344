"""Two processes' worth of cores and hosts in one event loop, with real gRPC between them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from dunlin.effects import Address, Effect, Message
from dunlin.runtime.core_host import CoreHost, wall_clock
from dunlin.wire.channels import SERVER_OPTIONS, open_channel
from dunlin.wire.envelopes import DISPATCH
from dunlin.wire.security import TlsIdentity
from dunlin.wire.streams.acceptor import StreamAcceptor
from dunlin.wire.streams.dialer import DialBackoff, StreamDialer
from dunlin.wire.streams.stream import StreamLimits, identity_metadata

DISPATCHER = Address("dispatcher", "d 1/ü", 7)
INSTANCE = Address("instance", "i", 3)
QUICK = DialBackoff(first_s=0.02, most_s=0.1, connect_s=2.0)
PATIENCE_S = 300.0


@dataclass
class Ear:
    """A core that only listens. `until` waits for what it should hear."""

    heard: list[tuple[Address, Message]] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def receive(self, now_s: float, sender: Address, message: Message) -> Sequence[Effect]:
        self.heard.append((sender, message))
        self.changed.set()
        return ()

    @property
    def messages(self) -> list[Message]:
        return [message for _, message in self.heard]

    async def until(self, count: int) -> list[Message]:
        """The messages, as soon as there are `count`."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.heard) < count:
                self.changed.clear()
                await self.changed.wait()
        return self.messages


class Errors(list[Exception]):
    """What a host would have ended the process for."""


class End:
    """One process: a core, its host and what failed."""

    def __init__(self, address: Address) -> None:
        self.core = Ear()
        self.errors = Errors()
        self.host = CoreHost(self.core, address, wall_clock(), on_crash=self.errors.append)


class Acceptance(End):
    """The answering process."""

    def __init__(
        self, address: Address = INSTANCE, limits: StreamLimits | None = None, security: TlsIdentity | None = None
    ) -> None:
        super().__init__(address)
        self.acceptor = StreamAcceptor(self.host, [DISPATCH], limits=limits, security=security)
        self._security = security
        self.server = grpc.aio.server(options=SERVER_OPTIONS)
        self.server.add_generic_rpc_handlers((self.acceptor,))
        self.port = 0

    async def start(self, port: int = 0) -> str:
        listen = f"127.0.0.1:{port}"
        if self._security is None:
            self.port = self.server.add_insecure_port(listen)
        else:
            self.port = self.server.add_secure_port(listen, self._security.server_credentials())
        await self.server.start()
        return f"127.0.0.1:{self.port}"


@asynccontextmanager
async def accepting(
    limits: StreamLimits | None = None, address: Address = INSTANCE
) -> AsyncIterator[tuple[Acceptance, str]]:
    side = Acceptance(address, limits)
    try:
        yield side, await side.start()
    finally:
        await side.server.stop(None)
        assert side.errors == []


@asynccontextmanager
async def dialing(
    endpoint: str, peer: Address = INSTANCE, limits: StreamLimits | None = None, address: Address = DISPATCHER
) -> AsyncIterator[tuple[End, StreamDialer]]:
    side = End(address)
    dialer = StreamDialer(side.host, peer, endpoint, DISPATCH, limits=limits, backoff=QUICK)
    try:
        yield side, dialer
    finally:
        await dialer.stop()
        assert side.errors == []


@asynccontextmanager
async def raw_call(endpoint: str, sender: Address = DISPATCHER, meant: Address = INSTANCE) -> AsyncIterator[Any]:
    """A dialer that the test plays itself."""
    async with open_channel(endpoint) as channel:
        attach: Any = channel.stream_stream(DISPATCH.method)
        call = attach(metadata=identity_metadata(sender, meant))
        yield call
        call.cancel()


@asynccontextmanager
async def raw_acceptor(attach: Callable[[object, Any], Awaitable[None]]) -> AsyncIterator[str]:
    """An acceptor that the test plays itself."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    handler: Any = grpc.stream_stream_rpc_method_handler(attach)
    service, _, method = DISPATCH.method[1:].partition("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(400):
            await scenario()

    asyncio.run(bounded())


async def without_end(call: Callable[..., Awaitable[object]], *arguments: object) -> None:
    """Repeat a call until it raises."""
    while True:
        await call(*arguments)


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.005)
