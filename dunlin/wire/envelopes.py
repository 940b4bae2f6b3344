"""Envelopes: one header and one message of a conversation's vocabulary, as bytes.

Each conversation is one bidirectional stream per pair of processes, opened by the side that commands (the dialer).
The child engine's socket carries the same bytes, so there is one encoding of a message and not two.
"""

from dataclasses import dataclass
from types import ModuleType
from typing import Any, cast

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from dunlin.effects import Address, Message
from dunlin.messages import dispatch, engine, exchange, fleet, group, placement, plan, pool
from dunlin.messages.declare import Parties
from dunlin.messages.types import Header
from dunlin.wire.codec import CodecError, message_coder, twins_of, type_named


class Envelope:
    """One direction of a conversation: the messages that may travel there."""

    def __init__(self, twin: type[Protobuf]) -> None:
        self._twin = twin
        descriptor: Any = twin.DESCRIPTOR
        self._bodies = {field.message_type.name: field.name for field in descriptor.oneofs_by_name["body"].fields}
        self._kinds = {name: type_named(kind) for kind, name in self._bodies.items()}

    @property
    def kinds(self) -> tuple[type[Any], ...]:
        """The message types that this direction carries."""
        return tuple(self._kinds.values())

    def encode(self, header: Header, message: Message) -> bytes:
        """The bytes of one frame.

        Raises:
            CodecError: this direction does not carry such a message, or a field holds what it cannot.
        """
        kind = type(message)
        name = self._bodies.get(kind.__name__)
        if name is None:
            raise CodecError(f"{self._twin.__name__} carries no {kind.__name__}")
        envelope: Any = self._twin()
        sender = envelope.header.sender
        sender.role, sender.name, sender.incarnation = header.sender.role, header.sender.name, header.sender.incarnation
        body = getattr(envelope, name)
        body.SetInParent()
        try:
            message_coder(kind).fill(message, body)
        except (TypeError, ValueError) as error:
            raise CodecError(f"cannot encode {kind.__name__}: {error}") from error
        return cast(bytes, envelope.SerializeToString())

    def decode(self, data: bytes) -> tuple[Header, Message]:
        """The header and the message of one frame.

        Raises:
            CodecError: malformed bytes, or no message in them.
        """
        try:
            envelope: Any = self._twin.FromString(data)
            name = envelope.WhichOneof("body")
            if name is None:
                raise CodecError(f"a {self._twin.__name__} of {len(data)} bytes without a message this version knows")
            sender = envelope.header.sender
            header = Header(Address(sender.role, sender.name, sender.incarnation))
            return header, message_coder(self._kinds[name]).read(getattr(envelope, name))
        except (DecodeError, ValueError, TypeError) as error:
            raise CodecError(f"malformed {self._twin.__name__} of {len(data)} bytes: {error}") from error


@dataclass(frozen=True, slots=True)
class StreamProtocol:
    """A stream between two services: its method, what the dialer sends and what the acceptor sends.

    `callers` are the roles that may dial it.
    """

    name: str
    command: Envelope
    event: Envelope
    callers: tuple[str, ...]

    @property
    def method(self) -> str:
        """The gRPC path."""
        return f"/dunlin.v1.{self.name}/Attach"


def _conversation(vocabulary: ModuleType) -> StreamProtocol:
    """The stream of a vocabulary's `PARTIES`."""
    parties: Parties = vocabulary.PARTIES
    generated = twins_of(vocabulary)
    command, event = (Envelope(getattr(generated, parties.name + side)) for side in ("Command", "Event"))
    return StreamProtocol(parties.name, command, event, parties.dialers)


_ENGINE = _conversation(engine)
ENGINE_COMMAND, ENGINE_EVENT = _ENGINE.command, _ENGINE.event

DISPATCH = _conversation(dispatch)
GROUP = _conversation(group)
POOL = _conversation(pool)
EXCHANGE = _conversation(exchange)
PLACEMENT = _conversation(placement)
PLAN = _conversation(plan)
FLEET = _conversation(fleet)
STREAM_PROTOCOLS = (DISPATCH, GROUP, POOL, EXCHANGE, PLACEMENT, PLAN, FLEET)
