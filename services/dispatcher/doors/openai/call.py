"""One call of OpenAI's API at the gateway: each choice of each prompt is a request of its own at the core.

Answered whole here, for the HTTP door and for the lines of batches; `doors/http/responder.py` streams. Knows no HTTP
server.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from dunlin.effects import Address
from dunlin.messages.types import I32, FinishReason
from services.dispatcher.doors.calls import DoorCall
from services.dispatcher.doors.gateway import CallPart, RequestGateway
from services.dispatcher.doors.generation.idempotency import NEW_REQUEST, RetryIdentity
from services.dispatcher.doors.generation.output import OutputPiece
from services.dispatcher.doors.openai.errors import finish_error, not_found
from services.dispatcher.doors.openai.prompt_reply import AnsweredPrompts
from services.dispatcher.doors.openai.reply import ChatReply, CompletionReply, Json
from services.dispatcher.doors.openai.request import ParsedRequest
from services.dispatcher.doors.openai.usage import CallUsage
from services.dispatcher.doors.response_stream import ResponseStream
from services.dispatcher.doors.tools.call_parser import ToolCallParser

GOOD_FINISHES = (FinishReason.RUNNING, FinishReason.STOP, FinishReason.LENGTH)
INLINE_LOGPROB_TOKENS = 100
"""Up to so many tokens with log-probabilities are encoded as JSON on the event loop, more in a thread."""
STRICT_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False)
"""An encoder that raises ValueError for NaN and infinity, which are not JSON."""


class OpenAICall:
    """One `ParsedRequest`, whose `prompts` come as tokens, through the door named `door`.

    `kind` makes the response bodies; `created` is in Unix seconds. `usage` counts the tokens that came.
    """

    def __init__(
        self,
        gateway: RequestGateway,
        request: ParsedRequest,
        prompts: Sequence[I32],
        kind: type[CompletionReply] | type[ChatReply],
        created: int,
        door: str,
        retry: RetryIdentity = NEW_REQUEST,
    ) -> None:
        self.request = request
        self.usage = CallUsage(list(map(len, prompts)), request.choices)
        self._gateway = gateway
        self._prompts = prompts
        self._kind = kind
        self._created = created
        self._door = door
        self._retry = retry

    @property
    def wants_logprobs(self) -> bool:
        """Whether the client asked for log-probabilities."""
        return self.request.settings.sampling.logprobs is not None

    @asynccontextmanager
    async def submitted(self, call: DoorCall) -> AsyncIterator[list[ResponseStream]]:
        """The streams of all its requests, admitted; they are closed however it ends.

        Raises:
            DoorError, InvalidField: a request was refused.
            HttpError: the request names another model.
        """
        self._check_model()
        call.prompt_tokens = sum(map(len, self._prompts))
        # One seed for all choices, whose numbers make their samples differ: the whole answer can be repeated.
        settings = self._gateway.with_seed(self.request.settings, self._retry)
        call_tokens = sum(map(len, self._prompts)) * self.request.choices
        shown = self._gateway.model.shown_marks() if self.request.tools is not None else {}
        opened: list[tuple[Address, ResponseStream]] = []
        try:
            for tokens in self._prompts:
                for choice in range(self.request.choices):
                    if opened:
                        await asyncio.sleep(0)  # yield to the loop between up to 128 long prompts
                    part = CallPart(len(opened), len(self._prompts) * self.request.choices, call_tokens, call)
                    opened.append(
                        await self._gateway.submit(tokens, settings, self._door, choice, part, self._retry, shown)
                    )
            yield [stream for _, stream in opened]
        finally:
            for client, _ in opened:
                self._gateway.close(client)

    def reply(self, streams: Sequence[ResponseStream]) -> CompletionReply | ChatReply:
        """What makes the response bodies."""
        model, tools = self._gateway.model, self.request.tools
        kind = model.tool_format if tools is not None else None
        most = None if tools is None or tools.is_parallel else 1
        parsers = [] if kind is None else [ToolCallParser(kind, stream.request, most) for stream in streams]
        named = tools is not None and bool(tools.named)
        name = self.request.model or model.name
        made = streams[0].request, self._created, name, model.tokenizer, self.request.settings.sampling.logprobs
        asked = self.request
        prompts = AnsweredPrompts(self._prompts, asked.choices, asked.echo, asked.prompt_best, model.tokenizer)
        return self._kind(*made, parsers, named, prompts if prompts.are_shown else None)

    async def whole(self, streams: Sequence[ResponseStream]) -> str:
        """The whole response body, as JSON.

        Raises:
            HttpError: a request failed after its admission.
            DoorError: a request was abandoned.
        """
        pieces = await gather([self._collect(index, stream) for index, stream in enumerate(streams)])
        reply = self.reply(streams)
        return await self.encoded(lambda: reply.full_reply(pieces, self.usage.total()), pieces)

    async def encoded(self, make: Callable[[], Json], pieces: Sequence[OutputPiece]) -> str:
        """The body that `make` returns of these pieces, as JSON; a large one is made in a thread.

        With log-probabilities a body can have millions of values: many tokens are in one piece for a client that reads
        slowly, and for one that joins a request late.
        """
        if self._tokens_to_encode(pieces) > INLINE_LOGPROB_TOKENS:
            # `encode` would hold the interpreter's lock from start to end; `iterencode` lets other threads run.
            return await asyncio.to_thread(lambda: "".join(STRICT_JSON.iterencode(make())))
        return STRICT_JSON.encode(make())

    def shown(self, index: int, piece: OutputPiece) -> OutputPiece:
        """A piece of choice `index`, counted, and without what its client does not want."""
        if self.request.no_text:
            end = FinishReason.RUNNING if piece.finish is FinishReason.RUNNING else FinishReason.LENGTH
            piece = OutputPiece(finish=end, cached_tokens=piece.cached_tokens, prompt=piece.prompt)
        self.usage.add(index, piece)
        return piece

    def _tokens_to_encode(self, pieces: Sequence[OutputPiece]) -> int:
        """Tokens that are spelled one by one in a body of these pieces."""
        generated = sum(len(piece.tokens) for piece in pieces) if self.wants_logprobs else 0
        scored = sum(len(piece.prompt) for piece in pieces if piece.prompt is not None)
        return generated + scored + (sum(map(len, self._prompts)) if self.request.echo else 0)

    def _check_model(self) -> None:
        if why := self._gateway.model.why_unknown(self.request.model):
            raise not_found(why, "model", "model_not_found")

    async def _collect(self, index: int, stream: ResponseStream) -> OutputPiece:
        whole = OutputPiece()
        while whole.finish is FinishReason.RUNNING:
            whole.extend(await stream.next())
        if whole.finish not in GOOD_FINISHES:
            raise finish_error(whole.finish, whole.detail)
        return self.shown(index, whole)


async def gather(coroutines: list[Any]) -> list[Any]:
    """The results of all; the first error cancels the rest and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]
