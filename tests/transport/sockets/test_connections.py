"""Connections that are kept for the next region."""

import socket

import pytest

from dunlin.transport.sockets.connections import MAX_KEPT, ConnectionPool


def test_a_connection_that_was_kept_is_taken_again_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
        pool = ConnectionPool(None, 60.0)
        first, was_kept = pool.take(endpoint, "")
        assert not was_kept
        pool.keep(endpoint, first)
        assert pool.take(endpoint, "") == (first, True)
        second, was_kept = pool.take(endpoint, "")
        assert (second is not first, was_kept) == (True, False)
        for each in (first, second):
            pool.keep(endpoint, each)
        pool.close()
        assert (first.fileno(), second.fileno()) == (-1, -1)


def test_of_endpoints_that_nobody_uses_any_more_a_bounded_number_of_connections_is_kept() -> None:
    pool, pairs = ConnectionPool(None, 60.0), [socket.socketpair() for _ in range(MAX_KEPT + 3)]
    kept = [ours for ours, _ in pairs]
    for number, stream in enumerate(kept[:MAX_KEPT]):
        pool.keep(f"peer:{number}", stream)
    assert pool.take("peer:0", "") == (kept[0], True)
    pool.keep("peer:0", kept[0])  # it is in use
    assert -1 not in [stream.fileno() for stream in kept]
    pool.keep("peer:new", kept[MAX_KEPT])
    pool.keep("peer:new", kept[MAX_KEPT + 1])
    assert [number for number, stream in enumerate(kept) if stream.fileno() == -1] == [1, 2]
    pool.close()
    for ours, theirs in pairs:
        ours.close()
        theirs.close()


@pytest.mark.parametrize("endpoint", ["127.0.0.1:1", "127.0.0.1", "127.0.0.1:port"])
def test_an_endpoint_that_cannot_be_reached_raises(endpoint: str) -> None:
    with pytest.raises((OSError, ValueError)):
        ConnectionPool(None, 1.0).take(endpoint, "")
