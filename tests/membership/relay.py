"""A TCP relay in front of an etcd, so that a test can cut off one client and leave the others alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Relay:
    """Passes bytes to `target` (host:port) until `cut`; `mend` lets new connections through again."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._open = True
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def endpoint(self) -> str:
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    def cut(self) -> None:
        self._open = False
        for writer in list(self._writers):
            writer.transport.abort()

    def mend(self) -> None:
        self._open = True

    async def stop(self) -> None:
        self.cut()
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        pair = {writer, far_writer}
        self._writers |= pair
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            self._writers -= pair


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    except OSError:
        pass
    finally:
        sink.close()


@asynccontextmanager
async def relay_to(target: str) -> AsyncIterator[Relay]:
    """A running relay."""
    relay = Relay(target)
    await relay.start()
    try:
        yield relay
    finally:
        await relay.stop()
