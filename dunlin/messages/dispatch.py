"""Dispatcher ↔ instance: requests handed out, tokens handed back.

A request is numbered by the dispatcher that accepted it; (dispatcher address, request, attempt) names one hand-out, and
both sides drop and count what belongs to an older attempt. Knows no text: tokens only.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from dunlin.effects import Address, record
from dunlin.messages.types import F32, I8, I32, I64, Finish, RequestClass, Sampling, Why, f32, i32


class Refusal(IntEnum):
    """Why an instance did not take a request."""

    FULL = 0
    TOO_LONG = 1
    NOT_READY = 2
    NOT_IN_PLAN = 3
    STALE = 4
    INVALID = 5
    DRAINING = 6


@dataclass(frozen=True, slots=True)
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

    request: int
    attempt: int
    tokens: I32
    prompt_tokens: int
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_ids: I32 = field(default_factory=i32)
    request_class: RequestClass = RequestClass.INTERACTIVE
    tenant: str = ""
    may_preempt: bool = False
    handle: int = 0
    why: Why | None = None
    trace: str = ""
    key: str = ""
    idempotency: str = ""
    digest: bytes = b""
    suspicion: int = 0


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop an attempt and free its slots; `Ended` answers. Attempts up to `attempt` are meant, newer ones are not."""

    request: int
    attempt: int
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class Adopt:
    """Whoever runs, or just finished, the request `key` gives it to the sender, as attempt `attempt` of its `request`.

    Where `key` is "", the tenant's request named `idempotency` is meant. The client has `length` tokens, prompt
    included, of which `received` were generated; `chain` is `dunlin.prefix`'s chain of them from the tenant's root
    without weights: proof that it is the request's own client.
    """

    request: int
    attempt: int
    key: str
    tenant: str
    length: int
    received: int
    chain: bytes
    idempotency: str = ""
    digest: bytes = b""
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class Accepted:
    """The instance will finish this attempt, unless it dies or says `Returned`.

    `sequence` is the engine's number for it, `eta_s` the expected wait for its first step. `reused_tokens` are held
    here already, as a prefix of other sequences; `Reused` says how many still are when it starts.
    """

    request: int
    attempt: int
    sequence: int
    eta_s: float = 0.0
    why: Why | None = None
    reused_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Reused:
    """The attempt starts after its first `tokens` tokens: their KV is here already. Not sent when there is none."""

    request: int
    attempt: int
    tokens: int
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The instance did not take this attempt; nothing of it is held."""

    request: int
    attempt: int
    reason: Refusal
    why: Why | None = None


@record
class Tokens:
    """New tokens of one step, one message per dispatcher. Columns over rows.

    `position[i]` is the token's index in its sequence (prompt included), so that a gap or a repeat cannot hide.
    `finish[i]` is a `Finish`. `top_count[i]` entries of `top_token` and `top_logprob` belong to row i.
    """

    request: I64
    attempt: I32
    position: I64
    token: I32
    logprob: F32
    finish: I8
    top_count: I32 = field(default_factory=i32)
    top_token: I32 = field(default_factory=i32)
    top_logprob: F32 = field(default_factory=f32)


@dataclass(frozen=True, slots=True)
class Ended:
    """Every slot of this cancelled or fenced attempt is free again."""

    request: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Returned:
    """The instance gives an accepted attempt back (its engine died or hung): hand it out again.

    `suspicion` 0: nobody blames the request. 1: it was in a step that crashed an engine. 1 + n: it crashed n alone.
    """

    request: int
    attempt: int
    why: Why | None = None
    suspicion: int = 0


@dataclass(frozen=True, slots=True)
class Poisoned:
    """This attempt crashes engines whenever it runs: it is over, and the request must not be handed out again."""

    request: int
    attempt: int
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """This attempt has no next token, here or anywhere: it is over, and the request must not be handed out again."""

    request: int
    attempt: int
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class Preempted:
    """The instance took this attempt's slots for older work and goes on with it later by itself."""

    request: int
    attempt: int
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class Continued:
    """An attempt goes on, after a preemption or in a new engine: tokens that came back from the host tier, tokens
    that were still in the slab, and tokens to compute anew.
    """

    request: int
    attempt: int
    sequence: int = 0
    restored_tokens: int = 0
    recomputed_tokens: int = 0
    why: Why | None = None
    revived_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Ready:
    """Migration: the target holds the first `tokens` tokens' KV under `handle`; hand out attempt + 1 there."""

    request: int
    attempt: int
    target: Address
    handle: int
    tokens: int
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class Adopted:
    """The attempt is here and the asker's: `Tokens` of it follow. `tokens` come after those that the client has.

    `finish` other than RUNNING: it ended here with them, and nothing of it is held any more.
    """

    request: int
    attempt: int
    key: str
    tokens: I32
    max_tokens: int
    finish: Finish = Finish.RUNNING
    sequence: int = 0
    why: Why | None = None


@dataclass(frozen=True, slots=True)
class NotHeld:
    """What `Adopt` named is not here. `conflict`: it is, and something else was asked for under its name."""

    request: int
    attempt: int
    conflict: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """Another dispatcher adopted this attempt: it is the receiver's no more."""

    request: int
    attempt: int
    by: Address
    why: Why | None = None


DISPATCH_COMMANDS = (Place, Cancel, Adopt)
DISPATCH_EVENTS = (
    Accepted,
    Refused,
    Tokens,
    Ended,
    Returned,
    Preempted,
    Continued,
    Ready,
    Adopted,
    NotHeld,
    Taken,
    Poisoned,
    Reused,
    Failed,
)

__all__ = [
    "DISPATCH_COMMANDS",
    "DISPATCH_EVENTS",
    "Accepted",
    "Adopt",
    "Adopted",
    "Cancel",
    "Continued",
    "Ended",
    "Failed",
    "NotHeld",
    "Place",
    "Poisoned",
    "Preempted",
    "Ready",
    "Refusal",
    "Refused",
    "Returned",
    "Reused",
    "Taken",
    "Tokens",
]
