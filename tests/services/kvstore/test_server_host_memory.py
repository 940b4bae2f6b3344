"""The tier's memory: really there, of a size that cannot change, and refused before the machine suffers."""

import gc
import mmap
import os
import subprocess
import sys

import pytest

from services.kvstore import server_host_memory
from services.kvstore.server_host_memory import HostMemoryError, SharedHostMemory

MIB = 1 << 20


def test_every_page_is_there_before_the_file_is_mapped() -> None:
    tier = SharedHostMemory(3 * MIB + 4096)
    try:
        stat = os.stat(tier.path)
        assert (stat.st_size, stat.st_blocks * 512) == (3 * MIB + 4096, 3 * MIB + 4096)
    finally:
        tier.close()


def test_another_process_reads_what_is_written_and_cannot_resize_it() -> None:
    tier = SharedHostMemory(MIB)
    descriptor = os.open(tier.path, os.O_RDWR)
    try:
        program = f"import mmap,os; f=os.open({tier.path!r}, os.O_RDWR); mmap.mmap(f, {MIB})[7:9] = b'ok'"
        subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
        with mmap.mmap(descriptor, MIB) as memory:
            assert memory[6:10] == b"\0ok\0"
        for size in (MIB - 1, MIB + 1):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)
        tier.close()


def test_more_than_there_is_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        HostMemoryError, match=r"no room for a host tier of 1073741824 MiB: \d+ MiB are available.*--tier-bytes"
    ):
        SharedHostMemory(1 << 50)


def test_what_others_need_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_host_memory, "available_memory_bytes", lambda: server_host_memory.SPARE_BYTES + MIB - 1)
    with pytest.raises(HostMemoryError, match="256 MiB stay for others"):
        SharedHostMemory(MIB)


def test_a_limit_met_while_filling_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([1 << 40, 1 << 40, 0])
    monkeypatch.setattr(server_host_memory, "available_memory_bytes", lambda: next(answers))
    monkeypatch.setattr(server_host_memory, "CHUNK_BYTES", MIB)
    gc.collect()  # descriptors of other tests, which would be closed meanwhile
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(HostMemoryError):
        SharedHostMemory(4 * MIB)
    assert set(os.listdir("/proc/self/fd")) <= before


def test_an_error_of_the_kernel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(HostMemoryError, match="No space left on device"):
        SharedHostMemory(MIB)
