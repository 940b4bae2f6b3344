"""Sending regions over sockets: order, connections kept and opened again, and what is reported."""

import socket
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from dunlin.messages.types import Priority, Region
from dunlin.transport.payload import LENGTH, TAKEN, RegionHeader, decode_header
from dunlin.transport.sockets.blocking import receive_exactly
from dunlin.transport.sockets.sender import CHUNK_BYTES, RegionSend, RegionSender, _Queued, _UnderWay
from tests.transport.sockets.pair import pair
from tests.transport.told import Told


def test_one_connection_carries_many_and_the_urgent_ones_first() -> None:
    with pair() as both:
        gate = both.announce(both.payload())
        parcels = [both.announce(both.payload(length=100), at=200 * i) for i in range(4)]
        both.sender.submit(both.parcel(gate, ticket=9), Priority.KV)
        for ticket, (payload, priority) in enumerate(
            zip(parcels, (Priority.CHECKPOINT, Priority.CHECKPOINT, Priority.KV, Priority.KV), strict=True)
        ):
            both.sender.submit(both.parcel(payload, ticket=ticket), priority)
        order = [ticket for ticket, detail in both.sent.wait(5) if not detail]
        assert sorted(order) == [0, 1, 2, 3, 9]
        assert order.index(0) < order.index(1)
        assert order.index(2) < order.index(3) < order.index(1)


def test_a_receiver_that_restarted_is_reached_over_a_new_connection() -> None:
    with pair() as both:
        first = both.announce(both.payload(length=64))
        both.sender.submit(both.parcel(first), Priority.KV)
        assert both.sent.wait(1) == [(1, "")]
        for (stream,) in both.sender._pool._kept.values():
            stream.shutdown(socket.SHUT_RDWR)
        second = both.announce(both.payload(length=64))
        both.sender.submit(both.parcel(second, ticket=2), Priority.KV)
        assert both.sent.wait(2)[1] == (2, "")


def test_an_endpoint_without_a_receiver_is_reported() -> None:
    with pair() as both:
        parcel = replace(both.parcel(both.announce(both.payload())), endpoint="127.0.0.1:1")
        both.sender.submit(parcel, Priority.KV)
        assert "cannot be reached" in both.sent.wait(1)[0][1]


@pytest.mark.parametrize("endpoint", ["127.0.0.1", "127.0.0.1:port"])
def test_an_endpoint_that_is_no_address_is_reported(endpoint: str) -> None:
    with pair() as both:
        both.sender.submit(replace(both.parcel(both.announce(both.payload())), endpoint=endpoint), Priority.KV)
        ((ticket, detail),) = both.sent.wait(1)
        assert (ticket, detail.startswith(f"{endpoint} cannot be reached: ")) == (1, True)


def test_a_token_that_no_header_has_is_reported_and_the_next_region_goes() -> None:
    with pair() as both:
        good = both.announce(both.payload(length=64))
        both.sender.submit(both.parcel(replace(good, token=b"short")), Priority.KV)
        both.sender.submit(both.parcel(good, ticket=2), Priority.KV)
        (_, detail), second = both.sent.wait(2)
        assert "a token of another length than 16 bytes" in detail
        assert second == (2, "")


def test_all_that_waits_for_an_endpoint_without_a_receiver_is_reported_after_one_dial() -> None:
    with pair() as both:
        dialled: list[str] = []
        dial, may_dial = both.sender._pool.connect, threading.Event()

        def connect(endpoint: str, server_name: str) -> socket.socket:
            may_dial.wait(300)
            dialled.append(endpoint)
            return dial(endpoint, server_name)

        both.sender._pool.connect = connect  # type: ignore[method-assign]
        for ticket, endpoint in ((1, "127.0.0.1:1"), (2, "127.0.0.1:1"), (3, ""), (4, "127.0.0.1:1")):
            parcel = both.parcel(both.announce(both.payload(length=64)), ticket=ticket)
            both.sender.submit(replace(parcel, endpoint=endpoint or parcel.endpoint), Priority.KV)
        may_dial.set()
        reports = both.sent.wait(4)
        assert [ticket for ticket, _ in reports] == [1, 2, 4, 3]
        assert ["cannot be reached" in detail for _, detail in reports] == [True, True, True, False]
        assert dialled == ["127.0.0.1:1", f"127.0.0.1:{both.receiver.port}"]


def test_a_refusal_closes_the_connection_and_the_next_region_goes_over_a_new_one() -> None:
    with pair() as both:
        stranger = replace(both.payload(length=64), token=bytes(16))
        both.sender.submit(both.parcel(stranger), Priority.KV)
        assert both.sent.wait(1) == [(1, f"127.0.0.1:{both.receiver.port} refused it")]
        assert not both.sender._pool._kept
        both.sender.submit(both.parcel(both.announce(both.payload(length=64)), ticket=2), Priority.KV)
        assert both.sent.wait(2)[1] == (2, "")
        assert list(both.sender._pool._kept) == [f"127.0.0.1:{both.receiver.port}"]


def test_too_many_waiting_regions_are_not_taken() -> None:
    """While the first is being sent to a peer that reads nothing, two may wait."""
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        told = Told()
        sender = RegionSender(memoryview(bytearray(64)), told, most_waiting=2, stall_s=60.0)
        header = RegionHeader(bytes(16), 1, 1, Region(0, 1, 0, 1), "float32", b"", 64, 0)
        endpoint = f"127.0.0.1:{deaf.getsockname()[1]}"
        sender.submit(RegionSend(0, endpoint, "", header, 0), Priority.KV)
        connection, _ = deaf.accept()  # the first has left the queue
        taken = [sender.submit(RegionSend(n, endpoint, "", header, 0), Priority.KV) for n in (1, 2, 3)]
        assert taken == [True, True, False]
        connection.close()
        deaf.close()
        assert [ticket for ticket, _ in told.wait(3)] == [0, 1, 2]
        sender.close()


class SlowReceiver:
    """Reads a region's chunks when it is told to, so that a test decides what is submitted between two of them."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._server.getsockname()[1]}"

    def accept(self) -> socket.socket:
        connection, _ = self._server.accept()
        connection.settimeout(300)
        return connection

    def close(self) -> None:
        self._server.close()


def header_of(stream: socket.socket) -> RegionHeader:
    (length,) = LENGTH.unpack(receive_exactly(stream, LENGTH.size))
    return decode_header(receive_exactly(stream, length))


def test_an_urgent_region_overtakes_a_long_one_in_the_middle_on_another_connection() -> None:
    """The long region's receiver has read nothing but its header when the urgent one is whole."""
    size = 64 * CHUNK_BYTES
    receiver, told = SlowReceiver(), Told()
    room = memoryview(bytearray(size))
    sender = RegionSender(room, told, stall_s=60.0)
    long = RegionHeader(bytes(16), 1, 1, Region(0, 1, 0, 1), "float32", b"long", size, 0)
    urgent = replace(long, chain=b"urgent", length_bytes=100)
    sender.submit(RegionSend(1, receiver.endpoint, "", long, 0), Priority.CHECKPOINT)
    slow = receiver.accept()
    assert header_of(slow).chain == b"long"
    sender.submit(RegionSend(2, receiver.endpoint, "", urgent, 0), Priority.KV)
    taken = drain_until_accepted(receiver, slow)
    fast, got = taken
    assert header_of(fast).chain == b"urgent"
    receive_exactly(fast, 100)
    fast.sendall(TAKEN)
    assert told.wait(1) == [(2, "")]
    assert got < size, "the long one is not over"
    receive_exactly(slow, size - got)
    slow.sendall(TAKEN)
    assert told.wait(2) == [(2, ""), (1, "")]
    sender.close()
    for each in (fast, slow):
        each.close()
    receiver.close()


def drain_until_accepted(receiver: SlowReceiver, slow: socket.socket) -> tuple[socket.socket, int]:
    """Read the long region, a chunk at a time, until the urgent one has a connection; the bytes read."""
    got = 0
    receiver._server.settimeout(0.05)
    while True:
        try:
            return receiver.accept(), got
        except TimeoutError:
            receive_exactly(slow, CHUNK_BYTES)
            got += CHUNK_BYTES


def test_what_is_chosen_next_is_the_most_urgent_and_now_and_then_what_waits_longest() -> None:
    now_s = [100.0]
    sender = RegionSender(memoryview(b""), Told(), stall_s=8.0, clock=lambda: now_s[0])
    sender.close()
    sender._is_closing = False
    header = RegionHeader(bytes(16), 1, 1, Region(0, 1, 0, 1), "float32", b"", 0, 0)
    waiting = {p: _Queued(p, 0, RegionSend(p, "x:1", "", header, 0)) for p in Priority}
    kv, checkpoint = (cast(_UnderWay, SimpleNamespace(last_s=last_s)) for last_s in (100.0, 99.0))
    sender._under_way = {Priority.KV: kv, Priority.CHECKPOINT: checkpoint}
    sender._waiting = [waiting[Priority.KV], waiting[Priority.PARAMETERS]]
    assert sender._next() is kv, "one of each priority at a time"
    sender._waiting = [waiting[Priority.ACTIVATION]]
    assert sender._next() is waiting[Priority.ACTIVATION]
    now_s[0] = 101.5
    sender._waiting = [waiting[Priority.ACTIVATION]]
    assert sender._next() is checkpoint, "its receiver would give it up"
