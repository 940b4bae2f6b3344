"""Envelopes: one header and one message of a conversation's vocabulary, as bytes.

Each conversation is one bidirectional stream per pair of processes, opened by the side that commands (the dialer).
The child engine's socket carries the same bytes, so there is one encoding of a message and not two.
"""

from dataclasses import dataclass
from typing import Any, cast

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from dunlin.effects import Address, Message
from dunlin.v1 import dispatch_pb2, engine_pb2, exchange_pb2, fleet_pb2, group_pb2, plan_pb2, pool_pb2
from dunlin.wire.codec import CodecError, coder_of, type_named


@dataclass(frozen=True, slots=True)
class Header:
    """The sender of the message, with the incarnation that the receiver's core fences by."""

    sender: Address


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
            coder_of(kind).fill(message, body)
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
            return header, coder_of(self._kinds[name]).read(getattr(envelope, name))
        except (DecodeError, ValueError, TypeError) as error:
            raise CodecError(f"malformed {self._twin.__name__} of {len(data)} bytes: {error}") from error


ENGINE_COMMAND = Envelope(engine_pb2.EngineCommand)
ENGINE_EVENT = Envelope(engine_pb2.EngineEvent)


@dataclass(frozen=True, slots=True)
class Conversation:
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


DISPATCH = Conversation(
    "Dispatch", Envelope(dispatch_pb2.DispatchCommand), Envelope(dispatch_pb2.DispatchEvent), ("dispatcher",)
)
GROUP = Conversation("Group", Envelope(group_pb2.GroupCommand), Envelope(group_pb2.GroupEvent), ("instance",))
POOL = Conversation("Pool", Envelope(pool_pb2.PoolCommand), Envelope(pool_pb2.PoolEvent), ("instance",))
EXCHANGE = Conversation(
    "Exchange", Envelope(exchange_pb2.ExchangeCommand), Envelope(exchange_pb2.ExchangeEvent), ("kvstore",)
)
PLAN = Conversation("Plan", Envelope(plan_pb2.PlanCommand), Envelope(plan_pb2.PlanEvent), ("global_manager",))
FLEET = Conversation(
    "Fleet",
    Envelope(fleet_pb2.FleetCommand),
    Envelope(fleet_pb2.FleetEvent),
    ("dispatcher", "global_manager", "instance", "kvstore"),
)
CONVERSATIONS = (DISPATCH, GROUP, POOL, EXCHANGE, PLAN, FLEET)
