"""What a dispatcher's core tells a client's address of its request: decisions with reasons, which the monitor keeps.

One message per phase of a request, never one per token. They cross a wire only as recorded reasons.
"""

from dataclasses import dataclass

from dunlin.effects import Address
from dunlin.messages.types import Finish, Why


@dataclass(frozen=True, slots=True)
class Origin:
    """The call that a request came with: for traces alone, nothing is decided by it.

    `door` is `http` or `grpc`, `operation` what OpenTelemetry calls it (`chat`, `text_completion`), `model` the name
    that was asked for, or what is served where the client named none. `server` is the door's HOST:PORT.
    """

    door: str = ""
    operation: str = ""
    model: str = ""
    tenant: str = ""
    server: str = ""


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request is journalled under this public id, `req-<dispatcher incarnation>-<number>`, both hex.

    `trace` is the W3C traceparent that came with it, empty if none did.
    """

    request: str
    trace: str = ""
    why: Why | None = None
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class FirstToken:
    """An attempt's prompt is computed: its first new token came from `instance` and goes to the client.

    `queued_s` is how long the request waited here until it was handed out for the first time, None for one that
    another dispatcher had handed out.
    """

    request: str
    attempt: int
    instance: Address
    why: Why | None = None
    queued_s: float | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """The request ended, after `tokens` tokens for the client. `request` empty: the door did not take it.

    `trace` is that of its `Admitted`. Of one that was not taken `error` says why in one word, such as `too_long`.
    """

    request: str
    finish: Finish
    tokens: int = 0
    trace: str = ""
    why: Why | None = None
    origin: Origin | None = None
    error: str = ""


__all__ = ["Admitted", "Closed", "FirstToken", "Origin"]
