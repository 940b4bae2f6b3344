"""The client's exceptions, one for each thing that the caller can do about a failure. `__cause__` keeps the cause."""

from dunlin.messages.public import GenerateEvent
from dunlin.messages.types import FinishReason
from dunlin.wire.rpc.calls import CallFailed


class DunlinError(Exception):
    """Any failure of a call. `request` is the request's id if it was admitted, else empty."""

    def __init__(self, detail: str, request: str = "") -> None:
        super().__init__(detail)
        self.request = request


class InvalidRequest(DunlinError):
    """The request is invalid and was refused; the text names the field. Sending it again does not help."""


class PromptTooLong(InvalidRequest):
    """Prompt and `max_tokens` together are more than the model, or the cluster, can hold."""


class QueueFull(DunlinError):
    """The cluster is full. No work was spent; try again after `retry_after_s` seconds."""

    def __init__(self, detail: str, retry_after_s: float) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class QuotaExceeded(QueueFull):
    """The tenant has used up its quota, which the text names. No work was spent; try again after `retry_after_s`."""


class NotAuthenticated(DunlinError):
    """The dispatcher requires an API key, and got none or an unknown one."""


class NotAllowed(DunlinError):
    """The caller is authenticated, and may not do this."""


class Unavailable(DunlinError):
    """The request cannot be served: no dispatcher answers, or no instance is serving."""

    def __init__(self, detail: str, retry_after_s: float = 0.0) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(DunlinError):
    """The caller's `timeout_s` is over, or the client's `call_timeout_s` without an answer."""


class Cancelled(DunlinError):
    """The request was cancelled, by its caller or another client."""


class GenerationFailed(DunlinError):
    """The request was admitted and could not be finished."""


class ServerError(DunlinError):
    """The server failed by a fault of its own."""


NO_ANSWER = (Unavailable, DeadlineExceeded)
"""A dispatcher did not answer a call: it is out of reach, or hangs. Another one may."""


def error_from_call(failed: CallFailed, endpoint: str) -> DunlinError:
    """The error for a failed call to `endpoint`."""
    text = f"{endpoint}: {failed.detail}"
    match failed.status:
        case "INVALID_ARGUMENT" | "ALREADY_EXISTS" | "NOT_FOUND":
            return InvalidRequest(failed.detail)
        case "OUT_OF_RANGE":
            return PromptTooLong(failed.detail)
        case "RESOURCE_EXHAUSTED" if failed.retry_after_s is None and "message" in failed.detail.lower():
            return InvalidRequest(failed.detail)  # gRPC's own limit on a message's size
        case "RESOURCE_EXHAUSTED" if failed.reason == "quota":
            return QuotaExceeded(failed.detail, failed.retry_after_s or 0.0)
        case "RESOURCE_EXHAUSTED":
            return QueueFull(failed.detail, failed.retry_after_s or 0.0)
        case "UNAVAILABLE":
            return Unavailable(text, failed.retry_after_s or 0.0)
        case "UNAUTHENTICATED":
            return NotAuthenticated(text)
        case "PERMISSION_DENIED":
            return NotAllowed(text)
        case "DEADLINE_EXCEEDED":
            return DeadlineExceeded(text)
        case "CANCELLED":
            return Cancelled(text)
        case _:
            return ServerError(f"{text} ({failed.status})")


def raise_if_failed(event: GenerateEvent) -> None:
    """Raise the error of a request's last event, if it ended by error, deadline or cancellation."""
    errors: dict[FinishReason, type[DunlinError]] = {
        FinishReason.ERROR: GenerationFailed,
        FinishReason.DEADLINE: DeadlineExceeded,
        FinishReason.TOO_LONG: PromptTooLong,
        FinishReason.CANCELLED: Cancelled,
    }
    kind = errors.get(event.finish)
    if kind is not None:
        raise kind(event.detail or f"the request ended: {event.finish.name.lower()}", event.request)
