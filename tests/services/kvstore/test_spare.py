"""What an asker has in its slab as well is a checkpoint to it, and leaves the room that checkpoints leave."""

import pytest

from dunlin.effects import Address, Joined, Send
from dunlin.messages.pool import CommitRegion, FindRegions, RegionReserved, RegionsFound, ReserveRegion
from dunlin.messages.types import Region
from services.kvstore.config import KvstoreConfig
from services.kvstore.core import KvstoreCore

D = Address("dispatcher", "d", 1)
SOURCE, TARGET = (Address("instance", name, 9) for name in "st")
UNIT = 64


def make_core(spill_share: float) -> KvstoreCore:
    """Four units of room; two regions of the request `k` take one each, and another request a third."""
    core = KvstoreCore(Address("kvstore", "kv", 3), KvstoreConfig("/t", 4 * UNIT, "n", UNIT, spill_share=spill_share))
    for peer in (SOURCE, TARGET):
        core.receive(0.0, peer, Joined())
    for key, start in (("k", 0), ("k", 8), ("other", 0)):
        asked = ReserveRegion(1, D, 1, 1, Region(0, 2, start, start + 8), UNIT, "fp32", "w", key=key, chain=b"c")
        (effect,) = core.receive(1.0, SOURCE, asked)
        assert isinstance(effect, Send)
        assert isinstance(effect.message, RegionReserved)
        core.receive(2.0, SOURCE, CommitRegion(effect.message.host.handle, effect.message.host.generation, 5))
    return core


@pytest.mark.parametrize(
    ("held", "spill_share", "starts"),
    [(0, 0.5, [0, 8]), (8, 0.5, [0, 8]), (16, 0.5, [0]), (16, 0.75, []), (16, 0.25, [0, 8])],
)
def test_it_gives_up_the_last_of_what_it_holds_until_there_is_room(
    held: int, spill_share: float, starts: list[int]
) -> None:
    core = make_core(spill_share)
    (effect,) = core.receive(3.0, TARGET, FindRegions(9, "k", D, 1, 2, "w", "fp32", held_tokens=held))
    assert isinstance(effect, Send)
    assert isinstance(effect.message, RegionsFound)
    assert [found.region.start for found in effect.message.regions] == starts
    core.catalog.check_integrity()
    assert core.catalog.room.free_bytes == (3 - len(starts)) * UNIT
    assert core.report().claimed_total == len(starts)
