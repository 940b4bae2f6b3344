"""Transfers between helpers of which one dies, hangs, or is late: what was given away is never written.

A receiver that is paused before a transfer begins has a chunk of it in its socket when it goes on, and not all of it.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dunlin.auth.certificates import CertificateRequest, issue_certificate, make_ca
from dunlin.engine.remote.protocol import CHUNK_BYTES
from dunlin.messages.types import TransferStatus
from tests.engine.remote.nodes import LAYERS, SLOT_BYTES, SLOTS, Cable, Node, kv_transfer

ALL_BYTES = LAYERS * SLOTS * SLOT_BYTES


@pytest.fixture
def pair() -> Iterator[tuple[Node, Node]]:
    with Node("a", 1) as sender, Node("b", 2) as receiver:
        receiver.rooms.open(1, [0], [SLOTS])
        assert sender.meet(receiver) == ""
        yield sender, receiver


def close_room(receiver: Node) -> None:
    receiver.rooms.close(1)
    receiver.access.close_room(1)


def begin_another_life(receiver: Node) -> None:
    receiver.access.renew()


def change_layout(receiver: Node) -> None:
    receiver.slab.change_layout(1, [SLOTS] * LAYERS)
    receiver.access.publish(receiver.arena_fd, receiver.slab, receiver.runs)


FENCES: dict[str, Callable[[Node], None]] = {
    "the room 1 is closed": close_room,
    "the peer's engine is another one since: it has to be met again": begin_another_life,
    "the peer's layout is 1, the transfer was ordered for 0": change_layout,
}


@pytest.mark.parametrize("detail", sorted(FENCES))
def test_a_late_chunk_is_not_written_into_what_was_given_to_another(pair: tuple[Node, Node], detail: str) -> None:
    sender, receiver = pair
    receiver.pause()
    sender.order(kv_transfer(1, receiver))
    sender.order(kv_transfer(2, receiver))
    FENCES[detail](receiver)
    receiver.memory[:] = 7
    receiver.go_on()
    for ticket in (1, 2):
        done = sender.event()
        assert (done.ticket, done.status, done.detail) == (ticket, TransferStatus.FAILED, detail)
    assert receiver.memory.tobytes() == b"\x07" * ALL_BYTES


def test_a_room_is_taken_back_while_it_is_written_and_another_one_goes_on(pair: tuple[Node, Node]) -> None:
    """Rooms that are closed at any time, again and again: after each nothing is written there."""
    sender, receiver = pair
    half = SLOTS // 2
    receiver.rooms.open(2, [half], [half])
    for ticket in range(10, 30, 2):
        receiver.rooms.open(ticket, [0], [half])
        sender.order(kv_transfer(ticket, receiver, half, ticket))
        sender.order(kv_transfer(ticket + 1, receiver, half, 2))
        for _ in range(ticket * 500):
            pass
        receiver.rooms.close(ticket)
        receiver.access.close_room(ticket)
        receiver.memory.reshape(LAYERS, SLOTS, -1)[:, :half] = 7
        answers = {done.ticket: done.status for done in (sender.event(), sender.event())}
        assert receiver.slots(range(half)) == b"\x07" * (ALL_BYTES // 2)
        assert answers[ticket + 1] is TransferStatus.OK
        assert answers[ticket] in (TransferStatus.OK, TransferStatus.FAILED)
    assert receiver.slots(range(half, SLOTS)) == sender.slots(range(half))


def test_a_receiver_that_is_killed_fails_its_transfers_and_can_be_met_again(pair: tuple[Node, Node]) -> None:
    sender, receiver = pair
    receiver.pause()
    for ticket in (1, 2, 3):
        sender.order(kv_transfer(ticket, receiver))
    receiver.kill()
    answers = [sender.event() for _ in range(3)]
    assert sorted((done.ticket, done.status) for done in answers) == [(n, TransferStatus.FAILED) for n in (1, 2, 3)]
    receiver.restart()
    assert sender.send(kv_transfer(4, receiver)).status is TransferStatus.FAILED, "by what was told of the one before"
    assert sender.meet(receiver) == ""
    assert sender.send(kv_transfer(5, receiver)).status is TransferStatus.OK
    assert receiver.memory.tobytes() == sender.memory.tobytes()


def test_a_sender_that_is_killed_leaves_the_receiver_to_others(pair: tuple[Node, Node]) -> None:
    sender, receiver = pair
    receiver.pause()
    sender.order(kv_transfer(1, receiver))
    sender.kill()
    close_room(receiver)
    receiver.memory[:] = 7
    receiver.go_on()
    receiver.rooms.open(2, [0], [SLOTS])
    sender.restart()
    assert sender.meet(receiver) == ""
    assert sender.send(kv_transfer(2, receiver, 100, 2)).status is TransferStatus.OK
    assert receiver.slots(range(100)) == sender.slots(range(100))
    assert receiver.slots(range(100, SLOTS)) == b"\x07" * (LAYERS * (SLOTS - 100) * SLOT_BYTES)


def test_a_connection_that_is_cut_is_opened_again_and_nothing_is_lost(pair: tuple[Node, Node]) -> None:
    sender, receiver = pair
    cable = Cable(receiver)
    cable.cut_at = lambda count: cable.connections == 1 and count > 2 * CHUNK_BYTES + 5000
    assert sender.meet(receiver, endpoint=cable.endpoint) == ""
    done = sender.send(kv_transfer(1, receiver))
    assert (done.status, done.moved_bytes, cable.connections) == (TransferStatus.OK, ALL_BYTES, 2)
    assert receiver.memory.tobytes() == sender.memory.tobytes()
    cable.close()


def test_a_connection_that_is_cut_again_and_again_fails_the_transfer_once(pair: tuple[Node, Node]) -> None:
    sender, receiver = pair
    cable = Cable(receiver)
    cable.cut_at = lambda count: count > 5000
    assert sender.meet(receiver, endpoint=cable.endpoint) == ""
    done = sender.send(kv_transfer(1, receiver))
    assert done.status is TransferStatus.FAILED
    assert "the connection ended" in done.detail
    cable.cut_at = lambda count: False
    done = sender.send(kv_transfer(2, receiver))
    assert (done.ticket, done.status) == (2, TransferStatus.OK)
    cable.close()


def test_a_receiver_that_hangs_holds_up_no_other(pair: tuple[Node, Node]) -> None:
    sender, slow = pair
    with Node("c") as quick:
        quick.rooms.open(1, [0], [SLOTS])
        assert sender.meet(quick) == ""
        slow.pause()
        sender.order(kv_transfer(1, slow))
        tickets = [sender.send(kv_transfer(ticket, quick)).ticket for ticket in range(2, 5)]
        slow.go_on()
        assert tickets == [2, 3, 4], "the hanging one is not answered yet"
        assert (sender.event().ticket, quick.memory.tobytes()) == (1, sender.memory.tobytes())


def test_a_receiver_that_hangs_is_given_up(pair: tuple[Node, Node]) -> None:
    _, slow = pair
    with Node("c", stall_s=1.0) as sender:
        while sender.meet(slow):
            pass  # so slow is the machine
        slow.pause()
        done = sender.send(kv_transfer(1, slow))
        slow.go_on()
        assert (done.ticket, done.status) == (1, TransferStatus.FAILED)
        assert "timed out" in done.detail


def test_a_helper_whose_instance_closes_the_socket_ends() -> None:
    with Node("e") as node:
        node._socket.close()
        assert node.helper.wait(60) == 0


def issue(folder: Path, role: str, name: str) -> Path:
    """A directory with a certificate of the CA in `folder`."""
    if not (folder / "ca").exists():
        make_ca(folder / "ca")
    out = folder / f"{role}-{name}"
    issue_certificate(folder / "ca", out, CertificateRequest(role, name, ("127.0.0.1",)))
    return out


def test_with_certificates_only_instances_of_the_cluster_are_met(tmp_path: Path) -> None:
    ours, others = tmp_path / "ours", tmp_path / "others"
    tls = [issue(ours, "instance", name) for name in ("a", "b")]
    with Node("a", 1, tls_dir=tls[0]) as sender, Node("b", 2, tls_dir=tls[1]) as receiver:
        receiver.rooms.open(1, [0], [SLOTS])
        assert sender.meet(receiver) == ""
        assert sender.send(kv_transfer(1, receiver)).status is TransferStatus.OK
        assert receiver.memory.tobytes() == sender.memory.tobytes()
        with Node("c") as plain, Node("d", tls_dir=issue(others, "instance", "d")) as stranger:
            for other in (plain, stranger):
                assert other.meet(receiver) != ""
                assert sender.meet(other) != ""
        with Node("b", 3) as impostor:  # another process that claims the name, without its certificate
            assert sender.meet(impostor) != ""
        assert sender.meet(receiver) == ""


def test_renewed_certificates_are_used_without_a_restart(tmp_path: Path) -> None:
    ours, renewed = tmp_path / "ours", tmp_path / "renewed"
    with (
        Node("a", tls_dir=issue(ours, "instance", "a")) as node,
        Node("b", tls_dir=issue(renewed, "instance", "b")) as newer,
    ):
        assert newer.meet(node) != ""
        assert node.meet(newer) != ""
        made = issue(renewed, "instance", "a")
        for name in ("ca.pem", "cert.pem", "key.pem"):
            (made / name).replace(ours / "instance-a" / name)
        assert newer.meet(node) == ""
        assert node.meet(newer) == ""


def test_a_helper_loads_no_torch() -> None:
    """It would take the memory of another engine process, and seconds to start."""
    code = "import sys, dunlin.engine.remote.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
