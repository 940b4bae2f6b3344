"""A dispatcher's doors ↔ its core, inside one process: requests already in tokens, with their limits checked.

The doors (gRPC, HTTP) own text, templates and stop strings; the core owns the request. Never crosses a wire.
"""

from array import array
from dataclasses import dataclass, field
from enum import IntEnum

from dunlin.effects import record
from dunlin.messages.lifecycle import Admitted, CallOrigin
from dunlin.messages.types import F32, I32, FinishReason, RequestClass, SamplingParams, f32, i32


class RejectionCode(IntEnum):
    """Why the door says no, in terms that each door turns into its own status."""

    INVALID = 0
    FULL = 1
    TOO_LONG = 2
    UNAVAILABLE = 3
    CONFLICT = 4
    QUOTA = 5
    UNAUTHENTICATED = 6
    FORBIDDEN = 7


@dataclass(frozen=True, slots=True)
class Submit:
    """A new request from a client's address. `timeout_s` None: no deadline.

    `max_tokens` None: what the context of the instance that gets it leaves. The door has drawn the seed where the
    client gave none. `trace` is the W3C traceparent that the client sent, empty if none.

    `key` is the public id of a request that goes on here after another dispatcher, "" for a new one; `received` are its
    tokens that the client has. `idempotency` and `digest` are as in `dunlin.messages.dispatch.Place`: a Submit with
    the idempotency of a request that runs, or ran lately, joins that one.

    It is number `call_index` of the `call_requests` that one call of the client makes, one right after the other, with
    `call_tokens` prompt tokens in all: the tenant's quota must hold for all of them, or none is taken. (Those of a call
    with an `idempotency` may have to wait for instances in between, and then each for itself finds the quota as it is.)
    """

    tokens: I32
    max_tokens: int | None
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_ids: I32 = field(default_factory=i32)
    request_class: RequestClass = RequestClass.INTERACTIVE
    tenant: str = ""
    timeout_s: float | None = None
    key: str = ""
    received: I32 = field(default_factory=i32)
    idempotency: str = ""
    digest: bytes = b""
    trace: str = ""
    call_index: int = 0
    call_requests: int = 1
    call_tokens: int = 0
    origin: CallOrigin | None = None


@dataclass(frozen=True, slots=True)
class RefusedAtDoor:
    """A door did not take a call, for a reason of its own (`code`, in one word): the core counts and records it."""

    code: str
    detail: str
    trace: str = ""
    origin: CallOrigin | None = None


@dataclass(frozen=True, slots=True)
class Abort:
    """The client went away or cancelled, or (`finish` STOP) the door saw a stop string."""

    finish: FinishReason = FinishReason.CANCELLED


@dataclass(frozen=True, slots=True)
class CancelById:
    """Cancel a request by its public id; `CancelResult` answers. `tenant` None: whoever submitted it."""

    request: str
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Quota:
    """What one tenant may use of this dispatcher; None: no limit.

    `tokens_per_minute` counts prompt and generated tokens, `running` requests that are queued or running at once,
    `max_tokens` is the most that one request may generate.
    """

    tenant: str
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    running: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Quotas:
    """All tenants that there are, from now on. Before the first one anybody may ask for anything."""

    tenants: tuple[Quota, ...]


@dataclass(frozen=True, slots=True)
class CancelResult:
    """Whether such a request was running or queued."""

    request: str
    found: bool


@dataclass(frozen=True, slots=True)
class SubmitRejected:
    """The request was not taken; no work was spent on it."""

    code: RejectionCode
    detail: str
    retry_after_s: float = 0.0


@record
class Delta:
    """New tokens for the client, in order.

    `finish` other than RUNNING ends the request; `detail` explains ERROR and DEADLINE.
    `cached_tokens` of the prompt were not computed for this request: an instance held them already.
    """

    tokens: I32
    logprobs: F32 = field(default_factory=f32)
    top_count: I32 = field(default_factory=i32)
    top_token: I32 = field(default_factory=i32)
    top_logprob: F32 = field(default_factory=f32)
    finish: FinishReason = FinishReason.RUNNING
    detail: str = ""
    cached_tokens: int = 0


_NO_INTS, _NO_FLOATS = i32(), f32()


def single_token_delta(token: int, cached_tokens: int, finish: FinishReason = FinishReason.RUNNING) -> Delta:
    """One token without log-probabilities, as nearly all are: without the cost of columns that stay empty."""
    return Delta(array("i", (token,)), _NO_FLOATS, _NO_INTS, _NO_INTS, _NO_FLOATS, finish, "", cached_tokens)


__all__ = [
    "Abort",
    "Admitted",
    "CancelById",
    "CancelResult",
    "Delta",
    "Quota",
    "Quotas",
    "RefusedAtDoor",
    "RejectionCode",
    "Submit",
    "SubmitRejected",
]
