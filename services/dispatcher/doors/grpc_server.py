"""The public gRPC endpoint: Generate, Cancel, Info. Translates between protobuf messages and the gateway."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

import grpc
import grpc.aio

import dunlin
from dunlin.effects import Address
from dunlin.limits import MOST_BODY_BYTES, InvalidField
from dunlin.messages.declare import Method
from dunlin.messages.door import RejectionCode
from dunlin.messages.public import (
    CancelReply,
    CancelRequest,
    GenerateEvent,
    InfoReply,
    InfoRequest,
)
from dunlin.messages.types import FinishReason
from dunlin.telemetry.trace_context import valid_traceparent
from dunlin.wire.metadata import metadata_values
from dunlin.wire.rpc.methods import CANCEL, GENERATE, INFO, REASON, RETRY_AFTER, Answer, Methods, Refusal
from services.dispatcher.admission.refusals import DoorError
from services.dispatcher.doors.authentication import Authenticator
from services.dispatcher.doors.calls import CHAT, COMPLETION, DoorCall
from services.dispatcher.doors.gateway import CallPart, RequestGateway
from services.dispatcher.doors.generation.output import OutputPiece
from services.dispatcher.doors.preprocess.preprocessor import BodyKind, Preprocessed
from services.dispatcher.doors.response_stream import ResponseStream

if TYPE_CHECKING:  # generic for the type checker alone
    Context = grpc.aio.ServicerContext[Any, Any]

R = TypeVar("R")

DOOR_NAME = "grpc"
KEEPALIVE_S = 1.0
"""Seconds between two events of a stream; the SDK takes a dispatcher that is silent for a few of these for stuck."""
PROMPT_LOGPROBS_AT_ONCE = 4_096
"""Prompt tokens whose log-probabilities are in one event: with all alternatives less than 1 MB."""
TRACEPARENT = "traceparent"
STATUS_CODES = {
    RejectionCode.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    RejectionCode.TOO_LONG: grpc.StatusCode.OUT_OF_RANGE,
    RejectionCode.FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RejectionCode.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    RejectionCode.QUOTA: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RejectionCode.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    RejectionCode.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    RejectionCode.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    RejectionCode.CONFLICT: grpc.StatusCode.ALREADY_EXISTS,
}


class GrpcDoor:
    """Answers clients over gRPC. `monitor_endpoint` returns the monitor's HOST:PORT, empty if none is known."""

    def __init__(
        self, gateway: RequestGateway, authenticator: Authenticator, monitor_endpoint: Callable[[], str]
    ) -> None:
        self._gateway = gateway
        self._authenticator = authenticator
        self._monitor_endpoint = monitor_endpoint

    def methods(self, more: Mapping[Method[Any, Any], Answer] | None = None) -> Methods:
        """The gRPC methods, for the service to serve, with `more` behind the same gate (batches)."""
        answers: dict[Method[Any, Any], Answer] = {GENERATE: self.generate, CANCEL: self.cancel, INFO: self.info}
        answers |= more or {}
        return Methods(answers, gate=self._authenticate, refused=self._refused, undecoded=(GENERATE,))

    async def generate(self, data: bytes, context: "Context") -> None:
        """Stream one request's events; the request is cancelled if its client leaves."""
        call = self._call(GENERATE.name, context, COMPLETION)
        async with self._recorded(call, context):
            call.tenant = self._tenant(context) or ""
            submitting = self._submit(data, call)
            client, stream, length = await _with_keepalive(context, submitting, lambda of: self._gateway.close(of[0]))
            await self._stream(context, client, stream, length)

    async def _submit(self, data: bytes, call: DoorCall) -> tuple[Address, ResponseStream, int]:
        preprocessed = await self._read(data)
        call.operation = CHAT if preprocessed.is_chat else COMPLETION
        settings = self._authenticator.settings_of(preprocessed.request.settings, call.tenant or None)
        model, named = self._gateway.model, preprocessed.request.model
        call.set_request(named or model.name, settings)
        if why := model.why_unknown(named):
            raise DoorError(RejectionCode.NOT_FOUND, why, "model")
        preprocessed.raise_if_refused()
        tokens = preprocessed.prompts[0]
        call.prompt_tokens = len(tokens)
        part = CallPart(call=call)
        opened = await self._gateway.submit(tokens, settings, DOOR_NAME, part=part, retry=preprocessed.retry)
        return *opened, len(tokens)

    async def _read(self, data: bytes) -> Preprocessed:
        if len(data) > MOST_BODY_BYTES:
            raise InvalidField("request", f"has {len(data)} bytes; at most {MOST_BODY_BYTES} are taken")
        with self._gateway.preprocess_pool.reserve_memory(len(data)) as memory:
            memory.grow(len(data))
            return await self._gateway.preprocess_pool.read(BodyKind.GENERATE, data)

    async def cancel(self, request: CancelRequest, context: "Context") -> CancelReply:
        """Cancel a request of the caller's tenant; where no keys are required, any request."""
        async with self.recorded(CANCEL, context) as tenant:
            return CancelReply(await self._gateway.cancel(request.request, tenant))

    async def info(self, request: InfoRequest, context: "Context") -> InfoReply:
        """The served model, its limits and adapters, and the monitor's endpoint."""
        async with self.recorded(INFO, context):
            model, endpoint = self._gateway.model, self._monitor_endpoint()
            limits = model.max_positions, model.vocabulary
            return InfoReply(model.name, *limits, dunlin.__version__, endpoint, tuple(model.adapters))

    def _tenant(self, context: "Context") -> str | None:
        return self._authenticator.authenticate(_authorization(_metadata(context)))

    # --- recording calls ---

    @asynccontextmanager
    async def recorded(self, method: Method[Any, Any], context: "Context") -> AsyncIterator[str | None]:
        """Around the answer of a call that generates nothing: the caller's tenant (None: no keys are required).

        The call is recorded; one that is refused inside is aborted with the status for it.
        """
        call = self._call(method.name, context)
        async with self._recorded(call, context):
            tenant = self._tenant(context)
            call.tenant = tenant or ""
            yield tenant

    @asynccontextmanager
    async def _recorded(self, call: DoorCall, context: "Context") -> AsyncIterator[None]:
        """Record how the call ended (CANCELLED: its client left), and abort it with the status of a refusal."""
        status = grpc.StatusCode.CANCELLED
        refusal: Refusal | None = None
        try:
            yield
            status = grpc.StatusCode.OK
        except InvalidField as error:
            call.set_error("invalid", str(error))
            status = grpc.StatusCode.INVALID_ARGUMENT
            refusal = status, str(error), ()
        except DoorError as error:
            call.set_error(error.kind, error.detail)
            status, _, _ = refusal = _refusal(error)
        except Exception as error:
            call.set_error("internal", str(error))
            status = grpc.StatusCode.UNKNOWN
            raise
        finally:
            self._gateway.calls.record_end(call, status.name)
        if refusal is not None:
            await context.abort(*refusal)

    def _authenticate(self, method: str, metadata: Mapping[str, Any]) -> Refusal | None:
        try:
            self._authenticator.authenticate(_authorization(metadata))
        except DoorError as error:
            call = self._call_of(method, metadata, _operation(method))
            call.set_error(error.code.name.lower(), error.detail)
            self._gateway.calls.record_end(call, STATUS_CODES[error.code].name)
            return _refusal(error)
        return None

    def _refused(self, method: str, context: "Context", status: grpc.StatusCode, detail: str) -> None:
        """Record a call that the service refused: a certificate of the wrong role, or a malformed request."""
        call = self._call(method, context, _operation(method))
        call.set_error("malformed" if status is grpc.StatusCode.INVALID_ARGUMENT else "forbidden", detail)
        self._gateway.calls.record_end(call, status.name)

    def _call(self, method: str, context: "Context", operation: str = "") -> DoorCall:
        call = self._call_of(method, _metadata(context), operation)
        call.client = host_of(context.peer())
        return call

    def _call_of(self, method: str, metadata: Mapping[str, Any], operation: str) -> DoorCall:
        return DoorCall(
            DOOR_NAME,
            method,
            self._gateway.clock(),
            operation,
            target=method,
            user_agent=str(metadata.get("user-agent", "")),
            trace=_trace_of(metadata),
        )

    async def _stream(self, context: "Context", client: Address, stream: ResponseStream, prompt_tokens: int) -> None:
        try:
            await context.write(GenerateEvent(stream.request, prompt_tokens=prompt_tokens, seed=stream.seed))
            finish = FinishReason.RUNNING
            while finish is FinishReason.RUNNING:
                piece = await stream.next_within(KEEPALIVE_S) or OutputPiece()
                for event in _events_of(stream.request, piece, prompt_tokens):
                    await context.write(event)
                finish = piece.finish
        finally:
            self._gateway.close(client)


async def _with_keepalive(context: "Context", work: Coroutine[Any, Any, R], give_back: Callable[[R], None]) -> R:
    """The result of `work`; while it takes, the client gets an empty event every `KEEPALIVE_S`.

    If the client leaves, the work is cancelled; `give_back` gets the result that it may have by then.
    """
    task = asyncio.ensure_future(work)

    def undo(ended: asyncio.Task[R]) -> None:
        if not ended.cancelled() and ended.exception() is None:
            give_back(ended.result())

    try:
        while not (await asyncio.wait((task,), timeout=KEEPALIVE_S))[0]:
            await context.write(GenerateEvent(""))
        return task.result()
    except BaseException:
        task.cancel()
        task.add_done_callback(undo)
        raise


def _refusal(error: DoorError) -> Refusal:
    after = ((RETRY_AFTER, f"{error.retry_after_s:g}"),) if error.retry_after_s else ()
    return STATUS_CODES[error.code], error.detail, (*after, (REASON, error.code.name.lower()))


def _metadata(context: "Context") -> dict[str, Any]:
    return metadata_values(context.invocation_metadata())


def _authorization(metadata: Mapping[str, Any]) -> str | None:
    found = metadata.get("authorization")
    return found if isinstance(found, str) else None


def _operation(method: str) -> str:
    """The operation of a call whose request was not parsed; empty: the method generates nothing."""
    return COMPLETION if method == GENERATE.name else ""


def host_of(peer: str) -> str:
    """The client's host out of gRPC's `ipv4:HOST:PORT`, or `ipv6:%5BHOST%5D:PORT`."""
    return unquote(peer.partition(":")[2].rpartition(":")[0]).strip("[]")


def _trace_of(metadata: Mapping[str, Any]) -> str:
    given = metadata.get(TRACEPARENT)
    return valid_traceparent(given) if isinstance(given, str) else ""


def _events_of(request: str, piece: OutputPiece, prompt_tokens: int) -> Iterator[GenerateEvent]:
    """The piece as an event, and before it its log-probabilities of the prompt: of a long one in several."""
    if piece.prompt is not None:
        for start in range(0, len(piece.prompt), PROMPT_LOGPROBS_AT_ONCE):
            part = piece.prompt.part(start, start + PROMPT_LOGPROBS_AT_ONCE)
            yield GenerateEvent(
                request,
                prompt_tokens=prompt_tokens,
                prompt_logprobs=part.logprob,
                prompt_ranks=part.rank,
                prompt_top_token=part.top_token,
                prompt_top_logprob=part.top_logprob,
            )
    yield _event_of(request, piece, prompt_tokens)


def _event_of(request: str, piece: OutputPiece, prompt_tokens: int) -> GenerateEvent:
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
