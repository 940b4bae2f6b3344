"""Pipes in transit rooms, and the messages of a step that go through two of them."""

from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.host_tier import Bytes
from dunlin.engine.transfer.peer_link import PeerLink, PeerPart
from dunlin.engine.transfer.room_pipe import HEADER_BYTES, PipeReader, PipeWriter

TEXT = np.random.default_rng(1).integers(0, 255, 1000, dtype=np.uint8)


def room(capacity: int = 64) -> Bytes:
    return np.zeros(HEADER_BYTES + capacity, dtype=np.uint8)


def writer(memory: Bytes, exchange: int = 1) -> PipeWriter:
    return PipeWriter(memory, exchange, nullcontext)


def test_what_had_arrived_before_a_room_was_set_aside_is_read_first() -> None:
    memory, found = room(), np.empty(24, dtype=np.uint8)
    ahead, behind = writer(memory), PipeReader(memory, 1)
    ahead.write(TEXT[:20])
    behind.read_into(found[:3])
    behind.set_aside()
    other = PipeReader(memory, 2)
    writer(memory, 2).write(TEXT[500:510])
    assert ahead.write(TEXT[20:24]) == 0
    assert behind.read_into(found[3:8]) == 5
    buffer = np.empty(10, dtype=np.uint8)
    assert other.read_into(buffer) == 10
    assert buffer.tobytes() == TEXT[500:510].tobytes()
    behind.open()
    assert ahead.write(TEXT[20:24]) == 4
    assert behind.read_into(found[8:]) == 16
    assert found.tobytes() == TEXT[:24].tobytes()


@given(capacity=st.integers(1, 64), sizes=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), max_size=40))
def test_bytes_arrive_in_order_and_no_more_are_under_way_than_there_is_room(
    capacity: int, sizes: list[tuple[int, int]]
) -> None:
    memory = room(capacity)
    ahead, behind = writer(memory), PipeReader(memory, 1)
    written, found = 0, b""
    for put, taken in sizes:
        written += ahead.write(TEXT[written : written + put])
        assert written - len(found) <= capacity
        buffer = np.empty(taken, dtype=np.uint8)
        found += buffer[: behind.read_into(buffer)].tobytes()
        assert found == TEXT[: len(found)].tobytes()
        assert len(found) <= written
    rest = np.empty(capacity, dtype=np.uint8)
    assert behind.read_into(rest) == written - len(found)


def test_a_room_is_written_only_for_the_exchange_that_it_was_opened_for() -> None:
    memory = room()
    early = writer(memory, 2)
    assert early.write(TEXT[:8]) == 0
    before = PipeReader(memory, 1)
    late = writer(memory, 1)
    assert (late.write(TEXT[:8]), early.write(TEXT[:8])) == (8, 0)
    after = PipeReader(memory, 2)
    assert (late.write(TEXT[:8]), after.read_into(np.empty(8, dtype=np.uint8))) == (0, 0)
    assert early.write(TEXT[8:16]) == 8
    buffer = np.empty(8, dtype=np.uint8)
    assert after.read_into(buffer) == 8
    assert buffer.tobytes() == TEXT[8:16].tobytes()
    assert before is not after


def links(capacity: int) -> tuple[PeerLink, PeerLink]:
    here, there = room(capacity), room(capacity)
    return (
        PeerLink(PipeReader(here, 1), writer(there), lambda: True),
        PeerLink(PipeReader(there, 1), writer(here), lambda: True),
    )


@pytest.mark.parametrize("capacity", [1, 7, 100, 4096])
def test_messages_arrive_whole_layer_by_layer(capacity: int) -> None:
    """A sender may be a layer ahead: its messages wait in the room, or before it."""
    ahead, behind = links(capacity)
    sizes = {PeerPart.QUERY: 40, PeerPart.ANSWER: 0}
    behind.sizes = sizes
    for layer in range(3):
        ahead.send(layer, PeerPart.QUERY, [torch.full((5,), float(layer)), torch.full((5,), float(layer))])
        ahead.send(layer, PeerPart.ANSWER, [])
    found: list[tuple[int, PeerPart, bytes]] = []
    for layer in range(3):
        while len(found) < 2 * layer + 2:
            ahead.flush()
            found += [(layer, part, content.tobytes()) for part, content in behind.poll(layer)]
    wanted = [(layer, torch.full((10,), float(layer)).numpy().tobytes()) for layer in range(3)]
    assert found[::2] == [(layer, PeerPart.QUERY, content) for layer, content in wanted]
    assert found[1::2] == [(layer, PeerPart.ANSWER, b"") for layer in range(3)]
    assert ahead.is_sent
    assert all(first[0] <= second[0] for first, second in pairwise(found))


@pytest.mark.parametrize(("layer", "part", "size"), [(0, PeerPart.KEYS, 40), (0, PeerPart.QUERY, 44)])
def test_a_peer_that_computes_something_else_is_found_out(layer: int, part: PeerPart, size: int) -> None:
    ahead, behind = links(4096)
    behind.sizes = {PeerPart.QUERY: 40}
    ahead.send(layer, part, [torch.zeros(size // 4)])
    ahead.flush()
    with pytest.raises(TransferError, match=f"part {int(part)} of {size} bytes for layer 0"):
        list(behind.poll(0))


def test_a_forgotten_peer_is_gone() -> None:
    memory = room()
    link = PeerLink(PipeReader(memory, 1), writer(memory), lambda: False)
    with pytest.raises(TransferError, match="the peer is gone"):
        link.check_met()


@pytest.mark.parametrize("values", [10, 1 << 15])
def test_a_small_message_is_written_at_once_and_a_large_one_is_not_copied(values: int) -> None:
    entered: list[int] = []

    def guard() -> AbstractContextManager[None]:
        entered.append(1)
        return nullcontext()

    memory = room(1 << 19)
    ahead = PeerLink(PipeReader(room(), 1), PipeWriter(memory, 1, guard), lambda: True)
    behind = PeerLink(PipeReader(memory, 1), writer(room()), lambda: True)
    sent = [torch.full((values,), 1.0), torch.full((values,), 2.0)]
    behind.sizes = {PeerPart.ANSWER: 8 * values}
    ahead.send(0, PeerPart.ANSWER, sent)
    assert ahead.size_bytes == 24 + 8 * values
    ahead.flush()
    ((_, content),) = behind.poll(0)
    assert content.tobytes() == torch.cat(sent).numpy().tobytes()
    assert len(entered) == (1 if values == 10 else 3)
