"""A dispatcher's doors ↔ its core, inside one process: tokenised and checked requests, and their output.

The doors (gRPC, HTTP) own text, templates and stop strings; the core owns the request. These messages cross no wire.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from dunlin.effects import record
from dunlin.messages.lifecycle import Admitted, CallOrigin
from dunlin.messages.types import F32, I32, FinishReason, RequestClass, SamplingParams, f32, i32


class RejectionCode(IntEnum):
    """Why a request is refused; each door translates it into its own protocol's status."""

    INVALID = 0
    FULL = 1
    TOO_LONG = 2
    UNAVAILABLE = 3
    CONFLICT = 4
    QUOTA = 5
    UNAUTHENTICATED = 6
    FORBIDDEN = 7
    NOT_FOUND = 8


@dataclass(frozen=True, slots=True)
class Submit:
    """A request from a client's address. `timeout_s` in seconds from now; None: no deadline.

    `max_tokens` None: what the context of its instance leaves. The sampling seed is set: the gateway draws one where
    the client gave none. `trace` is the W3C traceparent that the client sent, empty if none.

    `key` is the public id of a request to resume after another dispatcher, "" for a new one; `received` are its tokens
    that the client has. A batch request with `rises_after_s` is dispatched like an interactive one after so many
    seconds, if the share of those allows it: its batch job's completion window is about to end. `idempotency` and
    `digest` are as in `dunlin.messages.dispatch.Place`: a Submit with the idempotency of a request that is running, or
    finished lately, joins that one.

    It is number `call_index` of the `call_requests` that one call of the client makes, one right after the other, with
    `call_tokens` prompt tokens in all: the tenant's quota must suffice for all of them, or the first is refused. (The
    requests of a call with an `idempotency` may wait for adoption queries in between: each is then checked by itself.)

    `ttft_objective_s` and `tpot_objective_s` are the client's or its tenant's; None: the cluster's. Of the prompt's
    log-probabilities, where it wants any, the client has the first `scored`. `adapter` is the digest of the LoRA
    adapter that its `model` names; "": of none.
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
    rises_after_s: float | None = None
    ttft_objective_s: float | None = None
    tpot_objective_s: float | None = None
    scored: int = 0
    adapter: str = ""

    @property
    def may_be_held(self) -> bool:
        """Whether an instance may run it already: its client resumes it, or may have sent it to another dispatcher."""
        return bool(self.key or self.idempotency)


@dataclass(frozen=True, slots=True)
class RefusedAtDoor:
    """A door refused a call for a reason of its own (`code`, in one word); the core counts and records it."""

    code: str
    detail: str
    trace: str = ""
    origin: CallOrigin | None = None


@dataclass(frozen=True, slots=True)
class Abort:
    """The client left or cancelled, or (`finish` STOP) the door found a stop string: end the request."""

    finish: FinishReason = FinishReason.CANCELLED


@dataclass(frozen=True, slots=True)
class CancelById:
    """Cancel a request by its public id; `CancelResult` answers. `tenant` None: a request of any tenant."""

    request: str
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of one tenant at this dispatcher; None: no limit.

    `tokens_per_minute` counts prompt and generated tokens; `running` counts requests that are queued or running at the
    same time; `max_tokens` bounds the generated tokens of one request. `weight` is its share, beside other tenants', of
    the capacity that batch work gets.
    """

    tenant: str
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    running: int | None = None
    max_tokens: int | None = None
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Quotas:
    """All tenants, from now on: requests of others are refused. Before the first `Quotas` there are no limits."""

    tenants: tuple[Quota, ...]


@dataclass(frozen=True, slots=True)
class CancelResult:
    """The answer to `CancelById`: whether such a request was running or queued."""

    request: str
    found: bool


@dataclass(frozen=True, slots=True)
class SubmitRejected:
    """The request was refused, before any work on it. `retry_after_s` 0: no advice. `field` names the field at fault,
    if it is one alone.
    """

    code: RejectionCode
    detail: str
    retry_after_s: float = 0.0
    field: str = ""


@dataclass(slots=True)
class PromptLogprobs:
    """Log-probabilities of consecutive tokens of a prompt: columns as in `dunlin.messages.types.PromptScores`, with
    `best` alternatives to each token.
    """

    best: int
    logprob: F32 = field(default_factory=f32)
    rank: I32 = field(default_factory=i32)
    top_token: I32 = field(default_factory=i32)
    top_logprob: F32 = field(default_factory=f32)

    def __len__(self) -> int:
        return len(self.logprob)

    def extend(self, later: "PromptLogprobs") -> None:
        """Append those of the tokens that follow."""
        self.best = later.best
        self.logprob.extend(later.logprob)
        self.rank.extend(later.rank)
        self.top_token.extend(later.top_token)
        self.top_logprob.extend(later.top_logprob)

    def tops(self, most: int) -> Iterator[list[tuple[int, float]]]:
        """For each token the likeliest (token, log-probability) pairs there, best first, at most so many."""
        for start in range(0, len(self.logprob) * self.best, self.best) if self.best else ():
            stop = start + min(most, self.best)
            yield list(zip(self.top_token[start:stop], self.top_logprob[start:stop], strict=True))
        if not self.best:
            yield from ([] for _ in self.logprob)

    def part(self, start: int, stop: int | None = None) -> "PromptLogprobs":
        """Those of tokens `[start, stop)`, counted from the first of these."""
        tops = slice(start * self.best, None if stop is None else stop * self.best)
        columns = self.logprob[start:stop], self.rank[start:stop], self.top_token[tops], self.top_logprob[tops]
        return PromptLogprobs(self.best, *columns)


@record
class Delta:
    """New tokens for a reader, in order; before the first one the log-probabilities of `prompt` tokens, where wanted.

    `finish` other than RUNNING ends the request; `detail` explains an end that is an error (`FINISH_ERRORS`).
    `top_count[i]` entries of `top_token` and `top_logprob` belong to token i. An instance had the KV of `cached_tokens`
    of the prompt already.
    """

    tokens: I32
    logprobs: F32 = field(default_factory=f32)
    top_count: I32 = field(default_factory=i32)
    top_token: I32 = field(default_factory=i32)
    top_logprob: F32 = field(default_factory=f32)
    finish: FinishReason = FinishReason.RUNNING
    detail: str = ""
    cached_tokens: int = 0
    prompt: PromptLogprobs | None = None


_NO_INTS, _NO_FLOATS = i32(), f32()


def single_token_delta(token: int, cached_tokens: int, finish: FinishReason = FinishReason.RUNNING) -> Delta:
    """A Delta of one token without log-probabilities, as nearly all are: its empty columns are shared, not made."""
    return Delta(array("i", (token,)), _NO_FLOATS, _NO_INTS, _NO_INTS, _NO_FLOATS, finish, "", cached_tokens)


__all__ = [
    "Abort",
    "Admitted",
    "CancelById",
    "CancelResult",
    "Delta",
    "PromptLogprobs",
    "Quota",
    "Quotas",
    "RefusedAtDoor",
    "RejectionCode",
    "Submit",
    "SubmitRejected",
]
