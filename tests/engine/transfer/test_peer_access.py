"""What an engine publishes of its memory."""

import os
from typing import cast

import pytest

from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.peer_page import PeerPageView
from dunlin.messages.types import ArenaGeometry, EngineAgent, i32, i64
from dunlin.wire.codec import decode
from tests.engine.transfer.engines import LAYER_BYTES, SLOT_BYTES, SLOTS, Engine


def read(engine: Engine) -> ArenaGeometry:
    agent = cast(EngineAgent, decode("EngineAgent", engine.access.agent))
    page = PeerPageView(f"/proc/{agent.pid}/fd/{agent.page_fd}", agent.life)
    return cast(ArenaGeometry, decode("ArenaGeometry", page.geometry()[1]))


def test_the_geometry_says_where_every_slot_lies() -> None:
    engine = Engine()
    found = read(engine)
    half = LAYER_BYTES // 2
    assert (found.layout, found.kv_dtype, found.slot_bytes) == (0, "float32", SLOT_BYTES)
    assert (found.layer, found.slots) == (i32([0, 1]), i64([SLOTS, SLOTS]))
    assert (found.run_layer, found.run_length) == (i32([0, 1, 1]), i64([LAYER_BYTES, half, half]))
    assert found.run_offset == i64([2 * LAYER_BYTES, LAYER_BYTES, 0])
    assert (found.arena_inode, found.arena_bytes) == (os.fstat(engine.arena_fd).st_ino, 4 * LAYER_BYTES)
    assert (found.room_inode, found.rooms, found.room_bytes) == (os.fstat(engine.rooms.fd).st_ino, 4, 1 << 16)


def test_layers_without_slots_are_not_published() -> None:
    engine = Engine()
    engine.slab.change_layout(2, [0, 9])
    engine.access.publish(engine.arena_fd, engine.slab, engine.runs)
    found = read(engine)
    assert (found.layout, found.layer, found.slots, found.run_layer) == (2, i32([1]), i64([9]), i32([1, 1]))


def test_what_was_withdrawn_is_read_by_nobody() -> None:
    engine = Engine()
    engine.access.withdraw()
    with pytest.raises(TransferError, match="layout is changing"):
        read(engine)
