"""What a dispatcher's core tells a client's address of its request: decisions with reasons, which the monitor keeps.

One message per phase of a request, never one per token. They cross a wire only as recorded reasons.
"""

from dunlin.effects import Address
from dunlin.messages.declare import Subject, message, number
from dunlin.messages.types import FinishReason, Why


@message()
class CallOrigin:
    """The call that a request came with: for traces alone, nothing is decided by it.

    `door` is `http` or `grpc`, `operation` what OpenTelemetry calls it (`chat`, `text_completion`), `model` the name
    that was asked for, or what is served where the client named none. `server` is the door's HOST:PORT.
    """

    door: str = number(1, default="")
    operation: str = number(2, default="")
    model: str = number(3, default="")
    tenant: str = number(4, default="")
    server: str = number(5, default="")


@message(about=Subject.REQUEST_ID)
class Admitted:
    """The request is journalled under this public id, `req-<dispatcher incarnation>-<number>`, both hex.

    `trace` is the W3C traceparent that came with it, empty if none did.
    """

    request: str = number(1)
    trace: str = number(2, default="")
    why: Why | None = number(3, default=None)
    origin: CallOrigin | None = number(4, default=None)


@message(about=Subject.REQUEST_ID)
class FirstToken:
    """An attempt's prompt is computed: its first new token came from `instance` and goes to the client.

    `queued_s` is how long the request waited here until it was handed out for the first time, None for one that
    another dispatcher had handed out.
    """

    request: str = number(1)
    attempt: int = number(2)
    instance: Address = number(3)
    why: Why | None = number(4, default=None)
    queued_s: float | None = number(5, default=None)


@message(about=Subject.REQUEST_ID)
class Closed:
    """The request ended, after `tokens` tokens for the client. `request` empty: the door did not take it.

    `trace` is that of its `Admitted`. Of one that was not taken `error` says why in one word, such as `too_long`.
    """

    request: str = number(1)
    finish: FinishReason = number(2)
    tokens: int = number(3, default=0)
    trace: str = number(4, default="")
    why: Why | None = number(5, default=None)
    origin: CallOrigin | None = number(6, default=None)
    error: str = number(7, default="")
