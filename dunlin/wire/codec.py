"""Messages as protobuf bytes and back: one generic codec, built from the dataclass and checked against the descriptor.

A message type and its protobuf twin have the same name and the same fields in the same order, for the twin's .proto is
made of the message (`dunlin/wire/protos.py`). Columns travel as one `bytes` field of little-endian items. The codec
knows no conversation; `dunlin/wire/envelopes.py` does.
"""

import dataclasses
import sys
import types
import typing
from array import array
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from dunlin.effects import Address, Message
from dunlin.messages import (
    agent,
    batches,
    dispatch,
    engine,
    exchange,
    fleet,
    group,
    lifecycle,
    placement,
    plan,
    pool,
    public,
)
from dunlin.messages import types as nouns
from dunlin.v1 import (
    agent_pb2,
    batches_pb2,
    dispatch_pb2,
    engine_pb2,
    exchange_pb2,
    fleet_pb2,
    group_pb2,
    lifecycle_pb2,
    placement_pb2,
    plan_pb2,
    pool_pb2,
    public_pb2,
    types_pb2,
)

PAIRS = (
    (nouns, types_pb2),
    (agent, agent_pb2),
    (engine, engine_pb2),
    (dispatch, dispatch_pb2),
    (group, group_pb2),
    (pool, pool_pb2),
    (exchange, exchange_pb2),
    (placement, placement_pb2),
    (plan, plan_pb2),
    (fleet, fleet_pb2),
    (public, public_pb2),
    (lifecycle, lifecycle_pb2),
    (batches, batches_pb2),
)
"""Each vocabulary module and the generated module that holds its twins."""

_STALE = "after a change of dunlin/messages run `make protos`"

Fill = Callable[[Any, Any], None]
Read = Callable[[Any], Any]


class CodecError(ValueError):
    """Bytes that are not the message they claim to be, or a type that has no twin."""


@dataclasses.dataclass(frozen=True, slots=True)
class MessageCoder:
    """How one message type becomes protobuf (`fill`) and comes back (`read`)."""

    kind: type[Any]
    twin: type[Protobuf]
    fill: Fill
    read: Read


def encode(message: Message) -> bytes:
    """`message` as protobuf bytes.

    Raises:
        CodecError: the type has no protobuf twin, or a field holds what its wire type cannot.
    """
    coder = message_coder(type(message))
    body = coder.twin()
    try:
        coder.fill(message, body)
    except (TypeError, ValueError) as error:
        raise CodecError(f"cannot encode {type(message).__name__}: {error}") from error
    return body.SerializeToString()


def decode(kind: str, data: bytes) -> Message:
    """The message of the type named `kind` in `data`.

    Raises:
        CodecError: `kind` is unknown, or `data` is malformed (bad protobuf, a column of broken length, an unknown
            enumeration value).
    """
    coder = message_coder(type_named(kind))
    try:
        return typing.cast(Message, coder.read(coder.twin.FromString(data)))
    except (DecodeError, ValueError, TypeError) as error:
        raise CodecError(f"malformed {kind} of {len(data)} bytes: {error}") from error


@cache
def type_named(kind: str) -> type[Any]:
    """The dataclass of this name, if it has a protobuf twin."""
    if kind == "Address":
        return Address
    for module, _ in PAIRS:
        found = getattr(module, kind, None)
        if isinstance(found, type) and found.__module__ == module.__name__ and dataclasses.is_dataclass(found):
            return found
    raise CodecError(f"no message type is called {kind!r}")


def message_coder(kind: Any) -> MessageCoder:
    """The coder of a message type, made on first use.

    Raises:
        CodecError: no twin, or its fields differ from the dataclass's.
    """
    return _make_coder(kind)


@cache
def _make_coder(kind: Any) -> MessageCoder:
    twin = _twin(kind)
    descriptor: Any = twin.DESCRIPTOR
    names = _names(kind)
    wired = tuple(field.name for field in descriptor.fields)
    if names != wired:
        raise CodecError(f"{kind.__name__}: the dataclass has the fields {names}, the .proto {wired}: {_STALE}")
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = [_field(name, hints[name]) for name in names]
    fills = tuple(fill for fill, _ in fields)
    reads = tuple(read for _, read in fields)

    def fill_all(message: Any, body: Any) -> None:
        for fill in fills:
            fill(message, body)

    def read_all(body: Any) -> Any:
        return kind(*[read(body) for read in reads])

    return MessageCoder(kind, twin, fill_all, read_all)


def _names(kind: Any) -> tuple[str, ...]:
    """The fields of a record, in order; none of what is no record."""
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return getattr(kind, "_fields", ())


def twins_of(vocabulary: types.ModuleType) -> types.ModuleType:
    """The generated module that holds a vocabulary's twins.

    Raises:
        CodecError: it has none.
    """
    for module, generated in PAIRS:
        if module is vocabulary:
            return generated
    raise CodecError(f"{vocabulary.__name__} has no .proto")


def _twin(kind: type[Any]) -> type[Protobuf]:
    for _, generated in PAIRS:
        found = getattr(generated, kind.__name__, None)
        if isinstance(found, type) and issubclass(found, Protobuf):
            return found
    raise CodecError(f"{kind.__name__} has no message of that name in proto/dunlin/v1: {_STALE}")


def _field(name: str, hint: Any, is_optional: bool = False) -> tuple[Fill, Read]:
    """How the field `name` of type `hint` is filled and read."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _column(name, hint.__metadata__[0])
    if origin in (typing.Union, types.UnionType):
        return _optional(name, next(arg for arg in typing.get_args(hint) if arg is not type(None)))
    if origin is tuple:
        return _repeated(name, typing.get_args(hint)[0])
    if _names(hint):
        return _nested(name, typing.cast(type[Any], hint))
    return _scalar(name, hint, is_optional)


def _scalar(name: str, kind: type[Any], is_optional: bool) -> tuple[Fill, Read]:
    def fill(message: Any, body: Any) -> None:
        value = getattr(message, name)
        # What is absent on the wire reads as this anyway, except where absence means None.
        if value or is_optional or value is None:
            setattr(body, name, value)

    if issubclass(kind, IntEnum):
        return fill, lambda body: kind(getattr(body, name))
    return fill, lambda body: getattr(body, name)


def _column(name: str, typecode: str) -> tuple[Fill, Read]:
    def fill(message: Any, body: Any) -> None:
        column = getattr(message, name)
        if column.typecode != typecode:
            raise TypeError(f"{name} is a column of {column.typecode!r}, not {typecode!r}")
        if column:
            setattr(body, name, _little_endian(column).tobytes())

    def read(body: Any) -> Any:
        column = array(typecode)
        column.frombytes(getattr(body, name))
        return _little_endian(column)

    return fill, read


def _little_endian(column: Any) -> Any:
    if sys.byteorder == "little":
        return column
    swapped = column[:]
    swapped.byteswap()
    return swapped


def _nested(name: str, kind: type[Any]) -> tuple[Fill, Read]:
    def fill(message: Any, body: Any) -> None:
        part = getattr(body, name)
        part.SetInParent()
        message_coder(kind).fill(getattr(message, name), part)

    return fill, lambda body: message_coder(kind).read(getattr(body, name))


def _optional(name: str, kind: Any) -> tuple[Fill, Read]:
    fill_present, read_present = _field(name, kind, is_optional=True)

    def fill(message: Any, body: Any) -> None:
        if getattr(message, name) is not None:
            fill_present(message, body)

    def read(body: Any) -> Any:
        return read_present(body) if body.HasField(name) else None

    return fill, read


def _repeated(name: str, kind: Any) -> tuple[Fill, Read]:
    if not _names(kind):
        return (
            lambda message, body: getattr(body, name).extend(getattr(message, name)),
            lambda body: tuple(getattr(body, name)),
        )
    item = typing.cast(type[Any], kind)

    def fill(message: Any, body: Any) -> None:
        parts = getattr(body, name)
        for value in getattr(message, name):
            message_coder(item).fill(value, parts.add())

    def read(body: Any) -> Any:
        reader = message_coder(item).read
        return tuple(reader(part) for part in getattr(body, name))

    return fill, read
