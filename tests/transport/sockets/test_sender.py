"""Sending regions over sockets: order, connections kept and opened again, and what is reported."""

import socket
from dataclasses import replace

import pytest

from dunlin.messages.types import Priority, Region
from dunlin.transport.payload import RegionHeader
from dunlin.transport.sockets.sender import RegionSend, RegionSender
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
        for stream in both.sender._streams.values():
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
        both.sender.submit(replace(both.parcel(both.payload()), endpoint=endpoint), Priority.KV)
        ((ticket, detail),) = both.sent.wait(1)
        assert (ticket, detail.startswith(f"{endpoint} cannot be reached: ")) == (1, True)


def test_a_refusal_closes_the_connection_and_the_next_region_goes_over_a_new_one() -> None:
    with pair() as both:
        stranger = replace(both.payload(length=64), token=bytes(16))
        both.sender.submit(both.parcel(stranger), Priority.KV)
        assert both.sent.wait(1) == [(1, f"127.0.0.1:{both.receiver.port} refused it")]
        assert both.sender._streams == {}
        both.sender.submit(both.parcel(both.announce(both.payload(length=64)), ticket=2), Priority.KV)
        assert both.sent.wait(2)[1] == (2, "")
        assert list(both.sender._streams) == [f"127.0.0.1:{both.receiver.port}"]


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
