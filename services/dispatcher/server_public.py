"""The public gRPC door: Generate, Cancel, Info. Translates; what is allowed the door says, what happens the core."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import grpc
import grpc.aio

import dunlin
from dunlin.effects import Address
from dunlin.limits import MOST_BODY_BYTES, BadField
from dunlin.messages.declare import Method
from dunlin.messages.door import Rejection
from dunlin.messages.public import (
    CancelReply,
    CancelRequest,
    GenerateEvent,
    InfoReply,
    InfoRequest,
)
from dunlin.messages.types import Finish
from dunlin.telemetry.context import valid
from dunlin.wire.methods import CANCEL, GENERATE, INFO, REASON, RETRY_AFTER, Answer, Methods, Refusal
from services.dispatcher.callers import Callers, as_tenant
from services.dispatcher.calls import CHAT, COMPLETION, DoorCall
from services.dispatcher.door import Door, Part
from services.dispatcher.preprocess import BodyKind, Preprocessed
from services.dispatcher.refusals import DoorError
from services.dispatcher.rendering import Piece
from services.dispatcher.stream import Stream

if TYPE_CHECKING:  # generic for the type checker alone
    Context = grpc.aio.ServicerContext[Any, Any]

R = TypeVar("R")

NAME = "grpc"
BEAT_S = 1.0
"""A client that hears nothing for a few of these takes this process for stuck."""
TRACEPARENT = "traceparent"
CODES = {
    Rejection.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Rejection.TOO_LONG: grpc.StatusCode.OUT_OF_RANGE,
    Rejection.FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Rejection.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Rejection.QUOTA: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Rejection.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Rejection.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    Rejection.CONFLICT: grpc.StatusCode.ALREADY_EXISTS,
}


class PublicDoor:
    """Answers clients over gRPC."""

    def __init__(self, door: Door, callers: Callers, monitor_endpoint: Callable[[], str]) -> None:
        self._door = door
        self._callers = callers
        self._monitor_endpoint = monitor_endpoint

    def methods(self) -> Methods:
        """The handler to serve."""
        answers: dict[Method[Any, Any], Answer] = {GENERATE: self.generate, CANCEL: self.cancel, INFO: self.info}
        return Methods(answers, gate=self._gate, refused=self._refused, undecoded=(GENERATE,))

    async def generate(self, data: bytes, context: "Context") -> None:
        """Stream one request's events; a client that is gone cancels it."""
        call = self._call(GENERATE.name, context, COMPLETION)
        async with self._following(call, context):
            call.tenant = self._tenant(context) or ""
            client, stream, length = await _beating(context, self._open(data, call))
            await self._stream(context, client, stream, length)

    async def _open(self, data: bytes, call: DoorCall) -> tuple[Address, Stream, int]:
        read = await self._read(data)
        call.operation = CHAT if read.is_chat else COMPLETION
        settings = as_tenant(read.asked.settings, call.tenant or None)
        call.asks(self._door.model.name, settings)
        read.check()
        tokens = read.prompts[0]
        call.prompt_tokens = len(tokens)
        return *await self._door.open(tokens, settings, NAME, part=Part(call=call), again=read.again), len(tokens)

    async def _read(self, data: bytes) -> Preprocessed:
        if len(data) > MOST_BODY_BYTES:
            raise BadField("request", f"has {len(data)} bytes; at most {MOST_BODY_BYTES} are taken")
        with self._door.intake.hold(len(data)) as held:
            held.grow(len(data))
            return await self._door.intake.read(BodyKind.GENERATE, data)

    async def cancel(self, request: CancelRequest, context: "Context") -> CancelReply:
        """Cancel a request of the caller's tenant; without keys, anybody's."""
        call = self._call(CANCEL.name, context)
        async with self._following(call, context):
            tenant = self._tenant(context)
            call.tenant = tenant or ""
            return CancelReply(await self._door.cancel(request.request, tenant))

    async def info(self, request: InfoRequest, context: "Context") -> InfoReply:
        """What is served here."""
        call = self._call(INFO.name, context)
        async with self._following(call, context):
            call.tenant = self._tenant(context) or ""
            model = self._door.model
            return InfoReply(
                model.name, model.max_positions, model.vocabulary, dunlin.__version__, self._monitor_endpoint()
            )

    def _tenant(self, context: "Context") -> str | None:
        return self._callers.tenant(_authorization(_metadata(context)))

    # --- what becomes of a call ---

    @asynccontextmanager
    async def _following(self, call: DoorCall, context: "Context") -> AsyncIterator[None]:
        """Say how the call ended (CANCELLED: its client left), and abort it for what a door may raise."""
        status = grpc.StatusCode.CANCELLED
        refusal: Refusal | None = None
        try:
            yield
            status = grpc.StatusCode.OK
        except BadField as error:
            call.failed("invalid", str(error))
            status = grpc.StatusCode.INVALID_ARGUMENT
            refusal = status, str(error), ()
        except DoorError as error:
            call.failed(error.kind, error.detail)
            status, _, _ = refusal = _refusal(error)
        except Exception as error:
            call.failed("internal", str(error))
            status = grpc.StatusCode.UNKNOWN
            raise
        finally:
            self._door.calls.ended(call, status.name)
        if refusal is not None:
            await context.abort(*refusal)

    def _gate(self, method: str, metadata: Mapping[str, Any]) -> Refusal | None:
        try:
            self._callers.tenant(_authorization(metadata))
        except DoorError as error:
            call = self._call_of(method, metadata, _operation(method))
            call.failed(error.code.name.lower(), error.detail)
            self._door.calls.ended(call, CODES[error.code].name)
            return _refusal(error)
        return None

    def _refused(self, method: str, context: "Context", status: grpc.StatusCode, detail: str) -> None:
        """Its certificate is of the wrong role, or its request is none."""
        call = self._call(method, context, _operation(method))
        call.failed("malformed" if status is grpc.StatusCode.INVALID_ARGUMENT else "forbidden", detail)
        self._door.calls.ended(call, status.name)

    def _call(self, method: str, context: "Context", operation: str = "") -> DoorCall:
        call = self._call_of(method, _metadata(context), operation)
        call.client = host_of(context.peer())
        return call

    def _call_of(self, method: str, metadata: Mapping[str, Any], operation: str) -> DoorCall:
        return DoorCall(
            NAME,
            method,
            self._door.clock(),
            operation,
            target=method,
            agent=str(metadata.get("user-agent", "")),
            trace=_trace_of(metadata),
        )

    async def _stream(self, context: "Context", client: Address, stream: Stream, prompt_tokens: int) -> None:
        try:
            await context.write(GenerateEvent(stream.request, prompt_tokens=prompt_tokens, seed=stream.seed))
            finish = Finish.RUNNING
            while finish is Finish.RUNNING:
                piece = await stream.next_within(BEAT_S) or Piece()
                await context.write(_event_of(stream.request, piece, prompt_tokens))
                finish = piece.finish
        finally:
            self._door.close(client)


async def _beating(context: "Context", work: Coroutine[Any, Any, R]) -> R:
    """The work's result, with a sign of life to the client as long as it takes."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait((task,), timeout=BEAT_S))[0]:
            await context.write(GenerateEvent(""))
        return task.result()
    finally:
        task.cancel()


def _refusal(error: DoorError) -> Refusal:
    after = ((RETRY_AFTER, f"{error.retry_after_s:g}"),) if error.retry_after_s else ()
    return CODES[error.code], error.detail, (*after, (REASON, error.code.name.lower()))


def _metadata(context: "Context") -> dict[str, Any]:
    return dict(context.invocation_metadata() or ())


def _authorization(metadata: Mapping[str, Any]) -> str | None:
    found = metadata.get("authorization")
    return found if isinstance(found, str) else None


def _operation(method: str) -> str:
    """What a call generates whose request was not read."""
    return COMPLETION if method == GENERATE.name else ""


def host_of(peer: str) -> str:
    """The client's host out of gRPC's `ipv4:HOST:PORT`, or `ipv6:%5BHOST%5D:PORT`."""
    return unquote(peer.partition(":")[2].rpartition(":")[0]).strip("[]")


def _trace_of(metadata: Mapping[str, Any]) -> str:
    given = metadata.get(TRACEPARENT)
    return valid(given) if isinstance(given, str) else ""


def _event_of(request: str, piece: Piece, prompt_tokens: int) -> GenerateEvent:
    return GenerateEvent(
        request,
        piece.text,
        piece.tokens,
        piece.logprobs,
        piece.top_count,
        piece.top_token,
        piece.top_logprob,
        piece.finish,
        prompt_tokens,
        piece.detail,
        cached_tokens=piece.cached_tokens,
    )
