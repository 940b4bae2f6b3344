"""One OpenAI request from its checked fields to its last byte. Several choices are several requests at the core."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from dunlin.effects import Address
from dunlin.limits import shown
from dunlin.messages.types import I32, Finish
from services.dispatcher.again import NEW, Again
from services.dispatcher.calls import DoorCall
from services.dispatcher.door import Door, Part
from services.dispatcher.http_access import NAME, REQUEST_ID, call_of
from services.dispatcher.http_errors import HttpError, described, ending_error, not_found
from services.dispatcher.openai_reply import ChatReply, CompletionReply, Json
from services.dispatcher.openai_request import Asked
from services.dispatcher.openai_usage import CallUsage
from services.dispatcher.refusals import DoorError
from services.dispatcher.rendering import Piece
from services.dispatcher.stream import Stream

GOOD = (Finish.RUNNING, Finish.STOP, Finish.LENGTH)
FEW_TOKENS = 100
"""With log-probabilities, whose JSON is made at once."""
STRICT_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
"""What every client can read: a value that JSON has no number for raises ValueError."""
SSE = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Answer:
    """Serves one `Asked`. Owns its streams: they are closed however the answer ends, also when the client is gone."""

    def __init__(
        self,
        door: Door,
        asked: Asked,
        prompts: Sequence[I32],
        kind: type[CompletionReply] | type[ChatReply],
        created: int,
        again: Again = NEW,
    ) -> None:
        self._door = door
        self._asked = asked
        self._prompts = prompts
        self._kind = kind
        self._created = created
        self._again = again
        self._usage = CallUsage(list(map(len, prompts)), asked.choices)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """The response.

        Raises:
            DoorError, BadField, HttpError: before the first byte; later errors travel in the stream.
        """
        call = call_of(request)
        self._check_model()
        call.prompt_tokens = sum(map(len, self._prompts))
        async with self._opened(call) as streams:
            reply = self._reply(streams)
            if self._asked.streams:
                return await self._stream(request, streams, reply)
            pieces = await _together([self._whole(index, stream) for index, stream in enumerate(streams)])
            text = await self._encoded(lambda: reply.whole(pieces, self._usage.total()), pieces)
            return web.json_response(text=text)  # its X-Request-Id: http_access.py

    async def _encoded(self, made: Callable[[], Json], pieces: Sequence[Piece]) -> str:
        """What `made` returns, of these pieces, as JSON. With log-probabilities it can have millions of values; many
        tokens come in one piece to clients that read slowly, and to those that join a request late.
        """
        wants_logprobs = self._asked.settings.sampling.logprobs is not None
        if wants_logprobs and sum(len(piece.tokens) for piece in pieces) > FEW_TOKENS:
            # `iterencode` lets other threads go on.
            return await asyncio.to_thread(lambda: "".join(STRICT_JSON.iterencode(made())))
        return STRICT_JSON.encode(made())

    def _check_model(self) -> None:
        name = self._asked.model
        if name is not None and name != self._door.model.name:
            text = f"the model {shown(name)} does not exist here; {self._door.model.name!r} is served"
            raise not_found(text, "model", "model_not_found")

    @asynccontextmanager
    async def _opened(self, call: DoorCall) -> AsyncIterator[list[Stream]]:
        # One seed for all choices: they differ by their number, and the whole can be repeated.
        settings = self._door.with_seed(self._asked.settings, self._again)
        call_tokens = sum(map(len, self._prompts)) * self._asked.choices
        opened: list[tuple[Address, Stream]] = []
        try:
            for tokens in self._prompts:
                for choice in range(self._asked.choices):
                    if opened:
                        await asyncio.sleep(0)  # others have their turn between 128 long prompts
                    part = Part(len(opened), len(self._prompts) * self._asked.choices, call_tokens, call)
                    opened.append(await self._door.open(tokens, settings, NAME, choice, part, self._again))
            yield [stream for _, stream in opened]
        finally:
            for client, _ in opened:
                self._door.close(client)

    def _reply(self, streams: list[Stream]) -> CompletionReply | ChatReply:
        wants = self._asked.settings.sampling.logprobs is not None
        model = self._door.model
        return self._kind(streams[0].request, self._created, model.name, model.tokenizer, wants)

    async def _whole(self, index: int, stream: Stream) -> Piece:
        whole = Piece()
        while whole.finish is Finish.RUNNING:
            whole.extend(await stream.next())
        if whole.finish not in GOOD:
            raise ending_error(whole.finish, whole.detail)
        self._usage.count(index, whole)
        return whole

    async def _stream(
        self, request: web.Request, streams: list[Stream], reply: CompletionReply | ChatReply
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**SSE, **_named(streams)})
        await response.prepare(request)
        lines = _Lines(response)
        try:
            await _together([self._follow(index, stream, reply, lines) for index, stream in enumerate(streams)])
        except (HttpError, DoorError) as error:
            await lines.write(STRICT_JSON.encode(described(error).body))
            return response
        if self._asked.wants_usage:
            await lines.write(STRICT_JSON.encode(reply.last(self._usage.total())))
        await lines.done()
        return response

    async def _follow(self, index: int, stream: Stream, reply: CompletionReply | ChatReply, lines: "_Lines") -> None:
        piece = await stream.next()
        # With the first token and not before it: load tools take the first chunk for the first token.
        for chunk in reply.first(index):
            await lines.write(STRICT_JSON.encode(self._with_usage(index, chunk)))
        await self._write(index, piece, reply, lines)
        while piece.finish is Finish.RUNNING:
            piece = await stream.next()
            await self._write(index, piece, reply, lines)

    async def _write(self, index: int, piece: Piece, reply: CompletionReply | ChatReply, lines: "_Lines") -> None:
        if piece.finish not in GOOD:
            raise ending_error(piece.finish, piece.detail)
        self._usage.count(index, piece)
        if self._says_something(piece):
            await lines.write(await self._encoded(lambda: self._with_usage(index, reply.chunk(index, piece)), [piece]))

    def _with_usage(self, index: int, chunk: Json) -> Json:
        """null in every chunk but the last, as OpenAI has it; or what its choice took so far, as vLLM does it."""
        if self._asked.wants_running_usage:
            return {**chunk, "usage": self._usage.so_far(index)}
        return {**chunk, "usage": None} if self._asked.wants_usage else chunk

    def _says_something(self, piece: Piece) -> bool:
        """Tokens whose text is still held back make a chunk only for their log-probabilities."""
        wants = self._asked.settings.sampling.logprobs is not None
        return bool(piece.text) or piece.finish is not Finish.RUNNING or wants


class _Lines:
    """The event stream. While a slow client blocks a write, pieces merge behind it."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response
        self._lock = asyncio.Lock()

    async def write(self, chunk: str) -> None:
        async with self._lock:
            await self._response.write(b"data: " + chunk.encode() + b"\n\n")

    async def done(self) -> None:
        await self._response.write(b"data: [DONE]\n\n")
        await self._response.write_eof()


async def _together(works: list[Any]) -> list[Any]:
    """All results; the first error ends the rest, and comes out as itself."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _named(streams: list[Stream]) -> dict[str, str]:
    return {REQUEST_ID: ",".join(stream.request for stream in streams)}
