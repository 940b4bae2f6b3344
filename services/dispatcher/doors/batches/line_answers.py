"""Answers one line of a batch: its request goes through the gateway as BATCH, its answer becomes a result line."""

import asyncio
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dunlin.limits import InvalidField
from dunlin.messages.door import RejectionCode
from dunlin.messages.types import FinishReason, RequestClass
from services.dispatcher.admission.refusals import DoorError
from services.dispatcher.batches.input_lines import BadLine, BatchLine
from services.dispatcher.batches.line_window import LineResult
from services.dispatcher.batches.records import JobRecord, TokenCounts
from services.dispatcher.doors.calls import CHAT, COMPLETION, DoorCall
from services.dispatcher.doors.gateway import RequestGateway
from services.dispatcher.doors.generation.idempotency import derived_seed
from services.dispatcher.doors.openai.call import OpenAICall
from services.dispatcher.doors.openai.errors import (
    FINISH_STATUSES,
    HttpError,
    invalid_field,
    refusal_error,
    unexpected_error,
)
from services.dispatcher.doors.openai.reply import ChatReply, CompletionReply
from services.dispatcher.doors.preprocess.helper import HelperLost
from services.dispatcher.doors.preprocess.preprocessor import BodyKind

_log = logging.getLogger(__name__)

DOOR_NAME = "batch"
ENDPOINTS: dict[str, tuple[BodyKind, type[CompletionReply] | type[ChatReply], str]] = {
    "/v1/chat/completions": (BodyKind.CHAT, ChatReply, CHAT),
    "/v1/completions": (BodyKind.COMPLETION, CompletionReply, COMPLETION),
}
"""The endpoints that a batch may be for."""
WAITED_FOR = (RejectionCode.FULL, RejectionCode.UNAVAILABLE, RejectionCode.QUOTA)
"""Refusals that say nothing of the line: it waits and is tried again, until its job ends."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 15.0
DEADLINE_PASSED = FINISH_STATUSES[FinishReason.DEADLINE][0]
"""The line had the time that it asked for."""


class LineAnswerer:
    """Answers the lines of all jobs. `clock` returns Unix seconds.

    In the last `urgent_share` of a job's completion window its lines may rise in the dispatcher's queue.
    """

    def __init__(
        self, gateway: RequestGateway, max_attempts: int, clock: Callable[[], float], urgent_share: float = 0.0
    ) -> None:
        self._gateway = gateway
        self._max_attempts = max_attempts
        self._clock = clock
        self._urgent_share = urgent_share

    async def answer(self, job: JobRecord, number: int, line: BatchLine) -> LineResult:
        """The result line of line `number`; waits as long as the cluster is full."""
        wait_s, attempts = FIRST_WAIT_S, 0
        while True:
            try:
                return await self._answer_once(job, number, line)
            except _NotNow as refused:
                wait_s = min(LONGEST_WAIT_S, max(refused.retry_after_s, 2 * wait_s))
            except HttpError as error:
                attempts += 1
                if error.status < 500 or error.status == DEADLINE_PASSED or attempts == self._max_attempts:
                    return error_result(job, number, line, error)
            await asyncio.sleep(wait_s)

    async def _answer_once(self, job: JobRecord, number: int, line: BatchLine) -> LineResult:
        operation = ENDPOINTS[job.endpoint][2]
        call = DoorCall(DOOR_NAME, job.endpoint, self._clock(), operation, target=job.endpoint, tenant=job.tenant)
        call.client, call.request_class, status = job.id, RequestClass.BATCH, 499
        if self._urgent_share > 0:
            call.rises_after_s = max(0.0, job.urgent_s(self._urgent_share) - self._clock())
        try:
            result = await self._generate(job, number, line, call)
            status = 200
            return result
        except DoorError as error:
            call.set_error(error.kind, error.detail)
            status = refusal_error(error).status
            # One that ends helper processes is no sign of a full cluster: waited for, it would end them for days.
            if error.code in WAITED_FOR and not isinstance(error, HelperLost):
                raise _NotNow(error.retry_after_s) from error
            raise refusal_error(error) from error
        except InvalidField as error:
            call.set_error("invalid", str(error))
            status = 400
            raise invalid_field(error) from error
        except HttpError as error:
            call.set_error(str(error.body["error"]["code"]), str(error))
            status = error.status
            raise
        except Exception as error:
            # As at the HTTP door: let through, it would end all lines of the job that run, in each run of the job.
            _log.exception("batch %s: an unexpected error over line %d", job.id, number)
            call.set_error("internal", str(error))
            failed = unexpected_error()
            status = failed.status
            raise failed from error
        finally:
            self._gateway.calls.record_end(call, status)

    async def _generate(self, job: JobRecord, number: int, line: BatchLine, call: DoorCall) -> LineResult:
        kind, reply, _ = ENDPOINTS[job.endpoint]
        preprocessed = await self._gateway.preprocess_pool.read(kind, bytes(line.body))
        request = preprocessed.request
        if request.streams:
            raise InvalidField("stream", "must be false in a batch")
        # The same at every dispatcher: a line that runs again after a crash says the same.
        seed = request.settings.seed
        seed = derived_seed(job.tenant, f"{job.id}/{number}") if seed is None else seed
        settings = replace(request.settings, request_class=RequestClass.BATCH, tenant=job.tenant, seed=seed)
        call.set_request(request.model or self._gateway.model.name, settings)
        preprocessed.raise_if_refused()
        request = replace(request, settings=settings)
        called = OpenAICall(self._gateway, request, preprocessed.prompts, reply, int(self._clock()), DOOR_NAME)
        async with called.submitted(call) as streams:
            body = await called.whole(streams)
            tokens = _tokens(called.usage.total())
            return LineResult(_result(job, number, line.custom_id, 200, streams[0].request, body), tokens=tokens)


class _NotNow(Exception):
    """The cluster cannot take the line now."""

    def __init__(self, retry_after_s: float) -> None:
        super().__init__("not now")
        self.retry_after_s = retry_after_s


def error_result(job: JobRecord, number: int, line: BatchLine, error: HttpError) -> LineResult:
    """The result of a line whose request was refused, or failed."""
    return LineResult(_result(job, number, line.custom_id, error.status, "", json.dumps(error.body)), is_error=True)


def bad_line_result(job: JobRecord, number: int, bad: BadLine) -> LineResult:
    """The result of a line that is no request."""
    return _without_response(job, number, bad.custom_id, bad.code, f"line {number}: {bad.message}")


def unfinished_result(job: JobRecord, number: int, custom_id: str, code: str, message: str) -> LineResult:
    """The result of a line that was not answered before its job ended."""
    return _without_response(job, number, custom_id, code, message)


def _without_response(job: JobRecord, number: int, custom_id: str | None, code: str, message: str) -> LineResult:
    line: dict[str, Any] = {
        "id": _line_id(job, number),
        "custom_id": custom_id,
        "response": None,
        "error": {"code": code, "message": message, "line": number},
    }
    return LineResult(json.dumps(line).encode() + b"\n", is_error=True)


def _result(job: JobRecord, number: int, custom_id: str, status: int, request: str, body: str) -> bytes:
    """A line whose body is JSON already: it is not parsed again."""
    head = f'{{"id": "{_line_id(job, number)}", "custom_id": {json.dumps(custom_id)}, "response": {{'
    text = f'{head}"status_code": {status}, "request_id": {json.dumps(request)}, "body": {body}}}, "error": null}}\n'
    return text.encode(errors="replace")


def _line_id(job: JobRecord, number: int) -> str:
    return f"batch_req_{job.id.removeprefix('batch_')}_{number}"


def _tokens(usage: dict[str, Any]) -> TokenCounts:
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return TokenCounts(usage["prompt_tokens"], cached, usage["completion_tokens"])
