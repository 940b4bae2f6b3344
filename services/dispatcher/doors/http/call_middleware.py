"""Two middlewares around every HTTP request that keep its `DoorCall`: begin and end, status, error."""

from aiohttp import web
from aiohttp.typedefs import Handler

from dunlin.limits import InvalidField
from dunlin.telemetry.trace_context import valid_traceparent
from services.dispatcher.admission.refusals import DoorError
from services.dispatcher.doors.calls import CHAT, COMPLETION, DoorCall
from services.dispatcher.doors.gateway import RequestGateway
from services.dispatcher.doors.openai.errors import HttpError

DOOR_NAME = "http"
CALL_KEY = web.RequestKey("call", DoorCall)
CLIENT_CLOSED_REQUEST = 499
"""The status that is recorded for a request whose client left before the response (as in nginx)."""
REQUEST_ID_HEADER = "X-Request-Id"
OPERATIONS = {"/v1/completions": COMPLETION, "/v1/chat/completions": CHAT}
UNKNOWN_PATH = "other"
ERROR_KINDS = {
    400: "malformed",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    411: "malformed",
    413: "too_large",
    415: "malformed",
    422: "malformed",
}


class CallMiddleware:
    """The middlewares of one HTTP door."""

    def __init__(self, gateway: RequestGateway) -> None:
        self._gateway = gateway

    @web.middleware
    async def record_call(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The outermost middleware: begins the call's record and ends it, also when the client leaves (499)."""
        call = request[CALL_KEY] = self._call(request)
        status = CLIENT_CLOSED_REQUEST
        try:
            response = await handler(request)
            status = response.status
            if not response.prepared:
                _add_request_id(response, call)
        finally:
            self._gateway.calls.record_end(call, status)
        return response

    @web.middleware
    async def record_error(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Records the kind of an error. It lies inside the error middleware, where errors are still exceptions."""
        try:
            return await handler(request)
        except ConnectionError:  # a write to a client that has just left: the response goes nowhere
            return web.Response(status=CLIENT_CLOSED_REQUEST)
        except Exception as error:
            call_of(request).set_error(error_kind(error), _detail(error))
            raise

    def _call(self, request: web.Request) -> DoorCall:
        resource = request.match_info.route.resource
        return DoorCall(
            DOOR_NAME,
            resource.canonical if resource is not None else UNKNOWN_PATH,
            self._gateway.clock(),
            operation=OPERATIONS.get(request.path, ""),
            method=request.method,
            target=request.path,
            client=request.remote or "",
            user_agent=request.headers.get("User-Agent", ""),
            trace=valid_traceparent(request.headers.get("traceparent")),
        )


def call_of(request: web.Request) -> DoorCall:
    """The call's record, which `record_call` made."""
    return request[CALL_KEY]


def _add_request_id(response: web.StreamResponse, call: DoorCall) -> None:
    """Add the public ids of the call's admitted requests, also of those that failed."""
    ids = [metrics.request for metrics in call.request_metrics if metrics.request]
    if ids:
        response.headers[REQUEST_ID_HEADER] = ",".join(ids)


def error_kind(error: Exception) -> str:
    """The kind of an error in one word, for metrics and the access log; the same words at both doors."""
    match error:
        case DoorError():
            return error.kind
        case InvalidField():
            return "invalid"
        case HttpError():
            code = error.body["error"]["code"]
            return "unknown_model" if code == "model_not_found" else str(code or _of_status(error.status))
        case web.RequestPayloadError():
            return "malformed"
        case web.HTTPException():
            return _of_status(error.status)
    return "internal"


def _of_status(status: int) -> str:
    return ERROR_KINDS.get(status, f"http_{status}")


def _detail(error: Exception) -> str:
    return error.reason if isinstance(error, web.HTTPException) else str(error)
