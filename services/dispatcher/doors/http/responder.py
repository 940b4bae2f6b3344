"""Answers one OpenAI request, streamed or whole. Each choice of each prompt is a request of its own at the core."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from dunlin.effects import Address
from dunlin.limits import brief_repr
from dunlin.messages.types import I32, FinishReason
from services.dispatcher.admission.refusals import DoorError
from services.dispatcher.doors.calls import DoorCall
from services.dispatcher.doors.gateway import CallPart, RequestGateway
from services.dispatcher.doors.generation.idempotency import NEW_REQUEST, RetryIdentity
from services.dispatcher.doors.generation.output import OutputPiece
from services.dispatcher.doors.http.call_middleware import DOOR_NAME, REQUEST_ID_HEADER, call_of
from services.dispatcher.doors.http.errors import HttpError, finish_error, not_found, to_http_error
from services.dispatcher.doors.openai.reply import ChatReply, CompletionReply, Json
from services.dispatcher.doors.openai.request import ParsedRequest
from services.dispatcher.doors.openai.usage import CallUsage
from services.dispatcher.doors.response_stream import ResponseStream

GOOD_FINISHES = (FinishReason.RUNNING, FinishReason.STOP, FinishReason.LENGTH)
INLINE_LOGPROB_TOKENS = 100
"""Up to so many tokens with log-probabilities are encoded as JSON on the event loop, more in a thread."""
STRICT_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
"""An encoder that raises ValueError for NaN and infinity, which are not JSON."""
SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class OpenAIResponder:
    """Answers one `ParsedRequest`, whose `prompts` come as tokens. Owns its streams, and closes them however it ends.

    `kind` makes the response bodies; `created` is in Unix seconds.
    """

    def __init__(
        self,
        gateway: RequestGateway,
        request: ParsedRequest,
        prompts: Sequence[I32],
        kind: type[CompletionReply] | type[ChatReply],
        created: int,
        retry: RetryIdentity = NEW_REQUEST,
    ) -> None:
        self._gateway = gateway
        self._request = request
        self._prompts = prompts
        self._kind = kind
        self._created = created
        self._retry = retry
        self._usage = CallUsage(list(map(len, prompts)), request.choices)

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """The response, after its last byte was written if it is streamed.

        Raises:
            DoorError, InvalidField, HttpError: before the first byte; later errors are sent in the stream.
        """
        call = call_of(request)
        self._check_model()
        call.prompt_tokens = sum(map(len, self._prompts))
        async with self._submitted(call) as streams:
            reply = self._reply(streams)
            if self._request.streams:
                return await self._stream(request, streams, reply)
            pieces = await _gather([self._collect(index, stream) for index, stream in enumerate(streams)])
            text = await self._encoded(lambda: reply.full_reply(pieces, self._usage.total()), pieces)
            return web.json_response(text=text)  # `call_middleware.py` adds its X-Request-Id

    async def _encoded(self, make: Callable[[], Json], pieces: Sequence[OutputPiece]) -> str:
        """The body that `make` returns of these pieces, as JSON; a large one is made in a thread.

        With log-probabilities a body can have millions of values: many tokens are in one piece for a client that reads
        slowly, and for one that joins a request late.
        """
        wants_logprobs = self._request.settings.sampling.logprobs is not None
        if wants_logprobs and sum(len(piece.tokens) for piece in pieces) > INLINE_LOGPROB_TOKENS:
            # `encode` would hold the interpreter's lock from start to end; `iterencode` lets other threads run.
            return await asyncio.to_thread(lambda: "".join(STRICT_JSON.iterencode(make())))
        return STRICT_JSON.encode(make())

    def _check_model(self) -> None:
        name = self._request.model
        if name is not None and name != self._gateway.model.name:
            text = f"the model {brief_repr(name)} does not exist here; {self._gateway.model.name!r} is served"
            raise not_found(text, "model", "model_not_found")

    @asynccontextmanager
    async def _submitted(self, call: DoorCall) -> AsyncIterator[list[ResponseStream]]:
        # One seed for all choices, whose numbers make their samples differ: the whole answer can be repeated.
        settings = self._gateway.with_seed(self._request.settings, self._retry)
        call_tokens = sum(map(len, self._prompts)) * self._request.choices
        opened: list[tuple[Address, ResponseStream]] = []
        try:
            for tokens in self._prompts:
                for choice in range(self._request.choices):
                    if opened:
                        await asyncio.sleep(0)  # yield to the loop between up to 128 long prompts
                    part = CallPart(len(opened), len(self._prompts) * self._request.choices, call_tokens, call)
                    opened.append(await self._gateway.submit(tokens, settings, DOOR_NAME, choice, part, self._retry))
            yield [stream for _, stream in opened]
        finally:
            for client, _ in opened:
                self._gateway.close(client)

    def _reply(self, streams: list[ResponseStream]) -> CompletionReply | ChatReply:
        wants = self._request.settings.sampling.logprobs is not None
        model = self._gateway.model
        return self._kind(streams[0].request, self._created, model.name, model.tokenizer, wants)

    async def _collect(self, index: int, stream: ResponseStream) -> OutputPiece:
        whole = OutputPiece()
        while whole.finish is FinishReason.RUNNING:
            whole.extend(await stream.next())
        if whole.finish not in GOOD_FINISHES:
            raise finish_error(whole.finish, whole.detail)
        self._usage.add(index, whole)
        return whole

    async def _stream(
        self, request: web.Request, streams: list[ResponseStream], reply: CompletionReply | ChatReply
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**SSE_HEADERS, **_request_id_header(streams)})
        await response.prepare(request)
        lines = _EventStream(response)
        try:
            await _gather([self._stream_choice(index, stream, reply, lines) for index, stream in enumerate(streams)])
        except (HttpError, DoorError) as error:
            await lines.write(STRICT_JSON.encode(to_http_error(error).body))
            return response
        if self._request.wants_usage:
            await lines.write(STRICT_JSON.encode(reply.usage_chunk(self._usage.total())))
        await lines.done()
        return response

    async def _stream_choice(
        self, index: int, stream: ResponseStream, reply: CompletionReply | ChatReply, lines: "_EventStream"
    ) -> None:
        piece = await stream.next()
        # With the first token, not before it: load tools measure the time to the first token by the first chunk.
        for chunk in reply.first_chunks(index):
            await lines.write(STRICT_JSON.encode(self._with_usage(index, chunk)))
        await self._write_piece(index, piece, reply, lines)
        while piece.finish is FinishReason.RUNNING:
            piece = await stream.next()
            await self._write_piece(index, piece, reply, lines)

    async def _write_piece(
        self, index: int, piece: OutputPiece, reply: CompletionReply | ChatReply, lines: "_EventStream"
    ) -> None:
        if piece.finish not in GOOD_FINISHES:
            raise finish_error(piece.finish, piece.detail)
        self._usage.add(index, piece)
        if self._needs_chunk(piece):
            await lines.write(await self._encoded(lambda: self._with_usage(index, reply.chunk(index, piece)), [piece]))

    def _with_usage(self, index: int, chunk: Json) -> Json:
        """The chunk with its usage: null in all but the last (OpenAI), or that of its choice so far (vLLM)."""
        if self._request.wants_running_usage:
            return {**chunk, "usage": self._usage.of_choice(index)}
        return {**chunk, "usage": None} if self._request.wants_usage else chunk

    def _needs_chunk(self, piece: OutputPiece) -> bool:
        """Whether a piece is worth a chunk: one without text is not, unless it ends or has log-probabilities."""
        wants = self._request.settings.sampling.logprobs is not None
        return bool(piece.text) or piece.finish is not FinishReason.RUNNING or wants


class _EventStream:
    """Writes server-sent events, one at a time. While a slow client blocks a write, later output is merged."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response
        self._lock = asyncio.Lock()

    async def write(self, chunk: str) -> None:
        async with self._lock:
            await self._response.write(b"data: " + chunk.encode() + b"\n\n")

    async def done(self) -> None:
        await self._response.write(b"data: [DONE]\n\n")
        await self._response.write_eof()


async def _gather(coroutines: list[Any]) -> list[Any]:
    """The results of all; the first error cancels the rest and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _request_id_header(streams: list[ResponseStream]) -> dict[str, str]:
    return {REQUEST_ID_HEADER: ",".join(stream.request for stream in streams)}
