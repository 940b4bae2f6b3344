"""KV of an outgoing migration: what is copied out, what the target is offered, and when the row may stop."""

from typing import Any

import pytest

from dunlin.effects import Address, Effect, Send
from dunlin.messages.group import Fill, PeerRoom
from dunlin.messages.types import HostRegion, Region, i64
from services.instance.engine.met_engines import MetEngines
from services.instance.kv.host_cache import HostCacheClient
from services.instance.migration.kv_transfer import KvExport, KvTransfer
from services.instance.migration.outgoing import MigrationStage, OutgoingMigration
from services.instance.migration.peer_copies import PeerCopies
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.sequence.sequence import KeptHostRegion, Sequence
from services.instance.sequence.table import SequenceTable
from tests.services.instance.bench import ENGINE, D, make_place

TARGET = Address("instance", "x", 9)
KVSTORE = Address("kvstore", "kv", 4)
FAR = Address("kvstore", "far", 4)
TAIL = 8


class HostCache:
    """A host cache that records what is asked of it."""

    def __init__(self) -> None:
        self.usable = True
        self.busy = False
        self.kvstore = KVSTORE
        self.reserved: list[int] = []
        self.sent: list[tuple[int, str, Address]] = []

    def is_busy_with(self, sequence: Sequence) -> bool:
        return self.busy

    def size_bytes(self, tokens: int) -> int:
        return 64 * tokens

    def reserve_region(self, sequence: Sequence, stop: int, *rest: Any) -> list[Effect]:
        self.reserved.append(stop)
        return []

    def send_regions(self, migration: int, key: str, to: Address, why: Any) -> list[Effect]:
        self.sent.append((migration, key, to))
        return []


class Moving:
    """A sequence of 40 tokens, of which 39 have KV, that migrates to a target on this node."""

    def __init__(self, *kept: tuple[int, int], target_kvstore: Address | None = KVSTORE) -> None:
        self.cache = HostCache()
        cache: Any = self.cache
        lifecycle: Any = None
        sequences = SequenceTable()
        steps = StepLedger(ENGINE, sequences)
        peers = PeerCopies(ENGINE, lifecycle, HostCacheClient(ENGINE, 1.0), MetEngines(ENGINE), steps)
        self.transfer = KvTransfer(KvExport(cache), peers, TAIL)
        self.sequence = sequences.add(D, make_place(1, tokens=40))
        self.sequence.issued = self.sequence.valid = 39
        self.keep(*kept)
        self.migration = OutgoingMigration(3, self.sequence, TARGET, None, lambda *ended: None, handle=6)
        self.migration.stage = MigrationStage.COPYING
        self.migration.target_kvstore = target_kvstore

    def keep(self, *spans: tuple[int, int]) -> None:
        for start, stop in spans:
            host = HostRegion(start + 1, 1, 0, 64 * (stop - start))
            self.sequence.kept.append(KeptHostRegion(Region(0, 2, start, stop), host, KVSTORE, b"c%d" % stop))

    def step(self) -> list[Fill]:
        effects = self.transfer.transfer(self.migration)
        sends = [one for one in effects if isinstance(one, Send)]
        assert all(one.to == TARGET for one in sends)
        return [one.message for one in sends if isinstance(one.message, Fill)]


def test_what_is_kept_is_offered_and_the_rest_is_copied_out() -> None:
    moving = Moving((0, 16), (16, 24))
    (fill,) = moving.step()
    assert (fill.handle, fill.tokens, fill.keeper) == (6, 24, KVSTORE)
    assert [(kept.region.start, kept.region.stop, kept.chain) for kept in fill.regions] == [
        (0, 16, b"c16"),
        (16, 24, b"c24"),
    ]
    assert moving.cache.reserved == [39]
    assert (moving.migration.requested, moving.migration.offered) == (39, 24)


def test_only_regions_beyond_what_was_offered_are_offered_next() -> None:
    moving = Moving((0, 16))
    moving.step()
    moving.cache.busy = True
    assert moving.step() == []
    moving.cache.busy = False
    moving.keep((16, 39))
    (fill,) = moving.step()
    assert ([kept.region.start for kept in fill.regions], fill.tokens) == ([16], 39)
    assert moving.cache.reserved == [39], "nothing is left to copy"


def test_a_room_that_the_engine_cannot_write_does_not_end_what_goes_by_the_host_tier() -> None:
    """The target's engine lets peers write, and this one reaches none: nothing was copied into the room."""
    moving = Moving((0, 16))
    moving.migration.room = PeerRoom(Address("engine", "x"), b"x's", 7, i64([100]), i64([64]))
    moving.step()
    moving.keep((16, 39))
    (fill,) = moving.step()
    assert ([kept.region.start for kept in fill.regions], fill.tokens) == ([16], 39)
    assert moving.transfer.is_behind(moving.migration), "the target has said of nothing that it lies there"


def test_a_tail_is_copied_only_once_the_row_has_stopped() -> None:
    moving = Moving((0, 39 - TAIL))
    moving.step()
    assert moving.cache.reserved == []
    moving.migration.stage = MigrationStage.SWITCHING
    moving.step()
    assert moving.cache.reserved == [39]


def test_a_copy_that_was_not_made_ends_the_copying() -> None:
    moving = Moving()
    moving.step()
    moving.step()
    assert moving.migration.copying_stopped
    assert moving.cache.reserved == [39]
    assert not moving.transfer.can_copy(moving.migration)


@pytest.mark.parametrize("lack", ["target", "cache", "stopped"])
def test_without_any_of_these_nothing_is_copied(lack: str) -> None:
    moving = Moving((0, 16))
    if lack == "target":
        moving.migration.target_kvstore = None
    moving.cache.usable = lack != "cache"
    moving.migration.copying_stopped = lack == "stopped"
    assert moving.step() == []
    assert moving.cache.reserved == []
    assert not moving.transfer.is_behind(moving.migration), "the row need not wait for anything"


def test_the_row_stops_once_little_is_missing_and_nothing_is_on_its_way() -> None:
    moving = Moving((0, 16))
    transfer, migration = moving.transfer, moving.migration
    migration.filled = migration.offered = 39 - TAIL - 1
    assert transfer.is_behind(migration)
    migration.filled = migration.offered = 39 - TAIL
    assert not transfer.is_behind(migration)
    migration.offered = 39
    assert transfer.is_behind(migration)


def test_a_migration_that_needs_its_kv_stays_when_no_more_can_be_copied() -> None:
    moving = Moving()
    moving.migration.needs_kv = True
    assert not moving.transfer.must_keep_here(moving.migration)
    moving.migration.copying_stopped = True
    assert moving.transfer.must_keep_here(moving.migration)
    moving.migration.filled = 39 - TAIL
    assert not moving.transfer.must_keep_here(moving.migration), "the target computes a tail in one step"
    moving.migration.filled, moving.migration.needs_kv = 0, False
    assert not moving.transfer.must_keep_here(moving.migration)


def test_to_another_node_the_kvstores_copy_one_batch_at_a_time() -> None:
    moving = Moving((0, 16), target_kvstore=FAR)
    assert moving.step() == []
    assert moving.cache.sent == [(3, moving.sequence.public_key, FAR)]
    moving.keep((16, 39))
    moving.step()
    assert len(moving.cache.sent) == 1, "the first batch is under way"
    moving.migration.is_between_nodes, moving.migration.offered = False, 16
    moving.step()
    assert len(moving.cache.sent) == 2
    moving.migration.is_between_nodes, moving.migration.offered = False, 39
    moving.step()
    assert len(moving.cache.sent) == 2, "all of it is there"
