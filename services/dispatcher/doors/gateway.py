"""What both public doors share: a client address and a stream for each request, opened, cancelled, closed.

Owns the open requests of this process's clients. Decides nothing about placement; knows neither HTTP nor gRPC.
"""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count

from dunlin.effects import Address, Message
from dunlin.limits import check_vocabulary
from dunlin.messages.door import Abort, CancelById, CancelResult, RejectionCode, Submit
from dunlin.messages.types import I32, FinishReason, i32
from dunlin.runtime.core_host import CoreHost
from services.dispatcher.admission.refusals import STOPPING_TEXT, DoorError
from services.dispatcher.doors.calls import CallLogSink, CallRecorder, DoorCall, RequestMetrics
from services.dispatcher.doors.generation.idempotency import NEW_REQUEST, RetryIdentity, derived_seed, request_digest
from services.dispatcher.doors.generation.output import OutputProcessor
from services.dispatcher.doors.generation.prompts import PromptEncoder
from services.dispatcher.doors.generation.served_model import ServedModel
from services.dispatcher.doors.generation.settings import RequestSettings
from services.dispatcher.doors.metrics import DoorMetrics
from services.dispatcher.doors.preprocess.pool import PreprocessLimits, PreprocessPool
from services.dispatcher.doors.response_stream import ResponseStream

RESUMED_TOKENS_AT_ONCE = 1_024
"""Tokens."""


@dataclass(frozen=True, slots=True)
class CallPart:
    """Which of a call's requests one is; `tokens` counts the prompts of all. They are opened right after each other.

    `call` is what the door knows of it.
    """

    index: int = 0
    requests: int = 1
    tokens: int = 0
    call: DoorCall | None = None


SINGLE_REQUEST = CallPart()


class RequestGateway:
    """Opens requests at the core and closes them. `servers` names the HOST:PORT of each door, for traces."""

    def __init__(
        self,
        host: CoreHost,
        model: ServedModel,
        metrics: DoorMetrics,
        limits: PreprocessLimits | None = None,
        log: CallLogSink | None = None,
        servers: Mapping[str, str] | None = None,
    ) -> None:
        self.model = model
        self.metrics = metrics
        self.clock = host.clock
        self.calls = CallRecorder(host, metrics, log, servers)
        self._host = host
        self._numbers = count(1)
        self.prompts = PromptEncoder(model)
        self.preprocess_pool = PreprocessPool(model, self.prompts, limits or PreprocessLimits())
        self._is_shut = False
        self._streams: dict[Address, ResponseStream] = {}

    async def submit(
        self,
        tokens: I32,
        settings: RequestSettings,
        door: str,
        choice: int = 0,
        part: CallPart = SINGLE_REQUEST,
        again: RetryIdentity = NEW_REQUEST,
    ) -> tuple[Address, ResponseStream]:
        """Submit a request and wait until it is admitted; `close` its address when done with it.

        Raises:
            BadField: a setting names a token that the model does not have.
            DoorError: it does not fit the model, or the core said no.
        """
        check_vocabulary(settings.sampling, settings.stop_ids, self.model.vocabulary)
        self.prompts.check_length(tokens, settings.max_tokens)
        self.prompts.check_received(tokens, again.resume_tokens)
        rendering = OutputProcessor(self.model.tokenizer.detokenizer(), settings.stops)
        stopped = await _skip_received(rendering, again.resume_tokens)
        if self._is_shut:
            raise DoorError(RejectionCode.UNAVAILABLE, "this dispatcher is stopping", retry_after_s=1.0)
        call = part.call or DoorCall(door, "", self.clock())
        submit = self._submit_message(tokens, settings, choice, part, again, call)
        client = Address("client", f"{door}-{next(self._numbers)}")
        watch = RequestMetrics(self.metrics, call, len(tokens), self.clock)

        def withdraw() -> None:
            self._host.deliver(client, Abort(FinishReason.STOP))

        stream = self._streams[client] = ResponseStream(rendering, watch, withdraw, submit)
        self._host.attach(client, stream)
        try:
            self._host.deliver(client, submit)
            if stopped:
                withdraw()
            await stream.wait_admitted()
        except BaseException as error:
            # The core's own refusal is recorded already.
            call.is_recorded = isinstance(error, DoorError) and not stream.is_abandoned
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
        self._host.attach(client, _CancelOutlet(answer))
        try:
            self._host.deliver(client, CancelById(request, tenant))
            return await answer
        finally:
            self.close(client)

    def with_seed(self, settings: RequestSettings, again: RetryIdentity = NEW_REQUEST) -> RequestSettings:
        """The same settings with a seed: the client's, or one drawn now, so that a later attempt samples alike."""
        if settings.seed is not None:
            return settings
        seed = derived_seed(settings.tenant, again.idempotency_key) if again.idempotency_key else secrets.randbits(63)
        return replace(settings, seed=seed)

    def shut_down(self, survivors: str = "") -> None:
        """Take no more, end what is open with a clear error, end the helper processes.

        Requests of the door `survivors`, and those with an idempotency key, are left to another dispatcher.
        """
        self._is_shut = True
        for client, stream in self._streams.items():
            if stream.is_idempotent or (survivors and client.name.startswith(f"{survivors}-")):
                stream.abandon()
        for client in self._host.peers("client"):
            if client not in self._streams or not self._streams[client].is_abandoned:
                self._host.detach(client, STOPPING_TEXT)
        self.preprocess_pool.shut_down()

    def _submit_message(
        self, tokens: I32, settings: RequestSettings, choice: int, part: CallPart, again: RetryIdentity, call: DoorCall
    ) -> Submit:
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
            key=again.resume_request,
            received=again.resume_tokens,
            idempotency=f"{again.idempotency_key}/{part.index}" if again.idempotency_key else "",
            digest=request_digest(tokens, seeded, choice, part.requests) if again.idempotency_key else b"",
            trace=call.trace,
            call_index=part.index,
            call_requests=part.requests,
            call_tokens=part.tokens,
            origin=self.calls.origin(call),
        )


async def _skip_received(rendering: OutputProcessor, received: I32) -> bool:
    """Whether a stop string ended the text that the client has. Others have their turn while it is long."""
    for start in range(0, len(received), RESUMED_TOKENS_AT_ONCE):
        if start:
            await asyncio.sleep(0)
        if rendering.skip_received(received[start : start + RESUMED_TOKENS_AT_ONCE]):
            return True
    return False


class _CancelOutlet:
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
