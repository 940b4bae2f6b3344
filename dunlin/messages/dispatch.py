"""Dispatcher ↔ instance: requests handed out, tokens handed back.

A request is numbered by the dispatcher that accepted it; (dispatcher address, request, attempt) names one hand-out, and
both sides drop and count what belongs to an older attempt. Knows no text: tokens only.
"""

from enum import IntEnum

from dunlin.effects import Address
from dunlin.messages.declare import Hold, Parties, Subject, message, number
from dunlin.messages.types import F32, I8, I32, I64, FinishReason, RequestClass, SamplingParams, Why, f32, i32

PARTIES = Parties("Dispatch", dialers=("dispatcher",), acceptor="instance")


PARTIES = Parties("Dispatch", dialers=("dispatcher",), acceptor="instance")


class Refusal(IntEnum):
    """Why an instance did not take a request."""

    FULL = 0
    TOO_LONG = 1
    NOT_READY = 2
    NOT_IN_PLAN = 3
    STALE = 4
    INVALID = 5
    DRAINING = 6


@message(command=2, about=Subject.SENDERS_REQUEST, hold=Hold.OFFERED)
class Place:
    """Run this request: attempt `attempt` of it.

    `tokens` is the prompt followed by the tokens already delivered (after an earlier attempt); `prompt_tokens` says
    where the latter start. `may_preempt` lets the instance take slots from batch-class work. `handle` names room that
    already holds its KV at this instance (migration), 0 for none. `trace` is the W3C traceparent that the client sent,
    empty if none did: the trace's name then follows from the request's.

    `key` is the request's public id, the same for every attempt at every dispatcher. `idempotency` is its client's own
    name for it, unique within the tenant ("" for none), and `digest` a hash of what was asked for under that name.
    `suspicion` is what the last `Returned` said.
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


@message(command=3, about=Subject.SENDERS_REQUEST, hold=Hold.ENDS)
class Cancel:
    """Stop an attempt and free its slots; `Ended` answers. Attempts up to `attempt` are meant, newer ones are not."""

    request: int = number(1)
    attempt: int = number(2)
    why: Why | None = number(3, default=None)


@message(command=4, about=Subject.NOTHING)
class Adopt:
    """Whoever runs, or just finished, the request `key` gives it to the sender, as attempt `attempt` of its `request`.

    Where `key` is "", the tenant's request named `idempotency` is meant. The client has `length` tokens, prompt
    included, of which `received` were generated; `chain` is `dunlin.kv.prefix_hash`'s chain of them from the
    tenant's root
    without weights: proof that it is the request's own client.
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


@message(event=2, about=Subject.RECEIVERS_REQUEST, hold=Hold.BEGINS)
class Accepted:
    """The instance will finish this attempt, unless it dies or says `Returned`.

    `sequence` is the engine's number for it, `eta_s` the expected wait for its first step. `reused_tokens` are held
    here already, as a prefix of other sequences; `Reused` says how many still are when it starts.
    """

    request: int = number(1)
    attempt: int = number(2)
    sequence: int = number(3)
    eta_s: float = number(4, default=0.0)
    why: Why | None = number(5, default=None)
    reused_tokens: int = number(6, default=0)


@message(event=30, about=Subject.RECEIVERS_REQUEST)
class Reused:
    """The attempt starts after its first `tokens` tokens: their KV is here already. Not sent when there is none."""

    request: int = number(1)
    attempt: int = number(2)
    tokens: int = number(3)
    why: Why | None = number(4, default=None)


@message(event=3, about=Subject.RECEIVERS_REQUEST, hold=Hold.ENDS)
class Refused:
    """The instance did not take this attempt; nothing of it is held."""

    request: int = number(1)
    attempt: int = number(2)
    reason: Refusal = number(3)
    why: Why | None = number(4, default=None)


@message(event=4, hot=True)
class Tokens:
    """New tokens of one step, one message per dispatcher. Columns over rows.

    `position[i]` is the token's index in its sequence (prompt included), so that a gap or a repeat cannot hide.
    `finish[i]` is a `FinishReason`. `top_count[i]` entries of `top_token` and `top_logprob` belong to row i.
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


@message(event=5)
class Ended:
    """Every slot of this cancelled or fenced attempt is free again."""

    request: int = number(1)
    attempt: int = number(2)


@message(event=6, about=Subject.RECEIVERS_REQUEST, hold=Hold.ENDS)
class Returned:
    """The instance gives an accepted attempt back (its engine died or hung): hand it out again.

    `suspicion` 0: nobody blames the request. 1: it was in a step that crashed an engine. 1 + n: it crashed n alone.
    """

    request: int = number(1)
    attempt: int = number(2)
    why: Why | None = number(3, default=None)
    suspicion: int = number(4, default=0)


@message(event=20, about=Subject.RECEIVERS_REQUEST, hold=Hold.ENDS)
class Poisoned:
    """This attempt crashes engines whenever it runs: it is over, and the request must not be handed out again."""

    request: int = number(1)
    attempt: int = number(2)
    why: Why | None = number(3, default=None)


@message(event=31, about=Subject.RECEIVERS_REQUEST, hold=Hold.ENDS)
class Failed:
    """This attempt has no next token, here or anywhere: it is over, and the request must not be handed out again."""

    request: int = number(1)
    attempt: int = number(2)
    why: Why | None = number(3, default=None)


@message(event=7, about=Subject.RECEIVERS_REQUEST, hold=Hold.WAITS)
class Preempted:
    """The instance took this attempt's slots for older work and goes on with it later by itself."""

    request: int = number(1)
    attempt: int = number(2)
    why: Why | None = number(3, default=None)


@message(event=8, about=Subject.RECEIVERS_REQUEST)
class Continued:
    """An attempt goes on, after a preemption or in a new engine: tokens that came back from the host tier, tokens
    that were still in the slab, and tokens to compute anew.
    """

    request: int = number(1)
    attempt: int = number(2)
    sequence: int = number(3, default=0)
    restored_tokens: int = number(4, default=0)
    recomputed_tokens: int = number(5, default=0)
    why: Why | None = number(6, default=None)
    revived_tokens: int = number(7, default=0)


@message(event=9, about=Subject.RECEIVERS_REQUEST)
class Ready:
    """Migration: the target holds the first `tokens` tokens' KV under `handle`; hand out attempt + 1 there."""

    request: int = number(1)
    attempt: int = number(2)
    target: Address = number(3)
    handle: int = number(4)
    tokens: int = number(5)
    why: Why | None = number(6, default=None)


@message(event=10, about=Subject.RECEIVERS_REQUEST, hold=Hold.BEGINS)
class Adopted:
    """The attempt is here and the asker's: `Tokens` of it follow. `tokens` come after those that the client has.

    `finish` other than RUNNING: it ended here with them, and nothing of it is held any more.
    """

    request: int = number(1)
    attempt: int = number(2)
    key: str = number(3)
    tokens: I32 = number(4)
    max_tokens: int = number(5)
    finish: FinishReason = number(6, default=FinishReason.RUNNING)
    sequence: int = number(7, default=0)
    why: Why | None = number(8, default=None)


@message(event=11)
class NotHeld:
    """What `Adopt` named is not here. `conflict`: it is, and something else was asked for under its name."""

    request: int = number(1)
    attempt: int = number(2)
    conflict: bool = number(3, default=False)


@message(event=12, about=Subject.RECEIVERS_REQUEST, hold=Hold.ENDS)
class AdoptedElsewhere:
    """Another dispatcher adopted this attempt: it is the receiver's no more."""

    request: int = number(1)
    attempt: int = number(2)
    by: Address = number(3)
    why: Why | None = number(4, default=None)
