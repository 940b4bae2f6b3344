"""The lifecycle events of a request, which a core sends to the client's address, with their reasons.

One event per phase of a request, never one per token. They cross a wire only as recorded reasons, which the monitor
keeps. `Missed` is an instance's, the others are a dispatcher's.
"""

from enum import IntEnum

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


class MissCause(IntEnum):
    """What a token that came later than its objective waited for, in order of a request's course.

    `QUEUE`: for an instance, at its dispatcher. `EARLIER_ATTEMPT`: attempts before, that were lost or refused.
    `STEP_BEFORE`: for the steps sent before its own. `LEFT_OUT`: in steps without a row of it. `SLOW_STEP`: for what
    its steps took beyond their prediction; `STEP`: for the rest of them. `INTERRUPTED`: its row left a step.
    """

    QUEUE = 0
    EARLIER_ATTEMPT = 1
    SLOTS = 2
    STEP_BEFORE = 3
    LEFT_OUT = 4
    SLOW_STEP = 5
    STEP = 6
    PREEMPTED = 7
    INTERRUPTED = 8
    ENGINE_LOST = 9
    MIGRATION = 10


@message(about=Subject.REQUEST_ID)
class Missed:
    """A token of an attempt (`is_first`: the request's first one) came later than its objective.

    Sent once per attempt, kind of objective and cause; `InstanceReport` counts every miss.
    """

    request: str = number(1)
    attempt: int = number(2)
    cause: MissCause = number(3)
    is_first: bool = number(4)
    why: Why | None = number(5, default=None)


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
