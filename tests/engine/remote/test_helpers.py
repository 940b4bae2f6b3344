"""Transfers between the helpers of two nodes, real processes: what arrives, in which order, and what is refused."""

import os
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dunlin.engine.remote.peer_lanes import KV_WINDOW
from dunlin.engine.remote.protocol import CHUNK_BYTES, GREETING_BYTES, TOKEN_BYTES, UNWELCOME, Greeting
from dunlin.messages.engine import CancelTransfer, Forget, TransferDone, Unsupported
from dunlin.messages.types import EngineAgent, Payload, Priority, Region, TransferStatus, i64
from dunlin.wire.codec import decode
from tests.engine.remote.nodes import LAYERS, SLOT_BYTES, SLOTS, Cable, Node, kv_transfer

SENDER_SEED, RECEIVER_SEED = 1, 2


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Node, Node]]:
    """A sender that has met a receiver; tests give the receiver's rooms numbers of their own."""
    with Node("a", SENDER_SEED) as sender, Node("b", RECEIVER_SEED) as receiver:
        assert sender.meet(receiver) == ""
        yield sender, receiver


@pytest.mark.parametrize("seed", range(12))
def test_any_region_arrives_in_the_slots_of_its_room_and_nowhere_else(pair: tuple[Node, Node], seed: int) -> None:
    sender, receiver = pair
    draw, handle = random.Random(seed), 100 + seed
    count = draw.choice((1, 7, 40, 700, 2000))
    first, room_slots = draw.randrange(5), draw.sample(range(SLOTS), count + 10)
    own, layers = draw.sample(range(SLOTS), count), (draw.randrange(LAYERS), LAYERS)
    receiver.rooms.open(handle, room_slots, [1] * len(room_slots))
    before = receiver.memory.copy()
    region = Region(*layers, first, first + count)
    extents: dict[str, Any] = {"extent_start": i64(own), "extent_length": i64([1] * count)}
    done = sender.send(kv_transfer(seed + 1, receiver, handle=handle, region=region, **extents))
    assert (done.status, done.detail) == (TransferStatus.OK, "")
    theirs, where = room_slots[first : first + count], range(*layers)
    assert receiver.slots(theirs, where) == sender.slots(own, where)
    assert done.moved_bytes == len(receiver.slots(theirs, where))
    whole = before.reshape(LAYERS, SLOTS, -1)
    for layer in where:
        whole[layer, theirs] = receiver.memory.reshape(LAYERS, SLOTS, -1)[layer, theirs]
    assert before.tobytes() == receiver.memory.tobytes()


def test_activations_go_from_room_to_room(pair: tuple[Node, Node]) -> None:
    sender, receiver = pair
    content = random.Random(3).randbytes(2 * CHUNK_BYTES - 100)[: 1 << 20]
    sender.activations.view(1, len(content))[:] = list(content)
    rooms = {"payload": Payload.ACTIVATION, "room": 1, "length_bytes": len(content)}
    done = sender.send(kv_transfer(50, receiver, handle=3, **rooms))
    assert (done.status, done.moved_bytes) == (TransferStatus.OK, len(content))
    assert receiver.activations.view(3, len(content)).tobytes() == content
    done = sender.send(kv_transfer(51, receiver, handle=5, **rooms))
    assert (done.status, done.detail) == (TransferStatus.FAILED, "there is no transit room 5, only 1 to 4")


def test_an_activation_waits_for_no_kv(pair: tuple[Node, Node]) -> None:
    sender, receiver = pair
    receiver.rooms.open(200, [0], [SLOTS])
    cable, going_on = Cable(receiver), threading.Event()
    cable.held = going_on
    assert sender.meet(receiver, endpoint=cable.endpoint) == ""
    sender.order(kv_transfer(60, receiver, handle=200))
    rooms = {"payload": Payload.ACTIVATION, "room": 1, "length_bytes": 64, "priority": Priority.ACTIVATION}
    done = sender.send(kv_transfer(61, receiver, handle=1, **rooms))
    assert (done.ticket, done.status) == (61, TransferStatus.OK)
    going_on.set()
    done = sender.event()
    assert (done.ticket, done.status, cable.connections) == (60, TransferStatus.OK, 2)
    cable.close()
    assert sender.meet(receiver) == ""


def test_what_is_more_urgent_overtakes_what_has_not_left(pair: tuple[Node, Node]) -> None:
    sender, receiver = pair
    receiver.rooms.open(201, [0], [SLOTS])
    receiver.pause()
    sender.order(kv_transfer(62, receiver, handle=201, priority=Priority.CHECKPOINT))
    sender.order(kv_transfer(63, receiver, 2000, handle=201, priority=Priority.KV))
    receiver.go_on()
    assert [sender.event().ticket for _ in range(2)] == [63, 62]
    assert SLOTS * LAYERS * SLOT_BYTES > 2 * KV_WINDOW * CHUNK_BYTES, "or the first could end before"


REFUSED: dict[str, dict[str, Any]] = {
    "the room 999 is closed": {"handle": 999},
    "the transfer names no room": {"handle": 0},
    "the peer's layout is 0, the transfer was ordered for 5": {"peer_layout": 5},
    "the peer's layout is 0, the transfer was ordered for 3": {"layout": 3},
    f"slots for {SLOTS - 1} tokens are named, the region has {SLOTS}": {"extent_length": i64([SLOTS - 1])},
    f"extent of 1024 slots from {SLOTS - 1000} lies outside the slab of {SLOTS}": {"extent_start": i64([SLOTS - 1000])},
    "the peer does not hold layers 2 to 3": {"region": Region(0, 3, 0, SLOTS)},
    "the peer's extents are 100 slots for 1024 tokens": {"handle": 300},
}


@pytest.mark.parametrize("detail", sorted(REFUSED))
def test_what_cannot_be_written_fails_with_the_cause(pair: tuple[Node, Node], detail: str) -> None:
    sender, receiver = pair
    receiver.rooms.open(300, [0], [100])
    receiver.rooms.open(301, [0], [SLOTS])
    before = receiver.slots(range(100, SLOTS))
    done = sender.send(kv_transfer(70, receiver, **{"handle": 301, **REFUSED[detail]}))
    assert (done.status, done.detail) == (TransferStatus.FAILED, detail)
    if "handle" in REFUSED[detail]:
        assert receiver.slots(range(100, SLOTS)) == before


def test_tickets_are_answered_once_and_strangers_refused(pair: tuple[Node, Node]) -> None:
    sender, receiver = pair
    receiver.rooms.open(400, [0], [SLOTS])
    receiver.pause()
    sender.order(kv_transfer(80, receiver, handle=400))
    sender.order(kv_transfer(80, receiver, handle=400))
    refused = sender.event()
    sender.order(CancelTransfer(80))
    sender.order(CancelTransfer(80))
    sender.order(CancelTransfer(81))
    receiver.go_on()
    done = sender.event()
    assert (type(refused), refused.ticket) == (Unsupported, 80)
    assert (done.ticket, done.status) == (80, TransferStatus.CANCELLED)
    assert done.moved_bytes < SLOTS * LAYERS * SLOT_BYTES
    sender.order(kv_transfer(82, sender))
    refused = sender.event()
    assert (type(refused), refused.ticket) == (Unsupported, 82)


@pytest.mark.parametrize(
    ("changed", "detail"),
    [
        ({"token": bytes(TOKEN_BYTES)}, "the peer refuses"),
        ({"token": b""}, "the peer has no transfer helper"),
        ({"endpoint": ""}, "the peer has no transfer helper"),
        ({"endpoint": "127.0.0.1:1"}, "Connection refused"),
        ({"endpoint": "nonsense"}, "invalid literal"),
    ],
)
def test_a_peer_without_the_right_metadata_is_not_met(
    pair: tuple[Node, Node], changed: dict[str, object], detail: str
) -> None:
    sender, receiver = pair
    assert detail in sender.meet(receiver, **changed)
    done = sender.send(kv_transfer(90, receiver)) if changed.get("endpoint") else None
    assert done is None or done.status is TransferStatus.FAILED
    assert sender.meet(receiver) == ""


def test_a_connection_without_the_secret_is_ended_and_writes_nothing(pair: tuple[Node, Node]) -> None:
    _, receiver = pair
    agent = decode("EngineAgent", receiver.agent)
    assert isinstance(agent, EngineAgent)
    host, _, port = agent.endpoint.rpartition(":")
    before = receiver.memory.tobytes()
    for words in (Greeting(os.urandom(TOKEN_BYTES), "a").encode(), os.urandom(GREETING_BYTES)):
        with socket.create_connection((host, int(port)), timeout=60) as stranger:
            stranger.sendall(words + os.urandom(5000))
            said = b""
            try:
                while data := stranger.recv(100):
                    said += data
            except ConnectionResetError:
                pass
            assert said in (UNWELCOME, b"")
    assert receiver.memory.tobytes() == before


def test_a_peer_that_is_forgotten_is_sent_nothing_more(pair: tuple[Node, Node]) -> None:
    sender, receiver = pair
    receiver.rooms.open(500, [0], [SLOTS])
    receiver.pause()
    sender.order(kv_transfer(95, receiver, handle=500))
    sender.order(Forget(receiver.address))
    done = sender.event()
    receiver.go_on()
    assert isinstance(done, TransferDone)
    assert (done.ticket, done.status) == (95, TransferStatus.FAILED)
    sender.order(kv_transfer(96, receiver, handle=500))
    assert isinstance(sender.event(), Unsupported)
    assert sender.meet(receiver) == ""


def test_a_byte_that_changed_on_the_way_is_found_where_it_landed(pair: tuple[Node, Node]) -> None:
    sender, receiver = pair
    cable = Cable(receiver)
    cable.spoil_at = CHUNK_BYTES + 5000
    receiver.rooms.open(600, [0], [SLOTS])
    assert sender.meet(receiver, endpoint=cable.endpoint) == ""
    done = sender.send(kv_transfer(97, receiver, handle=600))
    assert (done.status, done.detail) == (
        TransferStatus.CORRUPT, "the bytes in the slots are not those that were sent",
    )  # fmt: skip
    cable.close()
    assert sender.meet(receiver) == ""
