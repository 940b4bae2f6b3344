"""Regions received over real sockets: whole, or not at all."""

import random
import socket
import subprocess
import time
from dataclasses import replace
from typing import Any

import pytest

from dunlin.messages.types import Priority, Region
from dunlin.transport.payload import REFUSED, TAKEN
from dunlin.transport.sockets.receiver import CHUNK_BYTES
from tests.ipv6 import needs_ipv6
from tests.transport.sockets.pair import SIZE, pair


def test_a_region_arrives_where_it_was_expected() -> None:
    with pair() as both:
        payload = both.announce(both.payload(4096), at=SIZE)
        assert both.sender.submit(both.parcel(payload, offset=4096), Priority.KV)
        assert both.sent.wait(1) == [(1, "")]
        assert both.received.wait(1) == [(3, 1, "")]
        assert both.target[SIZE : 2 * SIZE] == both.source[4096 : 4096 + SIZE]
        assert not any(both.target[:SIZE])


@needs_ipv6
def test_it_listens_on_an_ipv6_address_too() -> None:
    with pair(host="::1") as both:
        parcel = replace(both.parcel(both.announce(both.payload())), endpoint=f"[::1]:{both.receiver.port}")
        assert both.sender.submit(parcel, Priority.KV)
        assert both.sent.wait(1) == [(1, "")]


@pytest.mark.parametrize(
    "lie",
    [
        {"handle": 4},
        {"generation": 2},
        {"region": Region(0, 2, 16, 65)},
        {"kv_dtype": "bfloat16"},
        {"chain": b"other"},
        {"length_bytes": SIZE - 1},
        {"checksum": 5},
    ],
    ids=lambda lie: next(iter(lie)),
)
def test_what_differs_from_what_was_announced_is_not_taken(lie: dict[str, Any]) -> None:
    with pair() as both:
        payload = replace(both.announce(both.payload()), **lie)
        both.sender.submit(both.parcel(payload), Priority.KV)
        assert both.sent.wait(1)[0][1] != ""
        assert both.received.wait(1)[0] == (3, 1, "another region than was announced")
        assert not any(both.target)


def test_bytes_that_changed_on_the_way_are_not_taken() -> None:
    with pair() as both:
        payload = both.announce(both.payload())
        both.source[SIZE // 2] ^= 1
        both.sender.submit(both.parcel(payload), Priority.KV)
        assert both.received.wait(1) == [(3, 1, "the bytes do not match their checksum")]
        assert "refused" in both.sent.wait(1)[0][1]


def test_an_unknown_token_opens_nothing_and_a_known_one_serves_once() -> None:
    with pair() as both:
        payload = both.announce(both.payload(length=64))
        stranger = replace(payload, token=bytes(16))
        both.sender.submit(both.parcel(stranger), Priority.KV)
        assert both.sent.wait(1)[0][1] != ""
        assert both.received.news == []
        both.sender.submit(both.parcel(payload, ticket=2), Priority.KV)
        both.sender.submit(both.parcel(payload, ticket=3), Priority.KV)
        news = both.sent.wait(3)
        assert news[1] == (2, "")
        assert news[2][1] != ""


def test_a_connection_that_breaks_in_the_midst_is_told_and_the_next_works() -> None:
    with pair() as both:
        payload = both.announce(both.payload())
        with both.connect() as stream:
            stream.sendall(payload.encode() + bytes(both.source[: SIZE // 2]))
        assert "ended" in both.received.wait(1)[0][2]
        again = both.announce(both.payload())
        both.sender.submit(both.parcel(again), Priority.KV)
        assert both.sent.wait(1) == [(1, "")]


def test_one_that_stalls_in_the_midst_is_given_up() -> None:
    with pair(stall_s=0.2) as both:
        payload = both.announce(both.payload())
        with both.connect() as stream:
            stream.sendall(payload.encode() + bytes(100))
            assert "ended" in both.received.wait(1)[0][2]


def test_what_never_comes_is_reported_and_what_was_abandoned() -> None:
    with pair(patience_s=0.1) as both:
        both.announce(both.payload())
        assert both.received.wait(1) == [(3, 1, "nothing came")]
    with pair() as both:
        both.receiver.abandon(both.announce(both.payload()).token)
        assert both.received.wait(1) == [(3, 1, "abandoned")]


def test_what_was_abandoned_in_the_midst_ends_at_the_next_chunk() -> None:
    with pair() as both:
        payload = both.announce(both.payload())
        with both.connect() as stream:
            stream.sendall(payload.encode() + bytes(both.source[:100]))
            while not any(both.target[:100]):
                time.sleep(0.001)  # until it has begun
            both.receiver.abandon(payload.token)
            stream.sendall(bytes(both.source[100:CHUNK_BYTES]))
            assert both.received.wait(1) == [(3, 1, "abandoned")]
            assert stream.recv(1) == REFUSED


def test_damaged_streams_are_never_taken_and_never_end_the_receiver() -> None:
    draw = random.Random(3)
    with pair() as both:
        for turn in range(300):
            payload = both.announce(both.payload(length=512))
            frame = bytearray(payload.encode() + bytes(both.source[:512]))
            for bit in draw.sample(range(8 * len(frame)), draw.choice((1, 1, 3))):
                frame[bit // 8] ^= 1 << bit % 8
            both.target[:512] = bytes(512)
            with both.connect() as stream:
                try:
                    stream.sendall(frame[: draw.choice((len(frame), len(frame), draw.randrange(len(frame))))])
                    stream.shutdown(socket.SHUT_WR)
                    assert stream.recv(1) != TAKEN, f"turn {turn}"
                except OSError:
                    pass  # it was refused before it had been read
            both.receiver.abandon(payload.token)
        good = both.announce(both.payload(length=512))
        both.sender.submit(both.parcel(good), Priority.KV)
        assert both.sent.wait(1) == [(1, "")]
        assert all(detail for *_, detail in both.received.news[:-1])


def test_no_more_connections_than_allowed() -> None:
    with pair(most_connections=1) as both:
        with both.connect() as first:
            first.sendall(b"\x80")
            time.sleep(0.1)
            with both.connect() as second:
                assert second.recv(1) == b""


def test_between_two_network_namespaces() -> None:
    """A peer behind a virtual cable, as another node is. Needs root."""
    name = "dunlin-test"
    commands = [
        f"ip netns add {name}",
        f"ip link add dun0 type veth peer name dun1 netns {name}",
        "ip addr add 10.77.3.1/24 dev dun0",
        "ip link set dun0 up",
        f"ip -n {name} addr add 10.77.3.2/24 dev dun1",
        f"ip -n {name} link set dun1 up",
    ]
    try:
        for command in commands:
            made = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            if made.returncode:
                pytest.skip(f"no namespaces here: {made.stderr.strip()}")
        with pair(host="10.77.3.1") as both:
            payload = both.announce(both.payload())
            frame = payload.encode() + bytes(both.source[:SIZE])
            program = (
                "import socket, sys; s = socket.create_connection(('10.77.3.1', int(sys.argv[1])), 60);"
                "s.sendall(sys.stdin.buffer.read()); sys.exit(s.recv(1) != b'\\x01')"
            )
            inside = ["ip", "netns", "exec", name, "python3", "-c", program, str(both.receiver.port)]
            subprocess.run(inside, input=frame, check=True, timeout=300)
            assert both.received.wait(1) == [(3, 1, "")]
            assert both.target[:SIZE] == both.source[:SIZE]
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", "dun0"], capture_output=True, check=False)
