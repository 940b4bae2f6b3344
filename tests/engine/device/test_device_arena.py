"""An arena over a device's granules: as one over a memory file, by the driver's calls alone."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from dunlin.engine.device.device_arena import PIECE_GRANULES, DeviceArena, DeviceMemory, DeviceRange
from dunlin.engine.device.host_driver import HostMemoryDriver

GRANULE = 1 << 16
ITEMS = GRANULE // 4


@pytest.fixture
def driver() -> HostMemoryDriver:
    return HostMemoryDriver(GRANULE, 40)


@pytest.fixture
def arena(driver: HostMemoryDriver) -> Iterator[DeviceArena]:
    made = DeviceArena(driver, -1)
    yield made
    made.close()


def extend(mapped: DeviceRange, granules: Sequence[int]) -> list[int]:
    return list(mapped.extend(np.array(granules, dtype=np.int64), populate=True))


def test_a_range_is_one_tensor_that_gets_longer(arena: DeviceArena) -> None:
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


def test_a_granule_in_two_ranges_is_the_same_bytes(arena: DeviceArena) -> None:
    first, second = arena.reserve(2), arena.reserve(2)
    extend(first, [5])
    extend(second, [4, 5])
    first.tensor(torch.int32)[:ITEMS] = 9
    assert int(second.tensor(torch.int32)[ITEMS]) == 9


def test_it_maps_and_unmaps_in_pieces(arena: DeviceArena) -> None:
    mapped = arena.reserve(40)
    assert extend(mapped, range(PIECE_GRANULES + 3)) == [PIECE_GRANULES, 3]
    assert list(mapped.truncate(1)) == [PIECE_GRANULES, 2]
    assert mapped.granules == [0]


def test_a_range_grows_at_its_end_alone_and_not_beyond_its_addresses(arena: DeviceArena) -> None:
    mapped = arena.reserve(2)
    extend(mapped, [3])
    with pytest.raises(ValueError, match="only be extended at its end"):
        extend(mapped, [4, 3])
    with pytest.raises(ValueError, match="cannot hold 3 granules"):
        extend(mapped, [3, 4, 5])


def test_no_memory_left_is_said_and_what_was_mapped_stays(arena: DeviceArena) -> None:
    mapped = arena.reserve(64)
    with pytest.raises(MemoryError, match="the device has 40 granules"):
        extend(mapped, range(41))
    assert mapped.granules == list(range(40))


def test_nothing_is_unmapped_under_a_kernel(arena: DeviceArena, driver: HostMemoryDriver) -> None:
    told: list[str] = []
    mapped = arena.reserve(2)
    extend(mapped, [0, 1])
    unmap = driver.unmap
    driver.wait = lambda: told.append("wait")  # type: ignore[method-assign]
    driver.unmap = lambda address: (told.append("unmap"), unmap(address))[1]  # type: ignore[method-assign, func-returns-value]
    list(mapped.truncate(2))
    assert told == [], "nothing is to be unmapped"
    list(mapped.truncate(0))
    assert told == ["wait", "unmap", "unmap"]


def test_a_closed_arena_gives_its_memory_back(driver: HostMemoryDriver) -> None:
    made = DeviceMemory(driver).open(-1, 0, 8)
    first, second = made.reserve(4), made.reserve(4)
    extend(first, [0, 1])
    extend(second, [1, 2])
    assert driver.created == 3, "a granule in two ranges is one"
    made.close()
    assert driver.created == 0
