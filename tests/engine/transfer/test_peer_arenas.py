"""KV written straight into another engine's memory: bit for bit, where it was ordered, and nowhere else."""

import os
import random
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch

from dunlin.effects import Address
from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.peer_access import PeerAccess
from dunlin.engine.transfer.peer_arenas import PeerArenas, SharedFile
from dunlin.engine.transfer.slab import KvSlab
from dunlin.messages.agent import EngineAgent
from dunlin.messages.engine import Transfer, TransferDone
from dunlin.messages.types import Payload, Region, TransferKind, TransferStatus, i64
from dunlin.wire.codec import decode, encode
from tests.engine.transfer.engines import LAYER_BYTES, LAYERS, SLOTS, Engine, peer_transfer, slots_of
from tests.engine.transfer.receiver_process import ReceiverProcess


def met() -> tuple[Engine, Engine]:
    sender, receiver = Engine("a", seed=1), Engine("b", seed=2)
    sender.meet(receiver)
    return sender, receiver


def one(engine: Engine, transfer: Transfer) -> TransferDone:
    engine.queue.add(transfer)
    (ended,) = engine.finish()
    return ended.done


def verify(receiver: Engine, sent: TransferDone, **overrides: Any) -> TransferDone:
    """The receiver's own look at slots 3, 7 and 8."""
    receiver.read_arena()
    extents = {"extent_start": i64([3, 7]), "extent_length": i64([1, 2])}
    values = {"kind": TransferKind.PEER_TO_SLAB, "checksum": sent.checksum, **extents, **overrides}
    return one(receiver, peer_transfer(7, receiver.address, **values))


def test_slots_are_written_bit_for_bit_and_nothing_else() -> None:
    sender, receiver = met()
    before = [receiver.arena_kv(layer) for layer in range(LAYERS)]
    done = one(sender, peer_transfer(1, receiver.address))
    receiver.read_arena()
    assert (done.status, done.moved_bytes, done.detail) == (TransferStatus.OK, 192, "")
    assert slots_of(receiver.kv, [3, 7, 8]) == slots_of(sender.kv, [5, 6, 1])
    untouched = [slot for slot in range(SLOTS) if slot not in (3, 7, 8)]
    wanted = [torch.frombuffer(bytearray(kept), dtype=torch.float32).view(SLOTS, 2, 1, 4) for kept in before]
    assert slots_of(receiver.kv, untouched) == slots_of(wanted, untouched)
    assert os.pread(receiver.arena_fd, LAYER_BYTES, 3 * LAYER_BYTES) == bytes(LAYER_BYTES), "no slots lie there"


@pytest.mark.parametrize("seed", range(20))
def test_any_extents_in_any_chunks_arrive_in_order(seed: int) -> None:
    draw = random.Random(seed)
    sender, receiver = Engine("a", seed=1, chunk_bytes=draw.choice((7, 32, 100, 1 << 20))), Engine("b", seed=2)
    sender.meet(receiver)
    count = draw.randrange(1, SLOTS)
    own, theirs = draw.sample(range(SLOTS), count), sorted(draw.sample(range(SLOTS), count))
    region = Region(draw.randrange(2), 2, 5, 5 + count)
    done = one(sender, scattered(receiver, region, own, theirs))
    receiver.read_arena()
    first = region.layer_start
    assert slots_of(receiver.kv[first:], theirs) == slots_of(sender.kv[first:], own)
    look = {"extent_start": i64(theirs), "extent_length": i64([1] * count), "region": region}
    assert verify(receiver, done, **look).status is TransferStatus.OK


def scattered(receiver: Engine, region: Region, own: list[int], theirs: list[int]) -> Transfer:
    """One extent a token here; neighbours together there."""
    starts: list[int] = []
    lengths: list[int] = []
    for slot in theirs:
        if starts and starts[-1] + lengths[-1] == slot:
            lengths[-1] += 1
        else:
            starts.append(slot)
            lengths.append(1)
    extents = {"extent_start": i64(own), "extent_length": i64([1] * len(own))}
    there = {"peer_extent_start": i64(starts), "peer_extent_length": i64(lengths)}
    return peer_transfer(1, receiver.address, region=region, **extents, **there)


def test_the_receiver_finds_a_wrong_byte_and_a_wrong_identity() -> None:
    sender, receiver = met()
    done = one(sender, peer_transfer(1, receiver.address))
    assert verify(receiver, done).status is TransferStatus.OK
    assert verify(receiver, done, chain=b"other tokens").status is TransferStatus.CORRUPT
    assert verify(receiver, done, region=Region(0, 2, 1, 4)).status is TransferStatus.CORRUPT
    (offset, _), *_ = receiver.runs[0]
    at = offset + 7 * 32 + 9
    os.pwrite(receiver.arena_fd, bytes([os.pread(receiver.arena_fd, 1, at)[0] ^ 4]), at)
    assert verify(receiver, done).status is TransferStatus.CORRUPT


@pytest.mark.parametrize("chunk", [1, 60, 100, 200, 300])
def test_weights_are_read_in_parts_of_any_size(chunk: int) -> None:
    """They lie in three stretches of the file, not in order; a layer that is not held has none."""
    sender, receiver = met()
    content = random.Random(chunk).randbytes(300)
    weights = [(3 * LAYER_BYTES + 300, 100), (3 * LAYER_BYTES, 150), (3 * LAYER_BYTES + 200, 50)]
    for (offset, length), at in zip(weights, (0, 100, 250), strict=True):
        os.pwrite(receiver.arena_fd, content[at : at + length], offset)
    receiver.access.publish(receiver.arena_fd, receiver.slab, receiver.runs, {1: weights})
    sender.meet(receiver)
    peer, found = sender.peers.of(receiver.address), b""
    while len(found) < 300:
        part = np.zeros(min(chunk, 300 - len(found)), dtype=np.uint8)
        assert peer.read_weights(1, len(found), part) == len(part)
        found += part.tobytes()
    assert found == content
    for layer, offset in ((1, 290), (0, 0)):
        with pytest.raises(TransferError, match=f"does not hold the weights of layer {layer}"):
            peer.read_weights(layer, offset, np.zeros(20, dtype=np.uint8))


def test_an_engine_without_rooms_can_be_met_and_its_slots_written() -> None:
    sender, receiver = met()
    receiver.access = PeerAccess(receiver.page_fd, None)
    receiver.access.publish(receiver.arena_fd, receiver.slab, receiver.runs)
    sender.meet(receiver)
    with pytest.raises(TransferError, match="has no transit rooms"):
        sender.peers.of(receiver.address).room_memory(1)
    assert one(sender, peer_transfer(1, receiver.address)).status is TransferStatus.OK


def test_activations_and_partial_results_go_from_room_to_room() -> None:
    sender, receiver = met()
    content = random.Random(3).randbytes(5000)
    sender.rooms.view(1, 5000)[:] = list(content)
    room = {"payload": Payload.PARTIAL, "room": 1, "peer_handle": 4, "length_bytes": 5000}
    done = one(sender, peer_transfer(1, receiver.address, **room))
    assert receiver.rooms.view(4, 5000).tobytes() == content
    there = {**room, "room": 4, "kind": TransferKind.PEER_TO_SLAB, "checksum": done.checksum}
    assert one(receiver, peer_transfer(2, receiver.address, **there)).status is TransferStatus.OK
    other = {**there, "payload": Payload.ACTIVATION}
    assert one(receiver, peer_transfer(2, receiver.address, **other)).status is TransferStatus.CORRUPT


REFUSED: dict[str, dict[str, Any]] = {
    "was not met": {"peer": None},
    "the peer's layout is 0, the transfer was ordered for 5": {"peer_layout": 5},
    "extent of 2 slots from 15 lies outside the slab of 16": {"peer_extent_start": i64([3, 15])},
    "the peer's extents are 2 slots for 3 tokens": {"peer_extent_start": i64([3]), "peer_extent_length": i64([2])},
    "layers 0 to 3 are not held here": {"region": Region(0, 3, 0, 3)},
    "there is no transit room 5, only 1 to 4": {
        "payload": Payload.ACTIVATION, "room": 1, "peer_handle": 5, "length_bytes": 8,
    },
    "there is no transit room 0, only 1 to 4": {"payload": Payload.ACTIVATION, "peer_handle": 1, "length_bytes": 8},
    "65537 bytes in a transit room of 65536": {
        "payload": Payload.ACTIVATION, "room": 1, "peer_handle": 1, "length_bytes": 65537,
    },
}  # fmt: skip


@pytest.mark.parametrize("detail", sorted(REFUSED))
def test_what_cannot_be_written_fails_with_the_cause_and_writes_nothing(detail: str) -> None:
    sender, receiver = met()
    before = [receiver.arena_kv(layer) for layer in range(LAYERS)]
    overrides = dict(REFUSED[detail])
    peer = Address("engine", "stranger") if "peer" in overrides else receiver.address
    overrides.pop("peer", None)
    done = one(sender, peer_transfer(1, peer, **overrides))
    assert done.status is TransferStatus.FAILED
    assert detail in done.detail
    assert [receiver.arena_kv(layer) for layer in range(LAYERS)] == before


def test_layers_that_the_peer_does_not_hold_and_another_kind_of_kv_are_refused() -> None:
    sender, receiver = met()
    receiver.slab.change_layout(1, [SLOTS, 0])
    receiver.access.publish(receiver.arena_fd, receiver.slab, receiver.runs)
    done = one(sender, peer_transfer(1, receiver.address, peer_layout=1))
    assert (done.status, done.detail) == (TransferStatus.FAILED, "the peer does not hold layers 0 to 2")
    half = KvSlab([layer.to(torch.bfloat16) for layer in receiver.kv], [SLOTS] * LAYERS, layout=2)
    receiver.access.publish(receiver.arena_fd, half, receiver.runs)
    done = one(sender, peer_transfer(1, receiver.address, peer_layout=2))
    assert done.detail == "the peer's KV is bfloat16 of 16 bytes a slot, ours float32 of 32"


def test_a_change_of_layout_stops_a_transfer_before_its_next_chunk_and_the_new_one_is_read() -> None:
    sender, receiver = Engine("a", seed=1, chunk_bytes=50), Engine("b", seed=2)
    sender.meet(receiver)
    sender.queue.add(peer_transfer(1, receiver.address))
    assert sender.queue.work_idle() == []
    receiver.slab.change_layout(1, [SLOTS] * LAYERS)
    receiver.runs = {0: receiver.runs[1], 1: receiver.runs[0]}
    receiver.access.publish(receiver.arena_fd, receiver.slab, receiver.runs)
    before = [receiver.arena_kv(layer) for layer in range(LAYERS)]
    (ended,) = sender.finish()
    assert (ended.done.status, ended.done.moved_bytes) == (TransferStatus.FAILED, 50)
    assert ended.done.detail == "the peer's layout is 1, the transfer was ordered for 0"
    assert [receiver.arena_kv(layer) for layer in range(LAYERS)] == before
    assert one(sender, peer_transfer(2, receiver.address, peer_layout=1)).status is TransferStatus.OK
    receiver.read_arena()
    assert slots_of(receiver.kv, [3, 7, 8]) == slots_of(sender.kv, [5, 6, 1])


def test_a_transfer_under_way_does_not_go_on_into_a_peer_that_was_forgotten_or_met_anew() -> None:
    sender, receiver = Engine("a", seed=1, chunk_bytes=50), Engine("b", seed=2)
    sender.meet(receiver)
    sender.queue.add(peer_transfer(1, receiver.address))
    sender.queue.work_idle()
    sender.meet(receiver)
    (ended,) = sender.finish()
    assert (ended.done.status, ended.done.detail) == (TransferStatus.FAILED, "the peer is gone, or was met anew")
    sender.peers.forget(receiver.address)
    assert receiver.address not in sender.peers


@pytest.mark.parametrize(
    ("changed", "detail"),
    [
        ({"node": "elsewhere"}, "the peer is on another node"),
        ({"life": 0}, "takes no transfers"),
        ({"life": 5}, "has to be met again"),
        ({"page_fd": 99999}, "memory is not there"),
        ({"pid": 0}, "memory is not there"),
    ],
)
def test_metadata_that_leads_elsewhere_is_refused(changed: dict[str, Any], detail: str) -> None:
    sender, receiver = Engine("a"), Engine("b")
    agent = cast(EngineAgent, decode("EngineAgent", receiver.access.agent))
    with pytest.raises(TransferError, match=detail):
        sender.peers.meet(receiver.address, encode(replace(agent, **changed)))
    assert receiver.address not in sender.peers
    with pytest.raises(TransferError, match="metadata cannot be read"):
        PeerArenas().meet(receiver.address, b"\xff\xff")


@pytest.mark.parametrize(
    "runs",
    [
        {0: [(0, LAYER_BYTES)], 1: [(4 * LAYER_BYTES - 1, LAYER_BYTES)]},
        {0: [(0, LAYER_BYTES)], 1: [(-1, LAYER_BYTES)]},
        {0: [(0, LAYER_BYTES)], 1: [(0, LAYER_BYTES - 1)]},
        {0: [(0, LAYER_BYTES)], 1: [(0, 0)]},
    ],
)
def test_a_geometry_that_contradicts_itself_is_refused(runs: dict[int, list[tuple[int, int]]]) -> None:
    sender, receiver = Engine("a"), Engine("b")
    receiver.access.publish(receiver.arena_fd, receiver.slab, runs)
    with pytest.raises(TransferError, match="page cannot be read"):
        sender.meet(receiver)


def test_another_memory_file_of_a_new_layout_is_mapped() -> None:
    sender, receiver = met()
    receiver.arena_fd = os.memfd_create("another")
    os.ftruncate(receiver.arena_fd, 4 * LAYER_BYTES)
    receiver.slab.change_layout(1, [SLOTS] * LAYERS)
    receiver.access.publish(receiver.arena_fd, receiver.slab, receiver.runs)
    assert one(sender, peer_transfer(1, receiver.address, peer_layout=1)).status is TransferStatus.OK
    receiver.read_arena()
    assert slots_of(receiver.kv, [3, 7, 8]) == slots_of(sender.kv, [5, 6, 1])


def test_a_descriptor_that_opens_another_file_by_now_is_refused() -> None:
    fd = os.memfd_create("one")
    os.ftruncate(fd, 4096)
    inode = os.fstat(fd).st_ino
    SharedFile(os.getpid(), fd, inode, 4096)
    for wrong in ((inode + 1, 4096), (inode, 4097)):
        with pytest.raises(TransferError, match="not the peer's memory any more"):
            SharedFile(os.getpid(), fd, *wrong)


def test_another_process_finds_in_its_arena_what_was_sent() -> None:
    sender = Engine("a", seed=1, chunk_bytes=50)
    with ReceiverProcess() as receiver:
        sender.peers.meet(receiver.address, receiver.agent)
        done = one(sender, peer_transfer(1, receiver.address))
        assert done.status is TransferStatus.OK
        assert receiver.slots([3, 7, 8]) == slots_of(sender.kv, [5, 6, 1])
        assert receiver.verify(done.checksum) is TransferStatus.OK
        receiver.flip_byte_of(7)
        assert receiver.verify(done.checksum) is TransferStatus.CORRUPT


def test_a_receiver_that_restarts_in_the_middle_gets_no_byte_more() -> None:
    sender = Engine("a", seed=1, chunk_bytes=50)
    with ReceiverProcess() as receiver:
        sender.peers.meet(receiver.address, receiver.agent)
        sender.queue.add(peer_transfer(1, receiver.address))
        assert sender.queue.work_idle() == []
        receiver.restart()
        before = receiver.arena()
        (ended,) = sender.finish()
        assert (ended.done.status, ended.done.moved_bytes) == (TransferStatus.FAILED, 50)
        assert "has to be met again" in ended.done.detail
        assert receiver.arena() == before
        sender.peers.meet(receiver.address, receiver.agent)
        assert one(sender, peer_transfer(2, receiver.address)).status is TransferStatus.OK
        assert receiver.slots([3, 7, 8]) == slots_of(sender.kv, [5, 6, 1])


def test_a_cancelled_transfer_leaves_the_receivers_arena_alone_from_then_on() -> None:
    sender = Engine("a", seed=1, chunk_bytes=50)
    with ReceiverProcess() as receiver:
        sender.peers.meet(receiver.address, receiver.agent)
        sender.queue.add(peer_transfer(1, receiver.address))
        sender.queue.work_idle()
        ended = sender.queue.cancel(1)
        assert ended is not None
        assert (ended.done.status, ended.done.moved_bytes) == (TransferStatus.CANCELLED, 50)
        before = receiver.arena()
        assert sender.finish() == []
        assert receiver.arena() == before
