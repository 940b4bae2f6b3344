"""What a recorded decision refers to: the request, the instance, the sequences. Read by what the message declares.

The monitor keeps and finds records by it, `dunlin explain` leaves out by it what belongs to another request. A message
needs no line here: its `about` (`dunlin.messages.declare.Subject`) names one of the readers below.
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dunlin.effects import Address, Message
from dunlin.messages.declare import Declaration, Hold, Subject, declaration_of
from dunlin.messages.types import i64

if TYPE_CHECKING:
    Ints = array[int]
else:  # Python 3.11 cannot subscript array at run time
    Ints = array

RequestKey = tuple[int, int]
"""(incarnation of the dispatcher, its number of the request)."""

_SILENT = Declaration()


@dataclass(frozen=True, slots=True)
class References:
    """What to find a record by. `whole_instance`: it concerns whatever the instance had accepted at that time.

    `request` is the number that a dispatcher gives it, `public` the name that it keeps at every dispatcher. `hold` is
    what the message says of the attempt's place at the instance.
    """

    request: RequestKey | None = None
    public: RequestKey | None = None
    instance: Address | None = None
    attempt: int = 0
    sequence: int | None = None
    ticket: int | None = None
    sequences: Ints = field(default_factory=i64)
    whole_instance: bool = False
    hold: Hold | None = None

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


def references_of(sender: Address, to: Address, message: Message) -> References:
    """What a message from `sender` to `to` refers to; nothing, if it does not say what it is about."""
    said = declaration_of(type(message)) or _SILENT
    reader = _READERS.get(said.about)
    return reader(sender, to, message, said.hold) if reader is not None else References()


def _senders_request(sender: Address, to: Address, message: Any, hold: Hold | None) -> References:
    key = (sender.incarnation, message.request)
    return References(key, _public(message), to, message.attempt, hold=hold)


def _receivers_request(sender: Address, to: Address, message: Any, hold: Hold | None) -> References:
    key = (to.incarnation, message.request)
    sequence = getattr(message, "sequence", None)
    return References(key, _public(message), sender, message.attempt, sequence, hold=hold)


def _public(message: Any) -> RequestKey | None:
    return parse_request(getattr(message, "key", ""))


def _dispatchers_request(sender: Address, to: Address, message: Any, hold: Hold | None) -> References:
    key = (message.dispatcher.incarnation, message.request) if message.dispatcher is not None else None
    return References(key, None, sender, message.attempt, ticket=getattr(message, "ticket", None), hold=hold)


def _request_id(sender: Address, to: Address, message: Any, hold: Hold | None) -> References:
    key = parse_request(message.request)
    return References(key, key, hold=hold)


def _ticket(sender: Address, to: Address, message: Any, hold: Hold | None) -> References:
    return References(instance=to, ticket=message.ticket)


def _sequences(sender: Address, to: Address, message: Any, hold: Hold | None) -> References:
    return References(instance=sender, sequences=message.sequence)


def _sender(sender: Address, to: Address, message: Any, hold: Hold | None) -> References:
    return References(instance=sender, whole_instance=True)


def _receiver(sender: Address, to: Address, message: Any, hold: Hold | None) -> References:
    return References(instance=to, whole_instance=True)


_READERS: dict[Subject | None, Callable[[Address, Address, Any, Hold | None], References]] = {
    Subject.SENDERS_REQUEST: _senders_request,
    Subject.RECEIVERS_REQUEST: _receivers_request,
    Subject.DISPATCHERS_REQUEST: _dispatchers_request,
    Subject.REQUEST_ID: _request_id,
    Subject.TICKET: _ticket,
    Subject.SEQUENCES: _sequences,
    Subject.SENDER: _sender,
    Subject.RECEIVER: _receiver,
}
