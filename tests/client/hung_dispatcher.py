"""A dispatcher that answers one kind of call too late."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from dunlin.messages.declare import Method
from dunlin.wire.rpc.methods import Methods
from dunlin.wire.rpc.server import GrpcServer


@asynccontextmanager
async def hung_dispatcher(method: Method[Any, Any]) -> AsyncIterator[str]:
    """Its `host:port`."""

    async def too_late(query: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
        raise AssertionError

    server = GrpcServer("127.0.0.1:0")
    await server.start([Methods({method: too_late})], [])
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop(0)
