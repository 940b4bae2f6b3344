"""How the HTTP door's tests ask: the openai package, plain posts, and a loop around one test."""

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from tests.services.dispatcher.running_doors import Doors, doors

MODEL = "builtin:tiny"


def with_doors(
    test: Callable[[Doors], Awaitable[None]],
    loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    **options: Any,
) -> None:
    async def run() -> None:
        async with asyncio.timeout(400), doors(**options) as cluster:
            await test(cluster)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(run())


async def sent(cluster: Doors, data: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Everything that the HTTP door answers to these bytes until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster.http_port, ssl=tls)
    writer.write(data)
    try:
        return await reader.read()
    finally:
        writer.close()


async def post(cluster: Doors, path: str, body: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    async with (
        aiohttp.ClientSession() as session,
        session.post(cluster.url + path, data=data, headers=headers) as answer,
    ):
        return answer.status, json.loads(await answer.text()), dict(answer.headers)
