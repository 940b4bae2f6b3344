"""Planted states that break I7, and I9 for writes, are found: old names, damage, and writes into others' regions."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from dunlin.effects import Address, Message
from dunlin.messages.engine import Transfer, TransferDone, Unsupported
from dunlin.messages.pool import (
    CommitRegion,
    RegionReserved,
    RegionsFound,
    RegionsRevoked,
    ReleaseRegion,
    ReserveRegion,
)
from dunlin.messages.types import HostRegion, KeptRegion, Region, TransferKind, TransferStatus, i64
from services.kvstore.regions.catalog import RegionEntry
from simulator.campaign.invariants.tier import GIVEN_S, TAKEN_S, RegionNameWatcher, RegionWatcher
from simulator.campaign.violation import Violation
from tests.simulator.campaign.campaign_bench import Campaign, fault

REGION = Region(0, 2, 0, 4)


def broken(kind: str, words: str) -> Any:
    return pytest.raises(Violation, match=f"^{kind} at .*{words}")


class Tier:
    """A campaign with one instance, whose requests for room in the kvstore's catalog are made here."""

    def __init__(self, kind: type[Any]) -> None:
        self.campaign = Campaign(instances=1)
        self.watcher = kind(self.campaign.cluster, self.campaign.clients, self.campaign.faults)
        self.instance, self.kvstore = self.campaign.address("instance"), self.campaign.address("kvstore")
        self.engine = Address("engine", self.instance.name)
        self.catalog = self.campaign.cluster.kvstore.catalog

    def reserve(self, length_bytes: int = 4096) -> RegionEntry:
        asked = ReserveRegion(1, self.instance, 1, 1, REGION, length_bytes, "float32", "fake")
        entry = self.catalog.reserve(self.instance, asked)
        assert entry is not None
        return entry

    def release(self, host: HostRegion) -> None:
        assert self.catalog.release(self.instance, host.handle, host.generation)

    def before(self, sender: Address, to: Address, message: Message) -> None:
        self.watcher.before(self.campaign.event(sender, to, message))

    def after(self, sender: Address, to: Address, message: Message) -> None:
        self.watcher.after(self.campaign.event(sender, to, message))

    def begin(self, host: HostRegion, kind: TransferKind = TransferKind.HOST_TO_SLAB, sequence: int = 1) -> None:
        """The instance orders its engine's move 1."""
        move = Transfer(1, kind, sequence, REGION, i64([0]), i64([4]), host)
        self.before(self.instance, self.engine, move)

    def end(self, status: TransferStatus = TransferStatus.OK) -> None:
        self.before(self.engine, self.instance, TransferDone(1, status))


def test_a_region_of_its_own_may_be_read_and_a_reserved_one_written() -> None:
    tier = Tier(RegionWatcher)
    for kind in (TransferKind.HOST_TO_SLAB, TransferKind.SLAB_TO_HOST):
        tier.begin(tier.reserve().host, kind)
        tier.end()
    tier.campaign.run(10.0)
    tier.watcher.audit()


def test_a_read_under_a_name_that_was_revoked_breaks_i7() -> None:
    tier = Tier(RegionWatcher)
    host = tier.reserve().host
    tier.release(host)
    tier.before(tier.kvstore, tier.instance, RegionsRevoked(i64([host.handle]), i64([host.generation])))
    tier.campaign.run(GIVEN_S / 2)
    tier.begin(host)
    tier.campaign.run(GIVEN_S)
    with broken("I7", "reads .*, and .*kvstore-0.* has told it that another has it"):
        tier.begin(host)


def test_an_order_that_was_given_before_the_name_was_revoked_may_reach_the_engine_after_it() -> None:
    """Seed 5218808: an instance that slept orders the copy and hears of the name in the same instant."""
    tier = Tier(RegionWatcher)
    host = tier.reserve().host
    tier.release(host)
    tier.before(tier.kvstore, tier.instance, RegionsRevoked(i64([host.handle]), i64([host.generation])))
    tier.begin(host)
    tier.campaign.run(TAKEN_S + 0.1)
    tier.watcher.audit()


def test_an_instance_that_is_not_told_of_its_old_name_breaks_i7() -> None:
    tier = Tier(RegionWatcher)
    host = tier.reserve().host
    tier.release(host)
    tier.begin(host)
    tier.campaign.run(TAKEN_S - 0.1)
    tier.watcher.audit()
    tier.campaign.run(0.2)
    with broken("I7", f"was not told that region {host.handle}.{host.generation} of .* is another's"):
        tier.watcher.audit()
    tier.campaign.faults._victims.mark_disturbed(fault(), tier.kvstore)
    tier.watcher.audit()


def test_damage_where_no_fault_did_it_breaks_i7() -> None:
    tier = Tier(RegionWatcher)
    tier.campaign.cluster.mapped_of[tier.instance] = tier.kvstore
    memory, (sound, damaged) = tier.campaign.cluster.tier, (tier.reserve().host, tier.reserve().host)
    for host in (sound, damaged):
        memory.write(host, [7])
    memory.corrupt(damaged.offset_bytes)
    tier.begin(damaged)
    tier.end(TransferStatus.CORRUPT)
    tier.begin(sound)
    with broken("I7", "finds .* damaged, and no fault damaged it"):
        tier.end(TransferStatus.CORRUPT)
    memory.write(damaged, [7])  # damage ends with the next write
    tier.begin(damaged)
    with broken("I7", "finds .* damaged, and no fault damaged it"):
        tier.end(TransferStatus.CORRUPT)
    assert not tier.watcher.excused


def test_a_region_that_its_owner_released_while_it_was_read_may_be_damaged() -> None:
    tier = Tier(RegionWatcher)
    host = tier.reserve().host
    tier.begin(host)
    tier.release(host)
    tier.end(TransferStatus.CORRUPT)
    assert tier.watcher.excused.total() == 1


def test_room_is_free_for_a_write_that_the_engine_refused_and_not_for_one_that_it_has() -> None:
    tier = Tier(RegionWatcher)
    tier.campaign.cluster.mapped_of[tier.instance] = tier.kvstore
    host = tier.reserve().host
    tier.begin(host, TransferKind.SLAB_TO_HOST)
    tier.before(tier.engine, tier.instance, Unsupported("Transfer", ticket=1))
    tier.release(host)
    tier.after(tier.instance, tier.kvstore, ReleaseRegion(host.handle, host.generation))
    tier.begin(host, TransferKind.SLAB_TO_HOST)
    with broken("I9", "which is free after"):
        tier.after(tier.instance, tier.kvstore, ReleaseRegion(host.handle, host.generation))


def test_a_write_that_ended_in_anothers_region_breaks_i9() -> None:
    tier = Tier(RegionWatcher)
    host = tier.reserve().host
    tier.begin(host, TransferKind.SLAB_TO_HOST)
    tier.release(host)
    tier.end()  # in free room
    tier.begin(host, TransferKind.SLAB_TO_HOST)
    assert tier.reserve().host.offset_bytes == host.offset_bytes
    with broken("I9", "wrote .*, where .*instance-0.* has .* by now"):
        tier.end()


def test_room_that_is_freed_while_an_engine_writes_there_breaks_i9() -> None:
    tier = Tier(RegionWatcher)
    host = tier.reserve().host
    message = ReleaseRegion(host.handle, host.generation)
    tier.begin(host, TransferKind.SLAB_TO_HOST)
    tier.after(tier.instance, tier.kvstore, message)
    tier.release(host)
    with broken("I9", "writes .*, which is free after"):
        tier.after(tier.instance, tier.kvstore, message)
    tier.end()
    tier.after(tier.instance, tier.kvstore, message)


def test_a_sequence_that_counts_on_a_lost_kvstores_regions_breaks_i7() -> None:
    tier = Tier(RegionWatcher)
    instances: Any = tier.campaign.cluster.instances
    kept = SimpleNamespace(keeper=tier.kvstore)
    sequence = SimpleNamespace(kept=[kept])
    host_cache = SimpleNamespace(kvstore=tier.kvstore)
    instances["instance-0"] = SimpleNamespace(address=tier.instance, sequences=[sequence], host_cache=host_cache)
    tier.watcher.audit()
    host_cache.kvstore = None
    with broken("I7", "has None and counts on"):
        tier.watcher.audit()


# --- names ---


def test_a_name_that_is_given_twice_breaks_i7() -> None:
    tier = Tier(RegionNameWatcher)
    host = HostRegion(4, 2, 0, 64)
    tier.before(tier.kvstore, tier.instance, RegionReserved(1, host))
    tier.before(tier.kvstore, tier.instance, RegionReserved(1, replace(host, generation=3)))
    other = Address("kvstore", "kvstore-0", tier.kvstore.incarnation + 1)
    tier.before(other, tier.instance, RegionReserved(1, host))
    with broken("I7", "gives .*instance-0.* the name .*, which it has given"):
        tier.before(tier.kvstore, tier.instance, RegionsFound(2, (KeptRegion(REGION, host, b""),)))


@pytest.mark.parametrize("is_old", [True, False])
def test_a_commit_under_anothers_or_an_old_name_that_counts_breaks_i7(is_old: bool) -> None:
    tier = Tier(RegionNameWatcher)
    host = tier.reserve().host
    sender = tier.instance if is_old else Address("instance", "other", 99)
    message = CommitRegion(host.handle, host.generation - is_old, 7)
    tier.before(sender, tier.kvstore, message)
    tier.after(sender, tier.kvstore, message)
    tier.before(sender, tier.kvstore, message)
    assert tier.catalog.commit(tier.instance, host.handle, host.generation, 7)
    with broken("I7", "is about a name that is not its sender's, and made"):
        tier.after(sender, tier.kvstore, message)


def test_a_commit_or_release_under_the_current_name_may_change_its_entry() -> None:
    tier = Tier(RegionNameWatcher)
    host = tier.reserve().host
    commit = CommitRegion(host.handle, host.generation, 7)
    tier.before(tier.instance, tier.kvstore, commit)
    tier.catalog.commit(tier.instance, host.handle, host.generation, 7)
    tier.after(tier.instance, tier.kvstore, commit)
