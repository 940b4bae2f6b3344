"""What both public doors share: a client address and a stream for each request, opened, cancelled, closed.

Owns the open requests of this process's clients. Decides nothing about placement; knows neither HTTP nor gRPC.
"""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count

from dunlin.effects import Address, Message
from dunlin.host import Host
from dunlin.limits import check_vocabulary
from dunlin.messages.door import CancelById, CancelResult, Rejection, Submit, Withdraw
from dunlin.messages.types import I32, Finish, i32
from services.dispatcher.again import NEW, Again, digest_of, drawn_seed
from services.dispatcher.calls import Calls, DoorCall, Log, Watch
from services.dispatcher.intake import Intake, IntakeLimits
from services.dispatcher.metrics import Metrics
from services.dispatcher.model import Model
from services.dispatcher.prompts import Prompts
from services.dispatcher.refusals import STOPPING, DoorError
from services.dispatcher.rendering import Rendering
from services.dispatcher.settings import Settings
from services.dispatcher.stream import Stream

SKIPPED_AT_ONCE = 1_024
"""Tokens."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which of a call's requests one is; `tokens` counts the prompts of all. They are opened right after each other.

    `call` is what the door knows of it.
    """

    index: int = 0
    requests: int = 1
    tokens: int = 0
    call: DoorCall | None = None


ALONE = Part()


class Door:
    """Opens requests at the core and closes them. `servers` names the HOST:PORT of each door, for traces."""

    def __init__(
        self,
        host: Host,
        model: Model,
        metrics: Metrics,
        limits: IntakeLimits | None = None,
        log: Log | None = None,
        servers: Mapping[str, str] | None = None,
    ) -> None:
        self.model = model
        self.metrics = metrics
        self.clock = host.clock
        self.calls = Calls(host, metrics, log, servers)
        self._host = host
        self._numbers = count(1)
        self.prompts = Prompts(model)
        self.intake = Intake(model, self.prompts, limits or IntakeLimits())
        self._is_shut = False
        self._streams: dict[Address, Stream] = {}

    async def open(
        self, tokens: I32, settings: Settings, door: str, choice: int = 0, part: Part = ALONE, again: Again = NEW
    ) -> tuple[Address, Stream]:
        """Submit a request and wait until it is admitted; `close` its address when done with it.

        Raises:
            BadField: a setting names a token that the model does not have.
            DoorError: it does not fit the model, or the core said no.
        """
        check_vocabulary(settings.sampling, settings.stop_ids, self.model.vocabulary)
        self.prompts.check_length(tokens, settings.max_tokens)
        self.prompts.check_received(tokens, again.received)
        rendering = Rendering(self.model.tokenizer.detokenizer(), settings.stops)
        stopped = await _skipped(rendering, again.received)
        if self._is_shut:
            raise DoorError(Rejection.UNAVAILABLE, "this dispatcher is stopping", retry_after_s=1.0)
        call = part.call or DoorCall(door, "", self.clock())
        submit = self._submit(tokens, settings, choice, part, again, call)
        client = Address("client", f"{door}-{next(self._numbers)}")
        watch = Watch(self.metrics, call, len(tokens), self.clock)

        def withdraw() -> None:
            self._host.deliver(client, Withdraw(Finish.STOP))

        stream = self._streams[client] = Stream(rendering, watch, withdraw, submit)
        self._host.attach(client, stream)
        try:
            self._host.deliver(client, submit)
            if stopped:
                withdraw()
            await stream.admitted()
        except BaseException as error:
            # The core's own refusal is recorded already.
            call.is_told = isinstance(error, DoorError) and not stream.is_abandoned
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
        """Take no more, end what is open with a clear error, end the helper processes.

        Requests of the door `survivors`, and those with an idempotency key, are left to another dispatcher.
        """
        self._is_shut = True
        for client, stream in self._streams.items():
            if stream.is_named or (survivors and client.name.startswith(f"{survivors}-")):
                stream.abandon()
        for client in self._host.peers("client"):
            if client not in self._streams or not self._streams[client].is_abandoned:
                self._host.detach(client, STOPPING)
        self.intake.shut()

    def _submit(self, tokens: I32, settings: Settings, choice: int, part: Part, again: Again, call: DoorCall) -> Submit:
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
            trace=call.trace,
            call_index=part.index,
            call_requests=part.requests,
            call_tokens=part.tokens,
            origin=self.calls.origin(call),
        )


async def _skipped(rendering: Rendering, received: I32) -> bool:
    """Whether a stop string ended the text that the client has. Others have their turn while it is long."""
    for start in range(0, len(received), SKIPPED_AT_ONCE):
        if start:
            await asyncio.sleep(0)
        if rendering.skip(received[start : start + SKIPPED_AT_ONCE]):
            return True
    return False


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
