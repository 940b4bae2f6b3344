"""Events of the host tier: which part of the core gets each answer, and what happens to late ones."""

from typing import Any

import pytest

from dunlin.effects import Address, Effect, Send
from dunlin.messages.engine import TransferDone
from dunlin.messages.pool import (
    RegionRefused,
    RegionReserved,
    RegionsFound,
    RegionsRevoked,
    RegionsSent,
    ReleaseRegion,
    TierReady,
)
from dunlin.messages.types import HostRegion, KeptRegion, Priority, Region, TransferStatus, Why, i64
from services.instance.host_cache_events import HostCacheEvents
from services.instance.kv.host_cache import HostCacheClient, HostCacheTimeout
from services.instance.kv.tickets import TransferPurpose
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.table import SequenceTable
from simulator.engine.model import make_engine_ready
from tests.services.instance.bench import ENGINE, D, make_place

KVSTORE = Address("kvstore", "kv", 4)
OLD = Address("kvstore", "kv", 3)
HOST = HostRegion(3, 1, 0, 2048)
REGIONS = (KeptRegion(Region(0, 2, 0, 16), HOST, b"c"),)


class Part:
    """Stands for any part of the core: records the calls of its methods. `released` is what checkpoints give back."""

    def __init__(self, name: str, calls: list[str], released: list[Effect]) -> None:
        self._name = name
        self._calls = calls
        self._released = released

    def __getattr__(self, method: str) -> Any:
        def call(*arguments: Any) -> list[Effect]:
            self._calls.append(f"{self._name}.{method}")
            return self._released if method == "release_checkpoints" else []

        return call


class Router:
    """The events of an instance with one sequence, an engine and a kvstore, and the calls that each event makes."""

    def __init__(self, *released: Effect) -> None:
        self.calls: list[str] = []
        self.cache = HostCacheClient(ENGINE, 3.0)
        self.cache.on_engine_ready(make_engine_ready())
        self.cache.connect(KVSTORE, TierReady("/tier", 1 << 16))
        self.sequence: Sequence = SequenceTable().add(D, make_place(1, tokens=20))
        names = ("lifecycle", "checkpointer", "claims", "migrate_in", "migrate_out")
        lifecycle, checkpointer, claims, migrate_in, migrate_out = (self._part(name, released) for name in names)
        self.events = HostCacheEvents(
            self.cache, lifecycle, checkpointer, claims, migrate_in, migrate_out, self._restore
        )

    def _part(self, name: str, released: tuple[Effect, ...]) -> Any:
        return Part(name, self.calls, list(released))

    def _restore(self) -> list[Effect]:
        self.calls.append("restore")
        return []

    def reserve(self, purpose: TransferPurpose) -> None:
        """Ask for room; the ticket is 1."""
        self.cache.reserve_region(self.sequence, 16, purpose, Priority.KV, None)

    def move(self, purpose: TransferPurpose) -> None:
        """Have the engine copy a region out; the ticket of the copy is 2."""
        self.reserve(purpose)
        reservation = self.cache.reserved_or_refused(1)
        assert reservation is not None
        self.cache.copy_out(reservation, HOST, [(0, 16)], Priority.KV)


@pytest.mark.parametrize(
    ("purpose", "call"),
    [(TransferPurpose.CHECKPOINT, "checkpointer.start_copy_out"), (TransferPurpose.SPILL, "lifecycle.start_copy_out")],
)
def test_room_goes_to_the_part_that_asked_for_it(purpose: TransferPurpose, call: str) -> None:
    router = Router()
    router.reserve(purpose)
    router.events.on_region_reserved(0.0, KVSTORE, RegionReserved(1, HOST))
    assert router.calls == [call]


def test_room_that_is_not_wanted_any_more_is_released() -> None:
    router = Router()
    assert router.events.on_region_reserved(0.0, KVSTORE, RegionReserved(1, HOST)) == [
        Send(KVSTORE, ReleaseRegion(3, 1, False))
    ]
    assert router.calls == []


def test_a_refused_checkpoint_waits_and_a_refused_spill_goes_without() -> None:
    router = Router()
    router.reserve(TransferPurpose.CHECKPOINT)
    router.events.on_region_refused(0.0, KVSTORE, RegionRefused(1))
    assert router.calls == ["checkpointer.on_room_refused"]
    router = Router()
    router.reserve(TransferPurpose.SPILL)
    router.events.on_region_refused(0.0, KVSTORE, RegionRefused(1))
    assert router.calls == ["checkpointer.release_checkpoints", "lifecycle.spill_refused"]


def test_a_spill_asks_again_after_checkpoints_were_released() -> None:
    released = Send(KVSTORE, ReleaseRegion(9, 1))
    router = Router(released)
    router.reserve(TransferPurpose.SPILL)
    assert router.events.on_region_refused(0.0, KVSTORE, RegionRefused(1)) == [released]
    assert router.calls == ["checkpointer.release_checkpoints", "lifecycle.retry_spill"]


def test_found_regions_go_to_the_claim_or_the_incoming_migration() -> None:
    router = Router()
    router.cache.claim_regions(router.sequence, None)
    router.cache.claim_for_reservation(7, "r", D, 1, 1)
    router.events.on_regions_found(0.0, KVSTORE, RegionsFound(1, REGIONS))
    router.events.on_regions_found(0.0, KVSTORE, RegionsFound(2, REGIONS))
    assert router.calls == ["claims.on_regions_found", "restore", "migrate_in.on_regions_found"]


def test_found_regions_without_a_claim_are_released() -> None:
    router = Router()
    assert router.events.on_regions_found(0.0, KVSTORE, RegionsFound(1, REGIONS)) == [
        Send(KVSTORE, ReleaseRegion(3, 1, False))
    ]


@pytest.mark.parametrize(
    ("purpose", "call"),
    [(TransferPurpose.CHECKPOINT, "checkpointer.on_move_done"), (TransferPurpose.SPILL, "lifecycle.on_move_done")],
)
def test_the_end_of_a_copy_goes_to_the_part_that_started_it(purpose: TransferPurpose, call: str) -> None:
    router = Router()
    router.move(purpose)
    router.events.on_move_done(0.0, ENGINE, TransferDone(2, TransferStatus.OK))
    router.events.on_move_done(0.0, ENGINE, TransferDone(2, TransferStatus.OK))
    assert router.calls == [call], "the second one is unknown"


def test_the_end_of_a_copy_into_a_reservation_goes_to_the_incoming_migration() -> None:
    router = Router()
    router.cache.copy_into_reservation(7, REGIONS[0], [(0, 16)])
    router.events.on_move_done(0.0, ENGINE, TransferDone(1, TransferStatus.OK))
    assert router.calls == ["migrate_in.on_move_done"]


def test_a_transfer_that_ended_goes_to_its_outgoing_migration_once() -> None:
    router = Router()
    router.cache.send_regions(5, "r", Address("kvstore", "far", 1), Why("migration", "far"))
    for _ in range(2):
        router.events.sent(0.0, KVSTORE, RegionsSent(1, 16))
    assert router.calls == ["migrate_out.on_regions_sent"]


def test_without_an_answer_in_time_each_part_goes_on() -> None:
    router = Router()
    router.reserve(TransferPurpose.SPILL)
    router.cache.claim_regions(router.sequence, None)
    router.reserve(TransferPurpose.CHECKPOINT)
    for ticket in (1, 2, 3, 1):
        router.events.on_timeout(0.0, KVSTORE, HostCacheTimeout(ticket))
    assert router.calls == ["lifecycle.spill_refused", "claims.on_timeout", "checkpointer.on_room_refused"]


def test_a_lost_kvstore_answers_every_open_question() -> None:
    router = Router()
    router.cache.claim_regions(router.sequence, None)
    router.reserve(TransferPurpose.SPILL)
    router.events.on_kvstore_lost(0.0, KVSTORE)
    assert router.calls == ["lifecycle.on_host_cache_lost", "claims.on_timeout", "lifecycle.spill_refused"]
    assert router.cache.kvstore is None


def test_memory_that_cannot_be_mapped_is_as_good_as_lost() -> None:
    router = Router()
    router.reserve(TransferPurpose.CHECKPOINT)
    router.events.on_memory_unmapped(0.0)
    assert router.calls == ["lifecycle.on_host_cache_lost", "checkpointer.on_room_refused"]
    assert not router.cache.usable


def test_answers_of_an_older_kvstore_are_counted_and_change_nothing() -> None:
    router = Router()
    router.reserve(TransferPurpose.SPILL)
    router.cache.claim_regions(router.sequence, None)
    assert router.events.on_region_reserved(0.0, OLD, RegionReserved(1, HOST)) == []
    assert router.events.on_region_refused(0.0, OLD, RegionRefused(1)) == []
    assert router.events.on_regions_found(0.0, OLD, RegionsFound(2, REGIONS)) == []
    assert router.events.on_regions_revoked(0.0, OLD, RegionsRevoked(i64([3]), i64([1]))) == []
    assert (router.calls, router.events.stale_total) == (["restore"], 4)
    router.events.on_regions_revoked(0.0, KVSTORE, RegionsRevoked(i64([3]), i64([1])))
    assert router.calls == ["restore", "lifecycle.on_regions_revoked"]
