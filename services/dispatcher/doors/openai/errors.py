"""The errors of OpenAI's API: a status and an error object for each refusal, at the HTTP door and in batches' results.

Knows no HTTP server: `doors/http/errors.py` makes responses of them.
"""

import math

from dunlin.limits import InvalidField
from dunlin.messages.door import RejectionCode
from dunlin.messages.types import FinishReason
from services.dispatcher.admission.refusals import DoorError
from services.dispatcher.doors.openai.reply import Json, error_body

INVALID_REQUEST, SERVER_ERROR = "invalid_request_error", "server_error"
REJECTIONS = {
    RejectionCode.INVALID: (400, INVALID_REQUEST, None),
    RejectionCode.TOO_LONG: (400, INVALID_REQUEST, "context_length_exceeded"),
    RejectionCode.FULL: (429, "rate_limit_error", "queue_full"),
    RejectionCode.UNAVAILABLE: (503, SERVER_ERROR, "unavailable"),
    RejectionCode.QUOTA: (429, "rate_limit_error", "rate_limit_exceeded"),
    RejectionCode.UNAUTHENTICATED: (401, INVALID_REQUEST, "invalid_api_key"),
    RejectionCode.FORBIDDEN: (403, "permission_error", "forbidden"),
    RejectionCode.NOT_FOUND: (404, INVALID_REQUEST, "not_found"),
    RejectionCode.CONFLICT: (422, INVALID_REQUEST, "idempotency_key_reused"),
}
FINISH_STATUSES = {
    FinishReason.ERROR: (500, SERVER_ERROR, "generation_failed"),
    FinishReason.DEADLINE: (504, SERVER_ERROR, "deadline_exceeded"),
    FinishReason.TOO_LONG: REJECTIONS[RejectionCode.TOO_LONG],
    FinishReason.CANCELLED: (499, INVALID_REQUEST, "cancelled"),
}


class HttpError(Exception):
    """An error response; `body` is OpenAI's error object."""

    def __init__(self, status: int, body: Json, headers: dict[str, str] | None = None) -> None:
        super().__init__(body["error"]["message"])
        self.status = status
        self.body = body
        self.headers = headers or {}


def finish_error(finish: FinishReason, detail: str) -> HttpError:
    """The error of a request that was admitted and then failed, by how it ended."""
    status, kind, code = FINISH_STATUSES[finish]
    body = error_body(detail or f"the request ended: {finish.name.lower()}", kind, None, code)
    # OpenAI's clients retry every 5xx by themselves. This request has been tried for as long as it is worth.
    return HttpError(status, body, {"x-should-retry": "false"})


def not_found(text: str, param: str | None = None, code: str | None = None) -> HttpError:
    """The error for an unknown model or path (404)."""
    return HttpError(404, error_body(text, INVALID_REQUEST, param, code))


def refusal_error(error: DoorError) -> HttpError:
    """The error of a refused request."""
    status, kind, code = REJECTIONS[error.code]
    headers = {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))} if status in (429, 503) else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return HttpError(status, error_body(error.detail, kind, error.field or None, code), headers)


def unexpected_error() -> HttpError:
    """The error (500) that shows nothing of what went wrong: it is logged."""
    return HttpError(500, error_body("an unexpected error in the server; its log says more", SERVER_ERROR))


def invalid_field(error: InvalidField) -> HttpError:
    """The error (400) of a field that is not allowed."""
    return HttpError(400, error_body(str(error), INVALID_REQUEST, error.name))
