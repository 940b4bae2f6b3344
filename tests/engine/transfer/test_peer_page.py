"""The fence between an engine and the peers that write into its memory."""

import os
import signal
import subprocess
import sys

import pytest

from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.peer_page import PAGE_OFFSET, PeerPage, PeerPageView


def view(fd: int, page: PeerPage) -> PeerPageView:
    return PeerPageView(f"/proc/self/fd/{fd}", page.life)


def make_page() -> tuple[int, PeerPage]:
    fd = os.memfd_create("page")
    return fd, PeerPage(fd)


def test_what_was_published_is_read_and_a_new_layout_takes_its_place() -> None:
    fd, page = make_page()
    seen = view(fd, page)
    page.publish(3, b"geometry of three")
    assert seen.geometry() == (1, b"geometry of three")
    with seen.writing(3, 1):
        pass
    page.publish(4, b"four")
    assert seen.geometry() == (2, b"four")
    with (
        pytest.raises(TransferError, match="the peer's layout is 4, the transfer was ordered for 3"),
        seen.writing(3, 1),
    ):
        pass


def test_before_anything_is_published_and_while_it_changes_nobody_writes() -> None:
    fd, page = make_page()
    seen = view(fd, page)
    for _ in range(2):
        with pytest.raises(TransferError, match="layout is changing"), seen.writing(0, 1):
            pass
        with pytest.raises(TransferError, match="layout is changing"):
            seen.geometry()
        page.publish(0, b"")
        with seen.writing(0, seen.version()):
            pass
        with page.closed(), pytest.raises(TransferError, match="layout is changing"), seen.writing(0, 1):
            pass


def test_the_next_engine_is_not_the_one_that_was_met() -> None:
    fd, page = make_page()
    page.publish(0, b"")
    seen = view(fd, page)
    following = PeerPage(fd)
    following.publish(0, b"")
    assert following.life != page.life
    with pytest.raises(TransferError, match="has to be met again"), seen.writing(0, 1):
        pass
    with pytest.raises(TransferError, match="has to be met again"):
        view(fd, page)


def test_a_file_without_a_page_or_a_path_without_a_file_is_refused() -> None:
    fd, page = make_page()
    os.pwrite(fd, b"another ", PAGE_OFFSET)
    for path in (f"/proc/self/fd/{fd}", f"/proc/self/fd/{os.memfd_create('empty')}"):
        with pytest.raises(TransferError, match="has no page for peers"):
            PeerPageView(path, page.life)
    with pytest.raises(TransferError, match="memory is not there"):
        PeerPageView("/proc/self/fd/99999", page.life)


def test_the_owner_waits_for_the_chunk_that_is_being_written_and_no_other_begins() -> None:
    fd, page = make_page()
    page.publish(0, b"")
    writer, other = view(fd, page), view(fd, page)
    refused = []

    def sleep(_: float) -> None:
        """Called while the owner waits: the second time the first writer has ended its chunk."""
        with pytest.raises(TransferError) as raised, other.writing(0, 1):
            pass
        refused.append(str(raised.value))
        if len(refused) == 2:
            chunk.__exit__(None, None, None)

    page._sleep = sleep
    chunk = writer.writing(0, 1)
    chunk.__enter__()
    with page.closed():
        assert len(refused) == 2
    assert set(refused) == {"the peer's layout is changing"}


def test_a_view_that_was_closed_writes_nothing() -> None:
    fd, page = make_page()
    page.publish(0, b"")
    seen = view(fd, page)
    seen.close()
    seen.close()
    with pytest.raises(TransferError, match="the peer is gone, or was met anew"), seen.writing(0, 1):
        pass


def test_slots_that_changed_within_a_layout_are_not_written_where_they_were() -> None:
    fd, page = make_page()
    page.publish(1, b"before")
    seen = view(fd, page)
    version, _ = seen.geometry()
    page.publish(1, b"after")
    with pytest.raises(TransferError, match="the slots of the peer's layout 1 changed"), seen.writing(1, version):
        pass
    with seen.writing(1, seen.version()):
        pass


STUCK_WRITER = """
import sys, time
from dunlin.engine.transfer.peer_page import PeerPageView
with PeerPageView(sys.argv[1], int(sys.argv[2])).writing(0, 1):
    print("in", flush=True)
    time.sleep(600)
"""


def test_a_writer_that_does_not_go_on_is_reported_and_one_that_died_holds_nothing() -> None:
    fd = os.memfd_create("page")
    now_s = iter(range(1_000_000))
    page = PeerPage(fd, clock=lambda: float(next(now_s)), sleep=lambda _: None)
    page.publish(0, b"")
    command = [sys.executable, "-c", STUCK_WRITER, f"/proc/{os.getpid()}/fd/{fd}", str(page.life)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"in\n"
        with pytest.raises(TimeoutError, match="writing one chunk for 10"), page.closed():
            pass
        writer.send_signal(signal.SIGKILL)
    page.publish(1, b"")
    with view(fd, page).writing(1, 2):
        pass
