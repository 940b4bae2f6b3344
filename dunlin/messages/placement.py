"""Dispatcher ↔ global manager: where a request goes that needs, or deserves, more than one instance.

A dispatcher asks the manager that leads; what the manager chose is an elastic group, whose leader the dispatcher then
dispatches the request to as to any instance.
"""

from enum import IntEnum

from dunlin.effects import Address
from dunlin.messages.declare import Parties, Subject, message, number
from dunlin.messages.types import RequestClass, Why

PARTIES = Parties("Placement", dialers=("dispatcher",), acceptor="global_manager")


class LongRefusal(IntEnum):
    """Why no group was found for a long request."""

    NOT_LEADER = 0
    NO_ROOM = 1
    TOO_LONG = 2
    QUEUE_FULL = 3


@message(event=2)
class Leads:
    """The sender leads with this `epoch`, or (0) does not. Said when a stream opens and on every change."""

    epoch: int = number(1)


@message(command=2, about=Subject.SENDERS_REQUEST)
class PlaceLong:
    """Find a group for a request of `tokens` tokens now and at most `longest` in the end. `attempt` is the one to come.

    It waits for room at the manager until it is placed, refused or withdrawn: within its class those with `generated`
    tokens first, for their clients wait in mid-stream, then those that came first: `queued_s` seconds ago, to the
    dispatcher. `excluded` instances are to take no part.
    """

    request: int = number(1)
    attempt: int = number(2)
    tokens: int = number(3)
    longest: int = number(4)
    request_class: RequestClass = number(5, default=RequestClass.INTERACTIVE)
    excluded: tuple[Address, ...] = number(6, default=())
    why: Why | None = number(7, default=None)
    generated: int = number(8, default=0)
    queued_s: float = number(9, default=0.0)


@message(command=3, about=Subject.SENDERS_REQUEST)
class WithdrawLong:
    """The request needs no group any more: it ended, or is placed otherwise. Not answered."""

    request: int = number(1)
    attempt: int = number(2)


@message(event=3, about=Subject.RECEIVERS_REQUEST)
class LongPlaced:
    """Dispatch the request to `leader`, which leads the elastic group `group`."""

    request: int = number(1)
    attempt: int = number(2)
    leader: Address = number(3)
    group: int = number(4)
    why: Why | None = number(5, default=None)


@message(event=4, about=Subject.RECEIVERS_REQUEST)
class LongRefused:
    """No group takes the request. `retry_after_s`: ask again then; 0: never, as the fleet is (`limit_tokens`)."""

    request: int = number(1)
    attempt: int = number(2)
    reason: LongRefusal = number(3)
    retry_after_s: float = number(4, default=0.0)
    limit_tokens: int = number(5, default=0)
    why: Why | None = number(6, default=None)
