"""Several peers: none waits for another's, and there are not more of them than may be."""

import socket
from dataclasses import replace

from dunlin.messages.types import Priority
from dunlin.transport.sockets.peer_senders import PeerSenders
from tests.transport.sockets.pair import pair


def test_a_peer_that_answers_nothing_delays_no_other() -> None:
    with pair() as both, socket.create_server(("127.0.0.1", 0)) as deaf:
        senders = PeerSenders(memoryview(both.source), both.sent, stall_s=60.0)
        silent = f"127.0.0.1:{deaf.getsockname()[1]}"
        for ticket, endpoint in ((1, silent), (2, ""), (3, silent), (4, "")):
            parcel = both.parcel(both.announce(both.payload(length=64)), ticket=ticket)
            assert senders.submit(replace(parcel, endpoint=endpoint or parcel.endpoint), Priority.KV)
        assert both.sent.wait(2) == [(2, ""), (4, "")]
        connection, _ = deaf.accept()
        connection.close()
        deaf.close()
        assert [ticket for ticket, _ in both.sent.wait(4)[2:]] == [1, 3]
        senders.close()


def test_of_too_many_peers_one_that_has_nothing_to_do_makes_room_and_none_that_has() -> None:
    with pair() as both, pair() as other, socket.create_server(("127.0.0.1", 0)) as deaf:
        senders = PeerSenders(memoryview(both.source), both.sent, stall_s=60.0, most_peers=1)
        assert senders.submit(both.parcel(both.announce(both.payload(length=64))), Priority.KV)
        both.sent.wait(1)
        silent = both.parcel(both.announce(both.payload(length=64)), ticket=2)
        assert senders.submit(replace(silent, endpoint=f"127.0.0.1:{deaf.getsockname()[1]}"), Priority.KV)
        refused = replace(silent, ticket=3, endpoint=f"127.0.0.1:{other.receiver.port}")
        assert not senders.submit(refused, Priority.KV)
        connection, _ = deaf.accept()
        connection.close()
        deaf.close()
        both.sent.wait(2)
        assert senders.submit(refused, Priority.KV)
        both.sent.wait(3)
        senders.close()
