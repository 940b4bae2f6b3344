"""Rooms that peers may write: by handle, in a table of fixed size, and taken back for good."""

import os

import pytest

from dunlin.engine.execution.engine_transfers import EngineTransfers, OwnMemory
from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.peer_access import PeerAccess
from dunlin.engine.transfer.peer_page import PeerPage, PeerPageView
from dunlin.engine.transfer.peer_rooms import EXTENTS_MOST, RECORDS, PeerRoomTable, open_extents, room_lock
from dunlin.engine.transfer.transfer_queue import TransferLimits
from dunlin.messages.engine import ClosePeerRoom
from dunlin.messages.types import TransferStatus
from tests.engine.build import SteppingClock
from tests.engine.transfer.engines import SLOTS, Engine, peer_transfer, slots_of


class Opened:
    """A page with its table, a peer that looks at it, and a clock that passes while the owner waits."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("page")
        self.now_s = 0.0
        self.page = PeerPage(self.fd, lambda: self.now_s, self._pass, patience_s=1.0)
        self.page.publish(0, b"geometry")
        self.table = PeerRoomTable(self.fd)

    def view(self) -> PeerPageView:
        return PeerPageView(f"/proc/self/fd/{self.fd}", self.page.life)

    def _pass(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def opened() -> Opened:
    return Opened()


def closed(handle: int) -> str:
    return f"the room {handle} is closed"


@pytest.mark.parametrize("handle", [1, 2])
def test_no_room_is_open_before_there_is_a_table(handle: int) -> None:
    with pytest.raises(TransferError, match=closed(handle)):
        open_extents(os.memfd_create("page"), handle)


def test_an_open_room_has_its_slots_and_may_be_written(opened: Opened) -> None:
    assert opened.table.open(7, [5, 1], [2, 9])
    view = opened.view()
    assert view.room_extents(7) == ([5, 1], [2, 9])
    with view.writing(0, 1, 7):
        pass
    with view.writing(0, 1):
        pass


@pytest.mark.parametrize("handle", [1, 7 + RECORDS, 7 - RECORDS])
def test_no_other_handle_opens_it(opened: Opened, handle: int) -> None:
    opened.table.open(7, [5], [2])
    view = opened.view()
    with pytest.raises(TransferError, match=closed(handle)):
        view.room_extents(handle)
    with pytest.raises(TransferError, match=closed(handle)), view.writing(0, 1, handle):
        pass
    opened.table.close(handle)
    assert view.room_extents(7) == ([5], [2])


def test_a_closed_room_is_written_by_nobody_and_its_record_is_free(opened: Opened) -> None:
    opened.table.open(7, [5], [2])
    view = opened.view()
    opened.table.close(7)
    with pytest.raises(TransferError, match=closed(7)), view.writing(0, 1, 7):
        pass
    assert opened.table.open(7 + RECORDS, [3], [4])
    assert view.room_extents(7 + RECORDS) == ([3], [4])
    opened.table.clear()
    with pytest.raises(TransferError, match=closed(7 + RECORDS)):
        view.room_extents(7 + RECORDS)


def test_the_table_is_bounded(opened: Opened) -> None:
    assert opened.table.open(7, [5], [2])
    assert opened.table.open(7, [5], [2]), "the same room again"
    assert not opened.table.open(7 + RECORDS, [5], [2])
    assert not opened.table.open(8, [0] * (EXTENTS_MOST + 1), [1] * (EXTENTS_MOST + 1))
    assert opened.table.open(8, list(range(EXTENTS_MOST)), [1] * EXTENTS_MOST)
    assert len(opened.view().room_extents(8)[0]) == EXTENTS_MOST


def test_the_owner_waits_for_the_chunk_that_is_being_written_there_and_for_no_other(opened: Opened) -> None:
    opened.table.open(7, [5], [2])
    opened.table.open(8, [9], [2])
    writer, other = opened.view(), opened.view()
    with other.writing(0, 1, 8):
        with writer.writing(0, 1, 7):
            opened.table.close(7)
            with pytest.raises(TimeoutError):
                opened.page.await_writers(7)
        began_s = opened.now_s
        opened.page.await_writers(7)
        assert opened.now_s == began_s
    with pytest.raises(TransferError, match=closed(7)), writer.writing(0, 1, 7):
        pass


def test_while_the_owner_waits_no_chunk_begins(opened: Opened) -> None:
    opened.table.open(7, [5], [2])
    view = opened.view()
    with room_lock(opened.fd, 7), pytest.raises(TransferError, match=closed(7)), view.writing(0, 1, 7):
        pass


def test_a_transfer_within_a_node_goes_into_an_open_room_only() -> None:
    sender, receiver = Engine("a", seed=1), Engine("b", seed=2)
    sender.meet(receiver)
    table = PeerRoomTable(receiver.page_fd)
    table.open(4, [3, 7], [1, 2])
    sender.queue.add(peer_transfer(1, receiver.address, peer_handle=4))
    (ended,) = sender.finish()
    receiver.read_arena()
    assert ended.done.status is TransferStatus.OK
    assert slots_of(receiver.kv, [3, 7, 8]) == slots_of(sender.kv, [5, 6, 1])
    table.close(4)
    before = slots_of(receiver.kv, range(SLOTS))
    sender.queue.add(peer_transfer(2, receiver.address, peer_handle=4))
    (ended,) = sender.finish()
    receiver.read_arena()
    assert (ended.done.status, ended.done.detail) == (TransferStatus.FAILED, closed(4))
    assert slots_of(receiver.kv, range(SLOTS)) == before


def test_the_engine_takes_no_later_command_before_the_last_chunk_of_a_closed_room() -> None:
    sender, receiver = Engine("a"), Engine("b")
    now_s = [0.0]
    page = PeerPage(receiver.page_fd, lambda: now_s[0], lambda seconds: now_s.append(now_s.pop() + seconds))
    page.publish(0, b"geometry")
    table = PeerRoomTable(receiver.page_fd)
    table.open(4, [3], [1])
    access = PeerAccess.__new__(PeerAccess)
    access._page = page
    transfers = EngineTransfers(OwnMemory(sender.slab, sender.rooms, access), {}, SteppingClock(), TransferLimits())
    view = PeerPageView(f"/proc/self/fd/{receiver.page_fd}", page.life)
    with view.writing(0, 1, 4):
        table.close(4)
        with pytest.raises(TimeoutError):
            transfers.on_close_room(ClosePeerRoom(4))
    assert transfers.on_close_room(ClosePeerRoom(4)) == []
