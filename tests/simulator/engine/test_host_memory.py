"""The host tier's memory: content by offset, a flipped bit, and a checksum of the identity and the content."""

import pytest

from dunlin.messages.types import HostRegion, Region
from simulator.engine.host_memory import SimulatedHostMemory, checksum_of

REGION = Region(0, 2, 0, 3)


def test_a_region_is_read_at_its_offset_whatever_its_name() -> None:
    memory = SimulatedHostMemory()
    memory.write(HostRegion(1, 1, 4096, 64), [5, 6])
    assert memory.read(HostRegion(9, 7, 4096, 64)) == [5, 6]
    assert memory.read(HostRegion(1, 1, 0, 64)) == []


def test_what_is_written_is_a_copy() -> None:
    memory, content = SimulatedHostMemory(), [5, 6]
    memory.write(HostRegion(1, 1, 0, 64), content)
    memory.corrupt(0)
    assert content == [5, 6]
    assert memory.read(HostRegion(1, 1, 0, 64)) == [4, 6]
    memory.corrupt(0)
    assert memory.read(HostRegion(1, 1, 0, 64)) == [5, 6]


def test_only_a_written_region_can_be_damaged() -> None:
    with pytest.raises(KeyError):
        SimulatedHostMemory().corrupt(64)


def test_damage_goes_with_copies_and_ends_with_the_next_write() -> None:
    memory, other = SimulatedHostMemory(), SimulatedHostMemory()
    here, there = HostRegion(1, 1, 0, 64), HostRegion(2, 1, 128, 64)
    memory.write(here, [5, 6])
    memory.corrupt(0)
    other.copy_from(memory, here, there)
    assert (other.read(there), other.damaged, memory.damaged) == ([4, 6], {128}, {0})
    memory.write(here, [7])
    other.copy_from(memory, here, there)
    assert (other.read(there), other.damaged, memory.damaged) == ([7], set(), set())


def test_a_checksum_covers_the_identity_and_the_content() -> None:
    checksums = [
        checksum_of(REGION, "float32", b"chain", [1, 2]),
        checksum_of(REGION, "float32", b"chain", [1, 3]),
        checksum_of(REGION, "float32", b"other", [1, 2]),
        checksum_of(REGION, "bfloat16", b"chain", [1, 2]),
        checksum_of(Region(0, 2, 1, 4), "float32", b"chain", [1, 2]),
        checksum_of(Region(1, 2, 0, 3), "float32", b"chain", [1, 2]),
    ]
    assert len(set(checksums)) == len(checksums)
    assert checksum_of(REGION, "float32", b"chain", [1, 2]) == checksums[0]
    assert all(-(1 << 63) <= checksum < 1 << 63 for checksum in checksums)
