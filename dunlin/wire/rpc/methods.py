"""Ordinary gRPC methods over the vocabulary: what clients ask a dispatcher and what tools ask a monitor.

The SDK uses it too. Knows no service: the answers are coroutine functions that a server gives.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio

from dunlin.messages.declare import Method
from dunlin.messages.public import (
    CancelReply,
    CancelRequest,
    GenerateEvent,
    GenerateRequest,
    InfoReply,
    InfoRequest,
)
from dunlin.wire.codec import CodecError, decode, encode
from dunlin.wire.metadata import metadata_values
from dunlin.wire.security import has_role, peer_certificate_names

if TYPE_CHECKING:  # generic for the type checker alone
    Context = grpc.aio.ServicerContext[Any, Any]
    Handler = grpc.RpcMethodHandler[Any, Any]

Q = TypeVar("Q")
R = TypeVar("R")


DISPATCHER_SERVICE = "dunlin.v1.Dunlin"
GENERATE = Method(DISPATCHER_SERVICE, "Generate", GenerateRequest, GenerateEvent, streams=True)
CANCEL = Method(DISPATCHER_SERVICE, "Cancel", CancelRequest, CancelReply)
INFO = Method(DISPATCHER_SERVICE, "Info", InfoRequest, InfoReply)

RETRY_AFTER = "dunlin-retry-after-s"
"""Trailing metadata of a refusal: seconds until another try makes sense, as text."""

REASON = "dunlin-reason"
"""Trailing metadata of a refusal: why, in one word (a `RejectionCode`'s name in lower case)."""


def stub(channel: "grpc.aio.Channel | grpc.Channel", method: Method[Q, R]) -> Any:
    """gRPC's callable for `method` on a channel of either kind: `stub(channel, INFO)(InfoRequest(), timeout=5)`.

    A response that cannot be read surfaces as gRPC's status INTERNAL.
    """
    make = channel.unary_stream if method.streams else channel.unary_unary
    return make(method.path, request_serializer=encode, response_deserializer=partial(decode, method.response.__name__))


Answer = Callable[[Any, Any], Awaitable[Any]]
Refusal = tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]
"""Status, detail and trailing metadata."""
Read = Callable[[Method[Any, Any], bytes], Any]
Gate = Callable[[str, Mapping[str, Any]], Refusal | None]
Refused = Callable[[str, Any, grpc.StatusCode, str], None]
"""Called for a refused call: its method's name, its context, status and detail."""


class Methods(grpc.GenericRpcHandler):
    """Answers methods; a request that cannot be read is INVALID_ARGUMENT.

    An answer is `async def answer(request, context)`. It returns the response; that of a streaming method returns None
    and sends with `await context.write(response)`, so that its `finally` runs as soon as the client is gone. That of a
    method that takes any number of requests gets an asynchronous generator of them.

    A caller that shows a certificate must be of one of the roles `callers`; the port decides if one is needed.
    `gate` may refuse a call by its method's name and its metadata alone, before its request is read. `refused` is
    called for calls that are refused here: for their certificate, or because their request cannot be read. Answers of
    the methods `undecoded` take the request's bytes, to decode a large one outside the event loop.
    """

    def __init__(
        self,
        answers: Mapping[Method[Any, Any], Answer],
        callers: Collection[str] = ("client",),
        gate: Gate | None = None,
        refused: Refused | None = None,
        undecoded: Collection[Method[Any, Any]] = (),
    ) -> None:
        self._handlers = {
            method.path: _handler(method, answer, callers, refused, _as_it_is if method in undecoded else _decoded)
            for method, answer in answers.items()
        }
        self._gate = gate

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "Handler | None":
        """The handler of a method, for gRPC; None: this object does not handle it."""
        handler = self._handlers.get(handler_call_details.method)
        if handler is None or self._gate is None:
            return handler
        name = handler_call_details.method.rpartition("/")[2]
        refusal = self._gate(name, metadata_values(handler_call_details.invocation_metadata))
        return handler if refusal is None else _refusing(refusal)


def _refusing(refusal: Refusal) -> "Handler":
    """Refuse a call without reading its request, however large that is."""

    async def refuse(requests: object, context: "Context") -> None:
        await context.abort(*refusal)

    return grpc.stream_stream_rpc_method_handler(refuse)


def _decoded(method: Method[Any, Any], data: bytes) -> Any:
    return decode(method.request.__name__, data)


def _as_it_is(method: Method[Any, Any], data: bytes) -> Any:
    return data


def _handler(
    method: Method[Any, Any], answer: Answer, callers: Collection[str], refused: Refused | None, read: Read
) -> "Handler":
    async def refuse(context: "Context", status: grpc.StatusCode, text: str) -> None:
        if refused is not None:
            refused(method.name, context, status, text)
        await context.abort(status, text)

    async def requests(given: AsyncIterator[bytes], context: "Context") -> AsyncGenerator[Any, None]:
        async for data in given:
            try:
                yield read(method, data)
            except CodecError as error:
                await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))

    # Bytes come in, so that a malformed request is the client's fault (gRPC's own deserialising calls it INTERNAL).
    async def handle(data: Any, context: "Context") -> Any:
        names = peer_certificate_names(context)
        if names and not has_role(names, callers):
            text = f"{method.name} is for {', '.join(callers)} certificates, this one is of {', '.join(names)}"
            await refuse(context, grpc.StatusCode.PERMISSION_DENIED, text)
        if method.uploads:
            return await answer(requests(data, context), context)
        try:
            request = read(method, data)
        except CodecError as error:
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return await answer(request, context)

    if method.uploads:
        return grpc.stream_unary_rpc_method_handler(handle, response_serializer=encode)
    make = grpc.unary_stream_rpc_method_handler if method.streams else grpc.unary_unary_rpc_method_handler
    return make(handle, response_serializer=encode)
