"""What a recorded message says about whom: the request, the instance, the sequences. One line per kind of message."""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dunlin.effects import Address, Message
from dunlin.messages.fleet import Reason
from dunlin.messages.types import i64

if TYPE_CHECKING:
    Ints = array[int]
else:  # Python 3.11 cannot subscript array at run time
    Ints = array

RequestKey = tuple[int, int]
"""(incarnation of the dispatcher, its number of the request)."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What to find a record by. `whole_instance`: it concerns whatever the instance had accepted at that time.

    `request` is the number that a dispatcher gives it, `public` the name that it keeps at every dispatcher.
    """

    request: RequestKey | None = None
    public: RequestKey | None = None
    instance: Address | None = None
    attempt: int = 0
    sequence: int | None = None
    ticket: int | None = None
    sequences: Ints = field(default_factory=i64)
    whole_instance: bool = False
    kind: str = ""

    def names_any(self, sequences: tuple[int, ...]) -> bool:
        """Whether this step has a row of one of these sequences."""
        return any(sequence in self.sequences for sequence in sequences)


def parse_request(public_id: str) -> RequestKey | None:
    """`req-<incarnation>-<number>`, both hex, as a key; None when it is not such an id."""
    parts = public_id.split("-")
    if len(parts) != 3 or parts[0] != "req":
        return None
    try:
        return int(parts[1], 16), int(parts[2], 16)
    except ValueError:
        return None


def extract(reason: Reason, message: Message) -> Facts:
    """The facts of a record; of a kind without a line here, none."""
    reader = READERS.get(reason.kind)
    return reader(reason, message) if reader is not None else Facts(kind=reason.kind)


def _from_dispatcher(reason: Reason, message: Any) -> Facts:
    key = (reason.sender.incarnation, message.request)
    return Facts(key, _public(message), reason.to, message.attempt, kind=reason.kind)


def _from_instance(reason: Reason, message: Any) -> Facts:
    key = (reason.to.incarnation, message.request)
    sequence = getattr(message, "sequence", None)
    return Facts(key, _public(message), reason.sender, message.attempt, sequence, kind=reason.kind)


def _public(message: Any) -> RequestKey | None:
    return parse_request(getattr(message, "key", ""))


def _told(reason: Reason, message: Any) -> Facts:
    return Facts(parse_request(message.request), parse_request(message.request), kind=reason.kind)


def _reserve_region(reason: Reason, message: Any) -> Facts:
    key = (message.dispatcher.incarnation, message.request)
    return Facts(key, None, reason.sender, message.attempt, ticket=message.ticket, kind=reason.kind)


def _reserve(reason: Reason, message: Any) -> Facts:
    key = (message.dispatcher.incarnation, message.request) if message.dispatcher is not None else None
    return Facts(key, None, reason.sender, message.attempt, kind=reason.kind)


def _region_refused(reason: Reason, message: Any) -> Facts:
    return Facts(instance=reason.to, ticket=message.ticket, kind=reason.kind)


def _step(reason: Reason, message: Any) -> Facts:
    return Facts(instance=reason.sender, sequences=message.sequence, kind=reason.kind)


def _about_receiver(reason: Reason, message: Any) -> Facts:
    return Facts(instance=reason.to, whole_instance=True, kind=reason.kind)


def _about_sender(reason: Reason, message: Any) -> Facts:
    return Facts(instance=reason.sender, whole_instance=True, kind=reason.kind)


READERS: dict[str, Callable[[Reason, Any], Facts]] = {
    "Place": _from_dispatcher,
    "Cancel": _from_dispatcher,
    "Accepted": _from_instance,
    "Refused": _from_instance,
    "Returned": _from_instance,
    "Poisoned": _from_instance,
    "Failed": _from_instance,
    "Preempted": _from_instance,
    "Continued": _from_instance,
    "Reused": _from_instance,
    "Ready": _from_instance,
    "Adopted": _from_instance,
    "Taken": _from_instance,
    "Admitted": _told,
    "FirstToken": _told,
    "Closed": _told,
    "ReserveRegion": _reserve_region,
    "FindRegions": _reserve_region,
    "Reserve": _reserve,
    "RegionRefused": _region_refused,
    "Step": _step,
    "Order": _about_receiver,
    "Shed": _about_receiver,
    "Drain": _about_receiver,
    "Undrain": _about_receiver,
    "HandOver": _about_receiver,
    "FleetView": _about_receiver,
    "StopEngine": _about_sender,
    "Remap": _about_sender,
}
