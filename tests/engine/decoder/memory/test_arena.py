"""Ranges map granules at fixed addresses; what lies in the memory file outlives the mapping."""

import faulthandler
import mmap
import os
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dunlin.engine.decoder.memory.arena import PIECE_GRANULES, Arena, ArenaRange, FileHeader, ensure_size
from dunlin.engine.decoder.memory.layer_layout import GRANULE_BYTES

ITEMS = GRANULE_BYTES // 4


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(memory(8))
    yield made
    made.close()
    os.close(made.fd)


def memory(granules: int) -> int:
    fd = os.memfd_create("arena")
    ensure_size(fd, granules * GRANULE_BYTES)
    return fd


def extend(mapped: ArenaRange, granules: Sequence[int], **options: bool) -> list[int]:
    return list(mapped.extend(np.array(granules, dtype=np.int64), **options))


def mapped_pages(address: int, granules: int) -> int:
    """Pages of the mapping that this process would not fault on."""
    with open("/proc/self/pagemap", "rb") as pages:
        pages.seek(address // mmap.PAGESIZE * 8)
        entries = np.frombuffer(pages.read(granules * GRANULE_BYTES // mmap.PAGESIZE * 8), dtype=np.uint64)
    return int((entries >> np.uint64(63)).sum())


def test_more_addresses_than_there_are_cannot_be_reserved(arena: Arena) -> None:
    with pytest.raises(MemoryError, match="mmap of"):
        arena.reserve(1 << 42)


def test_a_range_is_one_tensor_that_gets_longer(arena: Arena) -> None:
    first, second = arena.reserve(8), arena.reserve(8)
    extend(first, [0, 2])
    extend(second, [1, 3])
    view = first.tensor(torch.float32)
    view[: 2 * ITEMS] = torch.arange(2.0 * ITEMS)
    second.tensor(torch.float32)[: 2 * ITEMS] = -1
    assert list(second.truncate(0)) == [2]
    extend(first, [0, 2, 1, 3])
    assert first.granules == [0, 2, 1, 3]
    assert torch.equal(view[: 2 * ITEMS], torch.arange(2.0 * ITEMS)), "old content is intact at the old addresses"
    assert float(view[2 * ITEMS : 4 * ITEMS].sum()) == -2.0 * ITEMS, "the content of a granule moves with it"


def test_a_granule_in_two_ranges_is_the_same_bytes(arena: Arena) -> None:
    first, second = arena.reserve(2), arena.reserve(2)
    extend(first, [5])
    extend(second, [4, 5], populate=True)
    first.tensor(torch.int32)[:ITEMS] = 9
    assert int(second.tensor(torch.int32)[ITEMS]) == 9


def test_populating_puts_every_page_there_and_changes_none(arena: Arena) -> None:
    first, second = arena.reserve(8), arena.reserve(8)
    extend(first, range(8))
    first.tensor(torch.int32)[: 8 * ITEMS] = 7
    extend(second, range(4))
    view = second.tensor(torch.int32)
    assert mapped_pages(view.data_ptr(), 4) == 0
    extend(second, range(8), populate=True)
    assert mapped_pages(view.data_ptr() + 4 * GRANULE_BYTES, 4) == 4 * GRANULE_BYTES // mmap.PAGESIZE
    assert int(view[: 8 * ITEMS].min()) == int(view[: 8 * ITEMS].max()) == 7


def test_work_comes_in_pieces() -> None:
    most = PIECE_GRANULES
    arena = Arena(memory(3 * most))
    large = arena.reserve(3 * most)
    order = [*range(most + 3), *range(2 * most, 3 * most)]
    assert extend(large, order, populate=True) == [most, 3, most]
    assert list(large.truncate(1)) == [most, most, 2]
    assert large.granules == [0]
    assert extend(large, order) == [most + 2, most], "without populating, one mapping for each run"
    arena.close()
    os.close(arena.fd)


def test_content_outlives_the_arena_that_wrote_it_and_begins_where_it_is_told() -> None:
    fd = memory(4)
    for expected in (0.0, 7.0):
        arena = Arena(fd, GRANULE_BYTES)
        kept = arena.reserve(4)
        extend(kept, [2, 0])
        view = kept.tensor(torch.float32)[: 2 * ITEMS]
        assert float(view.max()) == float(view.min()) == expected
        view.fill_(7.0)
        arena.close()
    content = np.frombuffer(os.pread(fd, 4 * GRANULE_BYTES, 0), dtype=np.float32)
    assert [float(content[at * ITEMS]) for at in range(4)] == [0.0, 7.0, 0.0, 7.0]
    os.close(fd)


def test_a_reader_cannot_write() -> None:
    fd = memory(1)
    os.pwrite(fd, b"\1\0\0\0", 0)
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        held = Arena(fd, read_only=True).reserve(1)
        extend(held, [0])
        view = held.tensor(torch.int32)
        assert int(view[0]) == 1
        view[0] = 2
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -11, "SIGSEGV"
    assert os.pread(fd, 1, 0) == b"\1"
    os.close(fd)


def test_what_does_not_fit_is_refused(arena: Arena) -> None:
    small = arena.reserve(2)
    with pytest.raises(ValueError, match="a range of 131072 bytes cannot hold 3 granules"):
        extend(small, [0, 1, 2])
    extend(small, [0])
    for other in ([1, 2], []):
        with pytest.raises(ValueError, match="only be extended at its end"):
            extend(small, other)
    assert small.granules == [0]


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 4)), max_size=20))
def test_content_under_any_changes(moves: list[tuple[int, bool, int]]) -> None:
    arena = Arena(memory(8))
    ranges = [arena.reserve(8) for _ in range(3)]
    views = [each.tensor(torch.int32) for each in ranges]
    free, stamp = list(range(8)), 0
    marks: list[list[int]] = [[], [], []]
    for which, grows, count in moves:
        held = ranges[which]
        if grows and count <= len(free):
            extend(held, [*held.granules, *free[:count]])
            del free[:count]
            for at in range(len(marks[which]), len(held)):
                stamp += 1
                views[which][at * ITEMS : (at + 1) * ITEMS] = stamp
                marks[which].append(stamp)
        elif not grows and count <= len(held):
            free += held.granules[count:]
            list(held.truncate(count))
            del marks[which][count:]
        for view, expected in zip(views, marks, strict=True):
            assert [int(view[at * ITEMS]) for at in range(len(expected))] == expected
    arena.close()
    os.close(arena.fd)


def test_a_header_is_shared_and_read_only_where_it_is_said() -> None:
    fd = memory(1)
    header, other = FileHeader(fd, 4096), FileHeader(fd, 4096, read_only=True)
    header.write(100, b"abc")
    assert other.read(99, 5) == b"\0abc\0"
    with pytest.raises(TypeError):
        other.write(0, b"x")
    header.close()
    other.close()
    os.close(fd)


def test_a_file_never_gets_smaller() -> None:
    fd = memory(2)
    ensure_size(fd, 100)
    assert os.fstat(fd).st_size == 2 * GRANULE_BYTES
    os.close(fd)
