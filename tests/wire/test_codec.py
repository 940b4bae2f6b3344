"""Every message type survives the wire, and the dataclasses agree with the .proto files."""

import dataclasses
import types
import typing
from array import array
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dunlin.effects import Address
from dunlin.messages import public
from dunlin.messages.declare import declaration_of
from dunlin.messages.dispatch import Tokens
from dunlin.messages.types import FinishReason, f32, i8, i32, i64
from dunlin.wire.codec import PAIRS, CodecError, decode, encode, message_coder
from dunlin.wire.envelopes import STREAM_PROTOCOLS

BITS = {"b": 8, "i": 32, "q": 64}


def wire_types() -> list[type[Any]]:
    """Every type that has to have a protobuf twin: what is declared for the wire, and the public door's dataclasses."""
    own = [kind for module, _ in PAIRS for kind in vars(module).values() if is_own(module, kind)]
    return [Address, *(kind for kind in own if declaration_of(kind) or kind.__module__ == public.__name__)]


def is_own(module: types.ModuleType, value: Any) -> bool:
    return isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == module.__name__


def enums() -> list[type[IntEnum]]:
    return [
        value
        for module, _ in PAIRS
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, IntEnum)
        and value is not IntEnum
        and value.__module__ == module.__name__
    ]


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Random values of a field's type."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return columns(hint.__metadata__[0])
    if origin in (typing.Union, types.UnionType):
        inner = next(arg for arg in typing.get_args(hint) if arg is not type(None))
        return st.none() | values(inner)
    if origin is tuple:
        return st.lists(values(typing.get_args(hint)[0]), max_size=3).map(tuple)
    if fields_of(hint):
        return messages(typing.cast(type[Any], hint))
    if issubclass(hint, IntEnum):
        return st.sampled_from(list(hint))
    return SCALARS[hint]


SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    bytes: st.binary(max_size=20),
}


def columns(typecode: str) -> st.SearchStrategy[Any]:
    if typecode == "f":
        return st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(lambda items: array("f", items))
    top = 2 ** (BITS[typecode] - 1)
    return st.lists(st.integers(-top, top - 1), max_size=5).map(lambda items: array(typecode, items))


def messages(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return st.builds(kind, **{name: values(hints[name]) for name in fields_of(kind)})


def fields_of(kind: type[Any]) -> tuple[str, ...]:
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    return getattr(kind, "_fields", ())


@pytest.mark.parametrize("kind", wire_types(), ids=lambda kind: kind.__name__)
def test_every_message_comes_back_as_it_was(kind: type[Any]) -> None:
    @settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(messages(kind))
    def check(message: Any) -> None:
        assert decode(kind.__name__, encode(message)) == message

    check()


def test_no_message_of_the_proto_files_lacks_a_dataclass() -> None:
    envelopes = {"EngineCommand", "EngineEvent"}
    envelopes |= {f"{conversation.name}{side}" for conversation in STREAM_PROTOCOLS for side in ("Command", "Event")}
    wired = {name for _, module in PAIRS for name in module.DESCRIPTOR.message_types_by_name}
    assert wired - envelopes == {kind.__name__ for kind in wire_types()}


@pytest.mark.parametrize("kind", enums(), ids=lambda kind: kind.__name__)
def test_enumerations_agree_with_the_proto_files(kind: type[IntEnum]) -> None:
    wired = {name: enum for _, module in PAIRS for name, enum in module.DESCRIPTOR.enum_types_by_name.items()}[
        kind.__name__
    ]
    prefix = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in kind.__name__).lstrip("_")
    assert {value.name: value.number for value in wired.values} == {f"{prefix}_{item.name}": item for item in kind}


def test_a_column_of_the_wrong_type_is_refused() -> None:
    wrong = Tokens(i32([1]), i32([1]), i64([5]), i32([9]), f32([0.0]), i8([FinishReason.RUNNING]))
    with pytest.raises(CodecError, match="request is a column of 'i', not 'q'"):
        encode(wrong)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("Tokens", b"\x0a\x03abc"),  # three bytes are no column of 64-bit integers
        ("Cancel", b"\xff\xff\xff"),
        ("Refused", b"\x18\x63"),  # no refusal has the number 99
        ("NoSuchMessage", b""),
    ],
)
def test_malformed_bytes_are_a_codec_error(kind: str, data: bytes) -> None:
    with pytest.raises(CodecError):
        decode(kind, data)


def test_a_field_that_only_one_side_has_is_noticed() -> None:
    @dataclasses.dataclass(frozen=True)
    class Cancel:
        request: int
        attempt: int

    with pytest.raises(CodecError, match="the dataclass has the fields"):
        message_coder(Cancel)
