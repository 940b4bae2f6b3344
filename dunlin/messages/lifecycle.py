"""The lifecycle events of a request, which a dispatcher's core sends to the client's address, with their reasons.

One event per phase of a request, never one per token. They cross a wire only as recorded reasons, which the monitor
keeps.
"""

from dunlin.effects import Address
from dunlin.messages.declare import Subject, message, number
from dunlin.messages.types import FinishReason, Why


@message()
class CallOrigin:
    """The call that a request came with. For traces only: nothing is decided by it.

    `door` is `http` or `grpc`, `operation` the OpenTelemetry name (`chat`, `text_completion`), `model` the name that
    the client gave, or else the served one. `server` is the door's HOST:PORT.
    """

    door: str = number(1, default="")
    operation: str = number(2, default="")
    model: str = number(3, default="")
    tenant: str = number(4, default="")
    server: str = number(5, default="")


@message(about=Subject.REQUEST_ID)
class Admitted:
    """The request was admitted under this public id, `req-<dispatcher incarnation>-<number>`, both hex.

    `trace` is the W3C traceparent that came with it, empty if none did.
    """

    request: str = number(1)
    trace: str = number(2, default="")
    why: Why | None = number(3, default=None)
    origin: CallOrigin | None = number(4, default=None)


@message(about=Subject.REQUEST_ID)
class RisenInQueue:
    """The request is of the batch class and is dispatched like an interactive one from now on, for it waited too long
    or its batch job's completion window is about to end.
    """

    request: str = number(1)
    why: Why | None = number(2, default=None)


@message(about=Subject.REQUEST_ID)
class FirstToken:
    """An attempt's prefill is done: its first new token came from `instance`.

    `queued_s` is how many seconds the request waited here until it was first dispatched; None: another dispatcher
    dispatched it.
    """

    request: str = number(1)
    attempt: int = number(2)
    instance: Address = number(3)
    why: Why | None = number(4, default=None)
    queued_s: float | None = number(5, default=None)


@message(about=Subject.REQUEST_ID)
class Closed:
    """The request ended, after `tokens` generated tokens. `request` empty: it was refused.

    `trace` is that of its `Admitted`. `error` is the kind of a refusal in one word, such as `too_long`.
    """

    request: str = number(1)
    finish: FinishReason = number(2)
    tokens: int = number(3, default=0)
    trace: str = number(4, default="")
    why: Why | None = number(5, default=None)
    origin: CallOrigin | None = number(6, default=None)
    error: str = number(7, default="")
