"""Answers one OpenAI request over HTTP, streamed or whole. `doors/openai/call.py` submits it."""

import asyncio

from aiohttp import web

from dunlin.messages.types import FinishReason
from services.dispatcher.admission.refusals import DoorError
from services.dispatcher.doors.generation.output import OutputPiece
from services.dispatcher.doors.http.call_middleware import REQUEST_ID_HEADER, call_of
from services.dispatcher.doors.http.errors import to_http_error
from services.dispatcher.doors.openai.call import GOOD_FINISHES, STRICT_JSON, OpenAICall, gather
from services.dispatcher.doors.openai.errors import HttpError, finish_error
from services.dispatcher.doors.openai.reply import ChatReply, CompletionReply, Json
from services.dispatcher.doors.response_stream import ResponseStream

SSE_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class OpenAIResponder:
    """Answers one `OpenAICall`."""

    def __init__(self, called: OpenAICall) -> None:
        self._called = called

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """The response, after its last byte was written if it is streamed.

        Raises:
            DoorError, InvalidField, HttpError: before the first byte; later errors are sent in the stream.
        """
        async with self._called.submitted(call_of(request)) as streams:
            if self._called.request.streams:
                return await self._stream(request, streams)
            # `call_middleware.py` adds its X-Request-Id
            return web.json_response(text=await self._called.whole(streams))

    async def _stream(self, request: web.Request, streams: list[ResponseStream]) -> web.StreamResponse:
        reply = self._called.reply(streams)
        response = web.StreamResponse(headers={**SSE_HEADERS, **_request_id_header(streams)})
        await response.prepare(request)
        lines = _EventStream(response)
        try:
            await gather([self._stream_choice(index, stream, reply, lines) for index, stream in enumerate(streams)])
        except (HttpError, DoorError) as error:
            await lines.write(STRICT_JSON.encode(to_http_error(error).body))
            return response
        if self._called.request.wants_usage:
            await lines.write(STRICT_JSON.encode(reply.usage_chunk(self._called.usage.total())))
        await lines.done()
        return response

    async def _stream_choice(
        self, index: int, stream: ResponseStream, reply: CompletionReply | ChatReply, lines: "_EventStream"
    ) -> None:
        piece = await stream.next()
        while not piece.tokens and piece.finish is FinishReason.RUNNING:  # log-probabilities of the prompt come first
            piece.extend(await stream.next())
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
        piece = self._called.shown(index, piece)
        if self._needs_chunk(piece):
            text = await self._called.encoded(lambda: self._with_usage(index, reply.chunk(index, piece)), [piece])
            await lines.write(text)

    def _with_usage(self, index: int, chunk: Json) -> Json:
        """The chunk with its usage: null in all but the last (OpenAI), or that of its choice so far (vLLM)."""
        if self._called.request.wants_running_usage:
            return {**chunk, "usage": self._called.usage.of_choice(index)}
        return {**chunk, "usage": None} if self._called.request.wants_usage else chunk

    def _needs_chunk(self, piece: OutputPiece) -> bool:
        """Whether a piece is worth a chunk: one without text is not, unless it ends or has log-probabilities."""
        if self._called.request.no_text:
            return piece.finish is not FinishReason.RUNNING
        return bool(piece.text) or piece.finish is not FinishReason.RUNNING or self._called.wants_logprobs


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


def _request_id_header(streams: list[ResponseStream]) -> dict[str, str]:
    return {REQUEST_ID_HEADER: ",".join(stream.request for stream in streams)}
