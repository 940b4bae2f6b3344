"""The gateway between the public doors and the core: submits requests, streams their output, cancels and closes them.

Each open request has a client address and a `ResponseStream`. Knows neither HTTP nor gRPC, and decides nothing about
placement.
"""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count

from dunlin.effects import Address, Message
from dunlin.limits import InvalidField, check_vocabulary
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
"""Tokens of a resumed request that are detokenised in one turn of the event loop."""


@dataclass(frozen=True, slots=True)
class CallPart:
    """One request's place in its call: number `index` of `requests`, whose prompts have `tokens` tokens in all.

    The requests of a call are submitted one right after the other. `call` is the door's record of the call.
    """

    index: int = 0
    requests: int = 1
    tokens: int = 0
    call: DoorCall | None = None


SINGLE_REQUEST = CallPart()
NO_MARKS: Mapping[int, str] = {}


class RequestGateway:
    """Owns the response streams of this process's clients. `servers` maps each door's name to its HOST:PORT."""

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
        retry: RetryIdentity = NEW_REQUEST,
        shown: Mapping[int, str] = NO_MARKS,
    ) -> tuple[Address, ResponseStream]:
        """Submit a request to the core and wait until it is admitted.

        Args:
            tokens: the prompt.
            settings: checked settings.
            door: the door's name, with which the client's address begins.
            choice: the number of the choice, which tells apart the samples of one prompt.
            part: its place in the call.
            retry: its idempotency key, and what it resumes.
            shown: special tokens that have a text in the output, and that text.

        Returns:
            The client's address, which the caller must `close`, and the stream of its output.

        Raises:
            InvalidField: a setting names a token that the model does not have.
            DoorError: the request does not fit the model, or the core refused it.
        """
        check_vocabulary(settings.sampling, settings.stop_ids, self.model.vocabulary)
        self.prompts.check_length(tokens, settings.max_tokens)
        self.prompts.check_received(tokens, retry.resume_tokens)
        _check_scored(settings, retry, len(tokens))
        output = OutputProcessor(
            self.model.tokenizer.detokenizer(tokens), settings.stops, settings.sampling.min_tokens, shown
        )
        stopped = await _skip_received(output, retry.resume_tokens)
        if self._is_shut:
            raise DoorError(RejectionCode.UNAVAILABLE, "this dispatcher is stopping", retry_after_s=1.0)
        call = part.call or DoorCall(door, "", self.clock())
        submit = self._submit_message(tokens, settings, choice, part, retry, call)
        client = Address("client", f"{door}-{next(self._numbers)}")
        metrics = RequestMetrics(self.metrics, call, len(tokens), self.clock)

        def abort() -> None:
            self._host.deliver(client, Abort(FinishReason.STOP))

        stream = self._streams[client] = ResponseStream(output, metrics, abort, submit)
        self._host.attach(client, stream)
        try:
            self._host.deliver(client, submit)
            if stopped:
                abort()
            await stream.wait_admitted()
        except BaseException as error:
            # The core records its own refusals.
            call.is_recorded = isinstance(error, DoorError) and not stream.is_abandoned
            self.close(client)
            raise
        return client, stream

    def close(self, client: Address) -> None:
        """Detach the client's address from the core, which cancels the request if it still runs."""
        stream = self._streams.pop(client, None)
        if stream is None or not stream.is_abandoned:
            self._host.detach(client, "the client is gone")

    async def cancel(self, request: str, tenant: str | None = None) -> bool:
        """Cancel a request by its public id, only one of `tenant` if given; whether it was running or queued."""
        client = Address("client", f"cancel-{next(self._numbers)}")
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._host.attach(client, _CancelOutlet(answer))
        try:
            self._host.deliver(client, CancelById(request, tenant))
            return await answer
        finally:
            self.close(client)

    def with_seed(self, settings: RequestSettings, retry: RetryIdentity = NEW_REQUEST) -> RequestSettings:
        """The settings with a seed: the client's, one derived from the idempotency key, or a random one.

        With a fixed seed, a later attempt at another instance samples the same tokens.
        """
        if settings.seed is not None:
            return settings
        seed = derived_seed(settings.tenant, retry.idempotency_key) if retry.idempotency_key else secrets.randbits(63)
        return replace(settings, seed=seed)

    def shut_down(self, survivors: str = "") -> None:
        """Refuse new requests, end the open ones with an error, and end the helper processes.

        Requests of the door `survivors`, and those with an idempotency key, run on: another dispatcher can adopt them.
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
        self, tokens: I32, settings: RequestSettings, choice: int, part: CallPart, retry: RetryIdentity, call: DoorCall
    ) -> Submit:
        seeded = self.with_seed(settings, retry)
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
            key=retry.resume_request,
            received=retry.resume_tokens,
            idempotency=f"{retry.idempotency_key}/{part.index}" if retry.idempotency_key else "",
            digest=request_digest(tokens, seeded, choice, part.requests) if retry.idempotency_key else b"",
            trace=call.trace,
            call_index=part.index,
            call_requests=part.requests,
            call_tokens=part.tokens,
            origin=self.calls.origin(call),
            rises_after_s=call.rises_after_s,
            ttft_objective_s=seeded.ttft_objective_s,
            tpot_objective_s=seeded.tpot_objective_s,
            scored=retry.resume_scored,
            adapter=seeded.adapter,
        )


def _check_scored(settings: RequestSettings, retry: RetryIdentity, prompt_tokens: int) -> None:
    most = max(0, prompt_tokens - 1) if settings.sampling.prompt_logprobs is not None else 0
    if retry.resume_scored > most:
        raise InvalidField("resume_scored", f"is {retry.resume_scored}: there are {most} log-probabilities of a prompt")


async def _skip_received(output: OutputProcessor, received: I32) -> bool:
    """Process the tokens that the client has, in slices; whether a stop string ended their text."""
    for start in range(0, len(received), RESUMED_TOKENS_AT_ONCE):
        if start:
            await asyncio.sleep(0)
        if output.skip_received(received[start : start + RESUMED_TOKENS_AT_ONCE]):
            return True
    return False


class _CancelOutlet:
    """The outlet of a client address that waits for one `CancelResult`."""

    def __init__(self, answer: "asyncio.Future[bool]") -> None:
        self._answer = answer

    def send(self, message: Message) -> bool:
        if isinstance(message, CancelResult) and not self._answer.done():
            self._answer.set_result(message.found)
        return True

    def close(self, reason: str) -> None:
        if not self._answer.done():
            self._answer.set_result(False)
