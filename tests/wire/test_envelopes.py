"""Envelopes: what each direction of a conversation carries, and frames that are none."""

import dataclasses
import types
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dunlin.effects import Address
from dunlin.messages import dispatch, engine, exchange, fleet, group, placement, plan, pool
from dunlin.messages.declare import declaration_of
from dunlin.messages.dispatch import Cancel
from dunlin.messages.types import Header
from dunlin.wire.codec import CodecError
from dunlin.wire.envelopes import DISPATCH, ENGINE_COMMAND, ENGINE_EVENT, STREAM_PROTOCOLS, Envelope


def is_own(module: types.ModuleType, value: Any) -> bool:
    return isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == module.__name__


@pytest.mark.parametrize(
    ("vocabulary", "command", "event"),
    [
        (engine, ENGINE_COMMAND, ENGINE_EVENT),
        *(
            (vocabulary, conversation.command, conversation.event)
            for vocabulary, conversation in zip(
                (dispatch, group, pool, exchange, placement, plan, fleet), STREAM_PROTOCOLS, strict=True
            )
        ),
    ],
)
def test_a_direction_carries_what_is_declared_for_it(
    vocabulary: types.ModuleType, command: Envelope, event: Envelope
) -> None:
    own = [kind for kind in vars(vocabulary).values() if is_own(vocabulary, kind)]
    said = {kind: said for kind in own if (said := declaration_of(kind)) is not None}
    assert set(command.kinds) == {kind for kind, one in said.items() if one.command is not None}
    assert set(event.kinds) == {kind for kind, one in said.items() if one.event is not None}


def test_the_header_names_the_sender_and_its_incarnation() -> None:
    header = Header(Address("dispatcher", "d0", 7))
    frame = DISPATCH.command.encode(header, Cancel(request=3, attempt=1))
    assert DISPATCH.command.decode(frame) == (header, Cancel(request=3, attempt=1))


def test_a_direction_carries_only_its_own_messages() -> None:
    with pytest.raises(CodecError, match="DispatchEvent carries no Cancel"):
        DISPATCH.event.encode(Header(Address("instance", "i0", 1)), Cancel(request=1, attempt=1))


@pytest.mark.parametrize("envelope", [DISPATCH.command, ENGINE_EVENT], ids=["dispatch", "engine"])
@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=64))
def test_random_bytes_never_escape_as_another_error(envelope: Envelope, data: bytes) -> None:
    try:
        envelope.decode(data)
    except CodecError:
        pass


def test_a_frame_without_a_message_this_version_knows_is_refused() -> None:
    header_only = DISPATCH.command.encode(Header(Address("dispatcher", "d0", 7)), Cancel(1, 1))[:18]
    with pytest.raises(CodecError, match="without a message this version knows"):
        DISPATCH.command.decode(b"")
    with pytest.raises(CodecError, match=f"malformed DispatchCommand of {len(header_only)} bytes"):
        DISPATCH.command.decode(header_only)


def test_a_field_that_cannot_be_encoded_is_named_with_its_message() -> None:
    with pytest.raises(CodecError, match="cannot encode Cancel"):
        DISPATCH.command.encode(Header(Address("dispatcher", "d0", 7)), Cancel(1 << 80, 1))


def test_every_stream_has_a_method_of_its_own_and_the_engine_none() -> None:
    assert [protocol.method for protocol in STREAM_PROTOCOLS] == [
        f"/dunlin.v1.{name}/Attach" for name in ("Dispatch", "Group", "Pool", "Exchange", "Placement", "Plan", "Fleet")
    ]
    assert DISPATCH.callers == ("dispatcher",)
    assert "Engine" not in {protocol.name for protocol in STREAM_PROTOCOLS}
