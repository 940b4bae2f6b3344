"""What both public doors share: text to tokens, a client address per request, tokens to text.

Owns the open requests of this process's clients and the threads that tokenise long prompts. Decides nothing about
placement; knows neither HTTP nor gRPC.
"""

import asyncio
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count

from dunlin.effects import Address, Message
from dunlin.host import Host
from dunlin.limits import MOST_PROMPT_CHARACTERS
from dunlin.messages.door import Admitted, CancelById, CancelResult, Delta, Rejected, Rejection, Submit, Withdraw
from dunlin.messages.public import ChatMessage
from dunlin.messages.types import I32, Finish, i32
from dunlin.text.chat import ChatError
from services.dispatcher.again import NEW, Again, digest_of, drawn_seed
from services.dispatcher.metrics import Metrics, Watch
from services.dispatcher.model import Model
from services.dispatcher.rendering import Piece, Rendering
from services.dispatcher.settings import Settings

STOPPING = "the dispatcher is stopping"

Prompt = str | I32 | tuple[ChatMessage, ...]


class DoorError(Exception):
    """A request that was not taken. `field` names what is wrong with it, if it is the client's."""

    def __init__(self, code: Rejection, detail: str, field: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.field = field
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class DoorConfig:
    """Limits of the doors. Texts up to `inline_characters` are tokenised at once, longer ones in a thread."""

    inline_characters: int = 4_096
    most_characters: int = MOST_PROMPT_CHARACTERS
    tokenizer_threads: int = 2
    most_tokenizing: int = 64


@dataclass(frozen=True, slots=True)
class Part:
    """Which of a call's requests one is; `tokens` counts the prompts of all. They are opened right after each other.

    `trace` is the traceparent that came with the call, if it was a valid one.
    """

    index: int = 0
    requests: int = 1
    tokens: int = 0
    trace: str = ""


ALONE = Part()


class Pulse:
    """Ends a wait that lasts too long. One timer a stream and not one a token: it looks when the wait began."""

    def __init__(self, news: asyncio.Event) -> None:
        self.is_over = False
        self._news = news
        self._loop = asyncio.get_running_loop()
        self._since_s = 0.0
        self._armed = False
        self._waits = False

    def begin(self, wait_s: float) -> None:
        """Somebody waits from now on (or still), for `wait_s` seconds at most."""
        if not self._waits:
            self._waits = True
            self._since_s = self._loop.time()
        if not self._armed:
            self._arm(wait_s, wait_s)

    def end(self) -> None:
        """The wait is over."""
        self._waits = self.is_over = False

    def _arm(self, in_s: float, wait_s: float) -> None:
        self._armed = True
        self._loop.call_later(in_s, self._look, wait_s)

    def _look(self, wait_s: float) -> None:
        self._armed = False
        if not self._waits:
            return
        left_s = self._since_s + wait_s - self._loop.time()
        if left_s > 0:
            self._arm(left_s, wait_s)
        else:
            self.is_over = True
            self._news.set()


class Stream:
    """One request's way back: the outlet at its client address, and what a door reads.

    Never full: what waits here is bounded by the request's own `max_tokens`.
    """

    def __init__(self, rendering: Rendering, watch: Watch, withdraw: Callable[[], None], submit: Submit) -> None:
        self.request = ""
        self.seed = submit.sampling.seed
        self.is_named = bool(submit.idempotency)
        self.is_abandoned = False
        self._rendering = rendering
        self._watch = watch
        self._withdraw = withdraw
        self._rejected: Rejected | None = None
        self._news = asyncio.Event()
        self._pulse = Pulse(self._news)

    def send(self, message: Message) -> bool:
        """The host's side."""
        match message:
            case Delta():
                self._take(message)
            case Admitted(request):
                self.request = request
            case Rejected():
                self._rejected = message
        self._news.set()
        return True

    def close(self, reason: str) -> None:
        """The host's side: nothing more will come."""
        self._rendering.fail(f"the request was cut off: {reason or 'the dispatcher ended it'}")
        if self.request:
            self._watch.finished(Finish.CANCELLED)
        self._news.set()

    def abandon(self) -> None:
        """This process stops, and another one may go on with the request: nothing of it is ended."""
        self.is_abandoned = True
        self._news.set()

    async def admitted(self) -> None:
        """Wait for the answer of the core.

        Raises:
            DoorError: it said no.
        """
        while not self.request and self._rejected is None and self._rendering.finish is Finish.RUNNING:
            await self._wait()
        self._raise_if_abandoned()
        if self._rejected is not None:
            raise DoorError(self._rejected.code, self._rejected.detail, retry_after_s=self._rejected.retry_after_s)

    async def next(self) -> Piece:
        """The next piece, merged from everything that came since the last; the one with a finish is the last.

        Raises:
            DoorError: the request was abandoned.
        """
        while (piece := self._rendering.take()) is None:
            self._raise_if_abandoned()
            await self._wait()
        return piece

    async def next_within(self, wait_s: float) -> Piece | None:
        """`next`, or None if there is none for so long."""
        while (piece := self._rendering.take()) is None and not self._pulse.is_over:
            self._raise_if_abandoned()
            self._pulse.begin(wait_s)
            await self._wait()
        self._pulse.end()
        return piece

    async def _wait(self) -> None:
        self._news.clear()
        if not self.is_abandoned:
            await self._news.wait()

    def _raise_if_abandoned(self) -> None:
        if self.is_abandoned:
            raise DoorError(Rejection.UNAVAILABLE, STOPPING, retry_after_s=1.0)

    def _take(self, delta: Delta) -> None:
        if self._rendering.finish is not Finish.RUNNING:
            return
        self._watch.tokens(len(delta.tokens))
        if self._rendering.push(delta):
            self._withdraw()
        if self._rendering.finish is not Finish.RUNNING:
            self._watch.finished(self._rendering.finish)


class Door:
    """Opens requests at the core and closes them."""

    def __init__(self, host: Host, model: Model, metrics: Metrics, config: DoorConfig | None = None) -> None:
        self.model = model
        self.metrics = metrics
        self._host = host
        self._config = config or DoorConfig()
        self._numbers = count(1)
        self._threads = ThreadPoolExecutor(self._config.tokenizer_threads, thread_name_prefix="tokenizer")
        self._tokenizing = 0
        self._is_shut = False
        self._streams: dict[Address, Stream] = {}

    async def tokens_of(self, prompt: Prompt) -> I32:
        """The prompt's tokens. A long text is tokenised in a thread while the doors go on.

        Raises:
            DoorError: no such tokens, messages that the template refuses, too long, or too many long ones at once.
        """
        if isinstance(prompt, str):
            tokens = await self._encode(prompt, special=True)
        elif isinstance(prompt, tuple):
            tokens = await self._encode(self._rendered(prompt), special=False)
        else:
            self._check_length(prompt, None)
            tokens = self._known(prompt)
        if not tokens:
            raise DoorError(Rejection.INVALID, "the prompt is empty: send at least one token", "prompt")
        return tokens

    async def open(
        self, tokens: I32, settings: Settings, door: str, choice: int = 0, part: Part = ALONE, again: Again = NEW
    ) -> tuple[Address, Stream]:
        """Submit a request and wait until it is admitted; `close` its address when done with it.

        `trace` is the client's traceparent, if it sent a valid one.

        Raises:
            DoorError: it does not fit the model, or the core said no.
        """
        self._check_length(tokens, settings.max_tokens)
        if self._is_shut:
            raise DoorError(Rejection.UNAVAILABLE, "this dispatcher is stopping", retry_after_s=1.0)
        self._known(again.received)
        submit = self._submit(tokens, settings, choice, part, again)
        client = Address("client", f"{door}-{next(self._numbers)}")
        rendering = Rendering(self.model.tokenizer.detokenizer(), settings.stops)
        stopped = rendering.skip(again.received)
        watch = self.metrics.watch(door, len(tokens), self._host.clock)

        def withdraw() -> None:
            self._host.deliver(client, Withdraw(Finish.STOP))

        stream = self._streams[client] = Stream(rendering, watch, withdraw, submit)
        self._host.attach(client, stream)
        try:
            self._host.deliver(client, submit)
            if stopped:
                withdraw()
            await stream.admitted()
        except DoorError as error:
            self.metrics.refused(door, error.code)
            self.close(client)
            raise
        except BaseException:
            self.close(client)
            raise
        return client, stream

    def close(self, client: Address) -> None:
        """The client is done with its request or gone; whatever still runs for it is cancelled."""
        stream = self._streams.pop(client, None)
        if stream is None or not stream.is_abandoned:
            self._host.detach(client, "the client is gone")

    async def cancel(self, request: str, tenant: str | None = None) -> bool:
        """Cancel by public id, a request of `tenant` if one is given; whether there was such a request."""
        client = Address("client", f"cancel-{next(self._numbers)}")
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._host.attach(client, _Answer(answer))
        try:
            self._host.deliver(client, CancelById(request, tenant))
            return await answer
        finally:
            self.close(client)

    def with_seed(self, settings: Settings, again: Again = NEW) -> Settings:
        """The same settings with a seed: the client's, or one drawn now, so that a later attempt samples alike."""
        if settings.seed is not None:
            return settings
        seed = drawn_seed(settings.tenant, again.name) if again.name else secrets.randbits(63)
        return replace(settings, seed=seed)

    def shut(self, survivors: str = "") -> None:
        """Take no more, end what is open with a clear error, let go of the threads.

        Requests of the door `survivors`, and those with an idempotency key, are left to another dispatcher.
        """
        self._is_shut = True
        for client, stream in self._streams.items():
            if stream.is_named or (survivors and client.name.startswith(f"{survivors}-")):
                stream.abandon()
        for client in self._host.peers("client"):
            if client not in self._streams or not self._streams[client].is_abandoned:
                self._host.detach(client, STOPPING)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _submit(self, tokens: I32, settings: Settings, choice: int, part: Part, again: Again) -> Submit:
        seeded = self.with_seed(settings, again)
        assert seeded.seed is not None
        eos = () if settings.ignore_eos else self.model.eos_ids
        return Submit(
            tokens,
            settings.max_tokens,
            replace(settings.sampling, seed=seeded.seed, choice=choice),
            i32(dict.fromkeys((*eos, *settings.stop_ids))),
            settings.request_class,
            settings.tenant,
            settings.timeout_s,
            key=again.key,
            received=again.received,
            idempotency=f"{again.name}/{part.index}" if again.name else "",
            digest=digest_of(tokens, seeded, choice, part.requests) if again.name else b"",
            trace=part.trace,
            call_index=part.index,
            call_requests=part.requests,
            call_tokens=part.tokens,
        )

    def _check_length(self, tokens: I32, max_tokens: int | None) -> None:
        most = self.model.max_positions
        asked = len(tokens) + (max_tokens or 1)
        if asked > most:
            text = f"the model holds {most} tokens, and {len(tokens)} in the prompt"
            text += f" with {max_tokens} to generate" if max_tokens else " leave none to generate"
            raise DoorError(Rejection.TOO_LONG, f"{text} are {asked}: shorten the prompt or lower max_tokens")

    def _known(self, tokens: I32) -> I32:
        for token in tokens:
            if not 0 <= token < self.model.vocabulary:
                text = f"token id {token} is outside the vocabulary of {self.model.vocabulary}"
                raise DoorError(Rejection.INVALID, text, "prompt")
        return tokens

    def _rendered(self, messages: tuple[ChatMessage, ...]) -> str:
        try:
            return self.model.render(messages)
        except ChatError as error:
            raise DoorError(Rejection.INVALID, str(error), "messages") from error

    async def _encode(self, text: str, special: bool) -> I32:
        config = self._config
        if len(text) > config.most_characters:
            text = f"a prompt of {len(text)} characters; at most {config.most_characters} are taken"
            raise DoorError(Rejection.TOO_LONG, text)
        if len(text) <= config.inline_characters:
            return self._encode_now(text, special)
        if self._tokenizing >= config.most_tokenizing:
            text = f"{self._tokenizing} long prompts are being tokenised already, the most that may"
            raise DoorError(Rejection.FULL, text, retry_after_s=1.0)
        self._tokenizing += 1
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(self._threads, self._encode_now, text, special)
        job.add_done_callback(self._encoded)
        # Shielded: a client that leaves does not stop its thread, and counts until that is done.
        return await asyncio.shield(job)

    def _encoded(self, job: "asyncio.Future[I32]") -> None:
        self._tokenizing -= 1
        if not job.cancelled():
            job.exception()  # seen, in case nobody waits for it any more

    def _encode_now(self, text: str, special: bool) -> I32:
        try:
            return i32(self.model.tokenizer.encode(text, add_special_tokens=special))
        except (UnicodeEncodeError, TypeError) as error:  # lone surrogates, which JSON can spell
            raise DoorError(Rejection.INVALID, "the prompt is not valid Unicode text", "prompt") from error


class _Answer:
    """The outlet of a client that waits for one answer."""

    def __init__(self, answer: "asyncio.Future[bool]") -> None:
        self._answer = answer

    def send(self, message: Message) -> bool:
        if isinstance(message, CancelResult) and not self._answer.done():
            self._answer.set_result(message.found)
        return True

    def close(self, reason: str) -> None:
        if not self._answer.done():
            self._answer.set_result(False)
