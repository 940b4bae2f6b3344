"""Faults of host tiers: flipped bits that the memory notes, and a hog that takes most of the room and returns it."""

import pytest

from dunlin.effects import Address, Gone, Send
from dunlin.messages.pool import RegionReserved, ReleaseRegion, ReserveRegion, TierReady
from dunlin.messages.types import HostRegion
from simulator.campaign.faults.storage import SpaceHog
from tests.simulator.campaign.campaign_bench import Campaign, fault

HOG, KVSTORE = Address("instance", "hog", 9), Address("kvstore", "kvstore-0", 1)


@pytest.mark.parametrize(
    ("amount", "other", "damaged"), [(0.0, 0.0, [0, 64, 128]), (0.5, 0.0, [0]), (0.5, 0.34, [64]), (0.9, 0.99, [128])]
)
def test_one_region_or_every_one_is_damaged_and_written_down(amount: float, other: float, damaged: list[int]) -> None:
    campaign = Campaign()
    kvstore, contents = campaign.address("kvstore"), campaign.cluster.tier.contents
    for offset in (128, 0, 64):
        contents[offset] = [10, 20]
    contents[256] = []
    assert campaign.faults.inject(fault("corrupt", amount=amount, other=other)) == kvstore
    assert {offset for offset, content in contents.items() if content == [11, 20]} == set(damaged)
    assert campaign.cluster.tier.damaged == set(damaged)


def test_an_empty_tier_cannot_be_damaged() -> None:
    campaign = Campaign()
    campaign.cluster.tier.contents[0] = []
    assert campaign.faults.inject(fault("corrupt")) is None
    assert campaign.cluster.tier.damaged == set()


def test_a_hog_takes_seven_eighths_of_a_tier_and_returns_them() -> None:
    campaign = Campaign(tier_bytes=1 << 16)
    catalog = campaign.cluster.kvstore.catalog
    assert campaign.faults.inject(fault("tier_full", lasts_s=3.0)) == campaign.address("kvstore")
    campaign.run(2.9)
    (hog,) = catalog.known_writers()
    assert len(catalog) == 7
    assert catalog.allocator.largest_free_bytes <= (1 << 16) // 8
    campaign.run(2.0)
    assert (len(catalog), campaign.world.is_up(hog)) == (0, False)


def test_a_hog_whose_kvstore_dies_ends_too() -> None:
    campaign = Campaign()
    campaign.faults.inject(fault("tier_full", lasts_s=2.0))
    campaign.run(1.0)
    (hog,) = campaign.cluster.kvstore.catalog.known_writers()
    campaign.cluster.kill(campaign.address("kvstore"))
    campaign.run(1.5)
    assert not campaign.world.is_up(hog)


def test_while_etcd_is_down_no_hog_starts() -> None:
    campaign = Campaign()
    campaign.cluster.etcd.begin_outage(1.0)
    assert campaign.faults.inject(fault("tier_full")) is None


def test_a_hog_releases_exactly_what_it_was_given_at_its_own_word_alone() -> None:
    hog = SpaceHog(HOG, KVSTORE, 1 << 20)
    wishes = hog.receive(0.0, KVSTORE, TierReady("/tier", 1 << 20))
    asked = [effect.message for effect in wishes if isinstance(effect, Send)]
    assert [one.length_bytes for one in asked if isinstance(one, ReserveRegion)] == [1 << 17] * 7
    assert len({one.key for one in asked if isinstance(one, ReserveRegion)}) == 7
    for handle in (3, 5):
        assert hog.receive(0.0, KVSTORE, RegionReserved(handle, HostRegion(handle, 2, 0, 64))) == []
    assert hog.receive(0.0, KVSTORE, Gone("lost")) == []
    released = hog.receive(0.0, HOG, Gone("enough"))
    assert released == [Send(KVSTORE, ReleaseRegion(3, 2)), Send(KVSTORE, ReleaseRegion(5, 2))]


def test_a_hog_of_a_small_tier_asks_for_whole_pages() -> None:
    wishes = SpaceHog(HOG, KVSTORE, 4096).receive(0.0, KVSTORE, TierReady("/tier", 4096))
    sizes = {
        one.message.length_bytes for one in wishes if isinstance(one, Send) and isinstance(one.message, ReserveRegion)
    }
    assert sizes == {4096}
