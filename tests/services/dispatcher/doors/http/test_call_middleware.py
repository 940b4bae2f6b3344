"""The kinds of errors at the HTTP door: one word each, the same for metrics, access log and both doors."""

import pytest
from aiohttp import web

from dunlin.limits import InvalidField
from dunlin.messages.door import RejectionCode
from services.dispatcher.admission.refusals import DoorError, MalformedRequest
from services.dispatcher.doors.http.call_middleware import error_kind
from services.dispatcher.doors.openai.errors import HttpError, not_found
from services.dispatcher.doors.openai.reply import error_body


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (DoorError(RejectionCode.TOO_LONG, "x"), "too_long"),
        (DoorError(RejectionCode.FULL, "x"), "full"),
        (MalformedRequest("x"), "malformed"),
        (InvalidField("top_p", "x"), "invalid"),
        (not_found("x", "model", "model_not_found"), "unknown_model"),
        (not_found("x", None, "unknown_url"), "unknown_url"),
        (not_found("x"), "not_found"),
        (HttpError(418, error_body("x", "y")), "http_418"),
        (web.RequestPayloadError("x"), "malformed"),
        (web.HTTPRequestEntityTooLarge(1, 2), "too_large"),
        (web.HTTPConflict(), "http_409"),
        (RuntimeError("x"), "internal"),
    ],
)
def test_every_error_has_a_kind(error: Exception, kind: str) -> None:
    assert error_kind(error) == kind
