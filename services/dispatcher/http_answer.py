"""One OpenAI request from its checked fields to its last byte. Several choices are several requests at the core."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from dunlin.effects import Address
from dunlin.messages.types import I32, Finish
from dunlin.telemetry.context import valid
from services.dispatcher.again import NEW, Again
from services.dispatcher.door import Door, Part
from services.dispatcher.http_errors import HttpError, described, ending_error, not_found
from services.dispatcher.openai_reply import ChatReply, CompletionReply, usage
from services.dispatcher.openai_request import Asked
from services.dispatcher.refusals import DoorError
from services.dispatcher.rendering import Piece
from services.dispatcher.stream import Stream

NAME = "http"
GOOD = (Finish.RUNNING, Finish.STOP, Finish.LENGTH)
SSE = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


class Answer:
    """Serves one `Asked`. Owns its streams: they are closed however the answer ends, also when the client is gone."""

    def __init__(
        self,
        door: Door,
        asked: Asked,
        kind: type[CompletionReply] | type[ChatReply],
        created: int,
        again: Again = NEW,
    ) -> None:
        self._door = door
        self._asked = asked
        self._kind = kind
        self._created = created
        self._again = again
        self._prompt_tokens = 0
        self._completion_tokens = 0
        self._cached_tokens: dict[int, int] = {}

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """The response.

        Raises:
            DoorError, BadField, HttpError: before the first byte; later errors travel in the stream.
        """
        self._check_model()
        prompts = [await self._door.prompts.tokens_of(prompt) for prompt in self._asked.prompts]
        self._prompt_tokens = sum(len(tokens) for tokens in prompts)
        async with self._opened(prompts, valid(request.headers.get("traceparent"))) as streams:
            reply = self._reply(streams)
            if self._asked.streams:
                return await self._stream(request, streams, reply)
            pieces = await _together([self._whole(index, stream) for index, stream in enumerate(streams)])
            return web.json_response(reply.whole(pieces, self._usage()), headers=_named(streams))

    def _check_model(self) -> None:
        name = self._asked.model
        if name is not None and name != self._door.model.name:
            text = f"the model {name!r} does not exist here; {self._door.model.name!r} is served"
            raise not_found(text, "model", "model_not_found")

    @asynccontextmanager
    async def _opened(self, prompts: list[I32], trace: str) -> AsyncIterator[list[Stream]]:
        # One seed for all choices: they differ by their number, and the whole can be repeated.
        settings = self._door.with_seed(self._asked.settings, self._again)
        opened: list[tuple[Address, Stream]] = []
        try:
            for tokens in prompts:
                for choice in range(self._asked.choices):
                    part = Part(len(opened), len(prompts) * self._asked.choices, self._call_tokens(), trace)
                    opened.append(await self._door.open(tokens, settings, NAME, choice, part, self._again))
            yield [stream for _, stream in opened]
        finally:
            for client, _ in opened:
                self._door.close(client)

    def _call_tokens(self) -> int:
        return self._prompt_tokens * self._asked.choices

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
        self._count(index, whole)
        return whole

    async def _stream(
        self, request: web.Request, streams: list[Stream], reply: CompletionReply | ChatReply
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={**SSE, **_named(streams)})
        await response.prepare(request)
        lines = _Lines(response, self._asked.wants_usage)
        try:
            await _together([self._follow(index, stream, reply, lines) for index, stream in enumerate(streams)])
        except (HttpError, DoorError) as error:
            await lines.write(described(error).body)
            return response
        if self._asked.wants_usage:
            await lines.write(reply.last(self._usage()))
        await lines.done()
        return response

    async def _follow(self, index: int, stream: Stream, reply: CompletionReply | ChatReply, lines: "_Lines") -> None:
        for chunk in reply.first(index):
            await lines.write(chunk)
        finish = Finish.RUNNING
        while finish is Finish.RUNNING:
            piece = await stream.next()
            finish = piece.finish
            if finish not in GOOD:
                raise ending_error(finish, piece.detail)
            self._count(index, piece)
            if self._says_something(piece):
                await lines.write(reply.chunk(index, piece))

    def _says_something(self, piece: Piece) -> bool:
        """Tokens whose text is still held back make a chunk only for their log-probabilities."""
        wants = self._asked.settings.sampling.logprobs is not None
        return bool(piece.text) or piece.finish is not Finish.RUNNING or wants

    def _count(self, index: int, piece: Piece) -> None:
        """Count tokens for the usage; a prompt counts once, with what its first choice found cached."""
        self._completion_tokens += len(piece.tokens)
        if index % self._asked.choices == 0:
            self._cached_tokens[index] = max(piece.cached_tokens, self._cached_tokens.get(index, 0))

    def _usage(self) -> dict[str, Any]:
        return usage(self._prompt_tokens, self._completion_tokens, sum(self._cached_tokens.values()))


class _Lines:
    """The event stream. While a slow client blocks a write, pieces merge behind it."""

    def __init__(self, response: web.StreamResponse, wants_usage: bool) -> None:
        self._response = response
        self._wants_usage = wants_usage
        self._lock = asyncio.Lock()

    async def write(self, chunk: dict[str, Any]) -> None:
        if self._wants_usage and "error" not in chunk:
            chunk.setdefault("usage", None)
        async with self._lock:
            await self._response.write(b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n")

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
    return {"X-Request-Id": ",".join(stream.request for stream in streams)}
