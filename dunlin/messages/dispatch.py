"""Dispatcher ↔ instance: requests are dispatched, tokens come back.

A request is numbered by the dispatcher that has it; (dispatcher address, request, attempt) names one attempt, and both
sides drop and count messages of an older attempt. No text: tokens only.
"""

from enum import IntEnum

from dunlin.effects import Address
from dunlin.messages.declare import Hold, Parties, Subject, message, number
from dunlin.messages.types import F32, I8, I32, I64, FinishReason, RequestClass, SamplingParams, Why, f32, i32

PARTIES = Parties("Dispatch", dialers=("dispatcher",), acceptor="instance")


class Refusal(IntEnum):
    """Why an instance refused an attempt."""

    FULL = 0
    TOO_LONG = 1
    NOT_READY = 2
    NOT_IN_PLAN = 3
    STALE = 4
    INVALID = 5
    DRAINING = 6
    NO_ADAPTER = 7


@message(command=2, about=Subject.SENDERS_REQUEST, hold=Hold.OFFERED)
class Place:
    """Run attempt `attempt` of this request.

    `tokens` is the prompt followed by the generated tokens of earlier attempts; `prompt_tokens` says where the latter
    start. `may_preempt` lets the instance preempt batch-class work for it. `handle` names slots at this instance that
    have its KV already (migration), 0 for none. `trace` is the W3C traceparent that the client sent; empty: the trace's
    id is derived from the request's.

    `key` is the request's public id, the same for every attempt at every dispatcher. `idempotency` is its idempotency
    key, unique within the tenant ("" for none), and `digest` a hash of the request sent with that key. `suspicion` is
    that of the last `Returned`. A batch request with `rises_after_s` is scheduled like an interactive one after so many
    seconds at the instance, if the share of those allows it: it rose at the dispatcher (0), or its batch job's
    completion window is about to end. `ttft_objective_s` and `tpot_objective_s` are the request's own objectives; 0:
    the cluster's.

    With `sampling.prompt_logprobs` the dispatcher has the log-probabilities of the first `scored` prompt tokens after
    the very first, and wants the others.

    `group`: the elastic group that the manager chose for it, whose leader the receiver is; 0: the instance alone.
    `adapter` is the digest of the LoRA adapter that it runs with; "": of none.

    The client had waited for its next token when this was sent: `queued_s` for the first dispatch, and since then, or
    since the last token, `lost_s` in attempts before.
    """

    request: int = number(1)
    attempt: int = number(2)
    tokens: I32 = number(3)
    prompt_tokens: int = number(4)
    max_tokens: int = number(5)
    sampling: SamplingParams = number(6, default_factory=SamplingParams)
    stop_ids: I32 = number(7, default_factory=i32)
    request_class: RequestClass = number(8, default=RequestClass.INTERACTIVE)
    tenant: str = number(9, default="")
    may_preempt: bool = number(10, default=False)
    handle: int = number(11, default=0)
    why: Why | None = number(12, default=None)
    trace: str = number(13, default="")
    key: str = number(14, default="")
    idempotency: str = number(15, default="")
    digest: bytes = number(16, default=b"")
    suspicion: int = number(20, default=0)
    rises_after_s: float | None = number(21, default=None)
    ttft_objective_s: float = number(22, default=0.0)
    tpot_objective_s: float = number(23, default=0.0)
    queued_s: float = number(24, default=0.0)
    lost_s: float = number(25, default=0.0)
    group: int = number(26, default=0)
    scored: int = number(27, default=0)
    adapter: str = number(30, default="")


@message(command=3, about=Subject.SENDERS_REQUEST, hold=Hold.ENDS)
class Cancel:
    """Stop all attempts up to `attempt` and free their slots; `Ended` answers. A newer attempt is not affected."""

    request: int = number(1)
    attempt: int = number(2)
    why: Why | None = number(3, default=None)


@message(command=4, about=Subject.NOTHING)
class Adopt:
    """The instance that runs, or just finished, the request `key` gives it to the sender.

    It becomes attempt `attempt` of the sender's `request`. With `key` "", the tenant's request with the idempotency key
    `idempotency` is meant. The client has `length` tokens, prompt included, of which `received` were generated; `chain`
    is their chained hash (`dunlin.kv.prefix_hash`, from the root of tenant and adapter without weights): the proof that
    the client is the request's own. It has the log-probabilities of `scored` prompt tokens.
    """

    request: int = number(1)
    attempt: int = number(2)
    key: str = number(3)
    tenant: str = number(4)
    length: int = number(5)
    received: int = number(6)
    chain: bytes = number(7)
    idempotency: str = number(8, default="")
    digest: bytes = number(9, default=b"")
    why: Why | None = number(10, default=None)
    scored: int = number(11, default=0)


@message(event=2, about=Subject.RECEIVERS_REQUEST, hold=Hold.BEGINS)
class Accepted:
    """The instance accepts the attempt and will finish it, unless it dies or sends `Returned`.

    `sequence` is the engine's number for it, `eta_s` the expected seconds until its first step. `reused_tokens` of its
    prefix are cached now; `Reused` says how many still are when it starts.
    """

    request: int = number(1)
    attempt: int = number(2)
    sequence: int = number(3)
    eta_s: float = number(4, default=0.0)
    why: Why | None = number(5, default=None)
    reused_tokens: int = number(6, default=0)


@message(event=30, about=Subject.RECEIVERS_REQUEST)
class Reused:
    """The attempt starts with the KV of its first `tokens` tokens from the prefix cache. Not sent if there is none."""

    request: int = number(1)
    attempt: int = number(2)
    tokens: int = number(3)
    why: Why | None = number(4, default=None)


@message(event=3, about=Subject.RECEIVERS_REQUEST, hold=Hold.ENDS)
class Refused:
    """The instance refuses the attempt, and has nothing of it.

    `limit_tokens`, with TOO_LONG: the longest sequence that it could hold alone just then; 0: it does not say.
    """

    request: int = number(1)
    attempt: int = number(2)
    reason: Refusal = number(3)
    why: Why | None = number(4, default=None)
    limit_tokens: int = number(5, default=0)


@message(event=4, hot=True)
class Tokens:
    """New tokens of one step, one message per dispatcher. Columns over rows.

    `position[i]` is the token's index in its sequence (prompt included), which shows gaps and repeats. `finish[i]` is a
    `FinishReason`. `top_count[i]` entries of `top_token` and `top_logprob` belong to row i.
    """

    request: I64 = number(1)
    attempt: I32 = number(2)
    position: I64 = number(3)
    token: I32 = number(4)
    logprob: F32 = number(5)
    finish: I8 = number(6)
    top_count: I32 = number(7, default_factory=i32)
    top_token: I32 = number(8, default_factory=i32)
    top_logprob: F32 = number(9, default_factory=f32)


@message(event=33)
class PromptScored:
    """Log-probabilities of the attempt's prompt tokens from `start` on, before its first token; columns as in
    `PromptScores`.
    """

    request: int = number(1)
    attempt: int = number(2)
    start: int = number(3)
    best: int = number(4)
    logprob: F32 = number(5)
    rank: I32 = number(6)
    top_token: I32 = number(7, default_factory=i32)
    top_logprob: F32 = number(8, default_factory=f32)


@message(event=5)
class Ended:
    """Every slot of this cancelled attempt is free."""

    request: int = number(1)
    attempt: int = number(2)


IN_COMPANY = 1
"""The suspicion of a request that was in a step that crashed an engine; each engine that it crashes alone adds one."""
POISON = IN_COMPANY + 2
"""The suspicion from which on a request is poison, and runs no more."""


def suspicion_after_crash(suspicion: int, is_alone: bool) -> int:
    """The suspicion of a request that was in a step that crashed one more engine; `is_alone`: of no other request."""
    return max(suspicion, IN_COMPANY) + is_alone


@message(event=6, about=Subject.RECEIVERS_REQUEST, hold=Hold.ENDS)
class Returned:
    """The instance gives an accepted attempt up (its engine died or hung): dispatch the request again.

    `suspicion` 0: the request is not suspected. 1: it was in a step that crashed an engine. 1 + n: it crashed n engines
    alone.
    """

    request: int = number(1)
    attempt: int = number(2)
    why: Why | None = number(3, default=None)
    suspicion: int = number(4, default=0)


@message(event=20, about=Subject.RECEIVERS_REQUEST, hold=Hold.ENDS)
class Poisoned:
    """The request crashes engines whenever it runs: the attempt is over, and there must be no other one."""

    request: int = number(1)
    attempt: int = number(2)
    why: Why | None = number(3, default=None)


@message(event=34, about=Subject.RECEIVERS_REQUEST)
class Suspected:
    """The engine of a member crashed in a step of the attempt whose leader wanted no answer any more, for the group had
    ended or the member was given back: no `Returned` of the attempt says so. `is_alone`: the step was of no other
    request.
    """

    request: int = number(1)
    attempt: int = number(2)
    is_alone: bool = number(3)
    why: Why | None = number(4, default=None)


@message(event=31, about=Subject.RECEIVERS_REQUEST, hold=Hold.ENDS)
class Failed:
    """The request has no valid next token, here or anywhere: the attempt is over, and there must be no other one."""

    request: int = number(1)
    attempt: int = number(2)
    why: Why | None = number(3, default=None)


@message(event=7, about=Subject.RECEIVERS_REQUEST, hold=Hold.WAITS)
class Preempted:
    """The instance preempted the attempt for older work; it continues the attempt later by itself."""

    request: int = number(1)
    attempt: int = number(2)
    why: Why | None = number(3, default=None)


@message(event=32, about=Subject.RECEIVERS_REQUEST)
class Risen:
    """The attempt is of the batch class and is scheduled like an interactive one from now on, for it was starved."""

    request: int = number(1)
    attempt: int = number(2)
    why: Why | None = number(3, default=None)


@message(event=8, about=Subject.RECEIVERS_REQUEST)
class Continued:
    """An attempt runs again, after a preemption or in a new engine.

    The KV of `restored_tokens` came back from the host tier, that of `revived_tokens` was still in the device's cache,
    and that of `recomputed_tokens` is computed again. `suspicion` is as in `Returned`, for the instance may be lost
    before it says more; with 1 it is over once there are more tokens than `trial_stop`.
    """

    request: int = number(1)
    attempt: int = number(2)
    sequence: int = number(3, default=0)
    restored_tokens: int = number(4, default=0)
    recomputed_tokens: int = number(5, default=0)
    why: Why | None = number(6, default=None)
    revived_tokens: int = number(7, default=0)
    suspicion: int = number(8, default=0)
    trial_stop: int = number(9, default=0)


@message(event=9, about=Subject.RECEIVERS_REQUEST)
class Ready:
    """Migration: the target has the KV of the first `tokens` tokens under `handle`; dispatch attempt + 1 to it."""

    request: int = number(1)
    attempt: int = number(2)
    target: Address = number(3)
    handle: int = number(4)
    tokens: int = number(5)
    why: Why | None = number(6, default=None)


@message(event=10, about=Subject.RECEIVERS_REQUEST, hold=Hold.BEGINS)
class Adopted:
    """The instance runs the request, now for the dispatcher that sent `Adopt`: `Tokens` of it follow.

    `tokens` are those after the client's. `finish` other than RUNNING: the request ended with them, and the instance
    has nothing of it any more. `suspicion` and `trial_stop` are as in `Continued`.
    """

    request: int = number(1)
    attempt: int = number(2)
    key: str = number(3)
    tokens: I32 = number(4)
    max_tokens: int = number(5)
    finish: FinishReason = number(6, default=FinishReason.RUNNING)
    sequence: int = number(7, default=0)
    why: Why | None = number(8, default=None)
    suspicion: int = number(9, default=0)
    trial_stop: int = number(10, default=0)


@message(event=11)
class NotHeld:
    """The instance does not run the request of an `Adopt`. `conflict`: it runs another one of that idempotency key."""

    request: int = number(1)
    attempt: int = number(2)
    conflict: bool = number(3, default=False)


@message(event=12, about=Subject.RECEIVERS_REQUEST, hold=Hold.ENDS)
class AdoptedElsewhere:
    """Another dispatcher (`by`) adopted the request: the attempt is the receiver's no more."""

    request: int = number(1)
    attempt: int = number(2)
    by: Address = number(3)
    why: Why | None = number(4, default=None)
