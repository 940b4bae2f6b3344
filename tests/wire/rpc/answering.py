"""A gRPC server whose methods the test answers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio

from dunlin.messages.declare import Method
from dunlin.wire.channels import SERVER_OPTIONS
from dunlin.wire.rpc.methods import Methods

Answers = Mapping[Method[Any, Any], Callable[[Any, Any], Awaitable[Any]]]


@asynccontextmanager
async def answering(answers: Answers) -> AsyncIterator[str]:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((Methods(answers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)
