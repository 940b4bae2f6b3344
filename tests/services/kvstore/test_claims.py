"""Regions that change their writer: which may be claimed, under which names, and which writers are told."""

from dataclasses import replace
from typing import Any

import pytest

from dunlin.effects import Address, Gone, Joined, Send, sends
from dunlin.messages.membership import MemberUp
from dunlin.messages.pool import (
    CommitRegion,
    FindRegions,
    PendingWrites,
    RegionRefused,
    RegionReserved,
    RegionsFound,
    RegionsRevoked,
    ReleaseRegion,
)
from dunlin.messages.types import HostRegion, KeptRegion, Priority, Region, i64
from services.kvstore.core import KvstoreCore
from services.kvstore.regions.writer_absences import PROCESSES, ProcessEnded, WriterGraceOver
from tests.services.kvstore.bench import ETCD, ME, OTHER, RESTARTED, WRITER, ask, free_units, joined, member, reserve


class TestClaims:
    def kept(self, core: KvstoreCore, writer: Address = WRITER, **fields: Any) -> HostRegion:
        """A committed region of the request `k`."""
        (effect,) = core.receive(1.0, writer, ask(**{"key": "k", "chain": b"c", **fields}))
        assert isinstance(effect, Send)
        assert isinstance(effect.message, RegionReserved)
        host = effect.message.host
        core.receive(2.0, writer, CommitRegion(host.handle, host.generation, 5))
        return host

    def claim(self, core: KvstoreCore, by: Address = OTHER, **fields: Any) -> list[KeptRegion]:
        names: dict[str, Any] = {"dispatcher": Address("dispatcher", "d", 1), "request": 1, "attempt": 2}
        wanted = FindRegions(**{"ticket": 9, "key": "k", "weights_digest": "w", "kv_dtype": "fp32", **names, **fields})
        *_, effect = core.receive(6.0, by, wanted)
        assert isinstance(effect, Send)
        assert effect.to == by
        assert isinstance(effect.message, RegionsFound)
        assert effect.message.ticket == 9
        core.catalog.check_integrity()
        return list(effect.message.regions)

    @pytest.mark.parametrize("end", ["silent", "killed", "alive", "restarted"])
    def test_the_next_attempt_has_what_the_last_one_committed(self, end: str) -> None:
        core = joined(WRITER, OTHER)
        core.receive(0.0, ETCD, MemberUp(member(WRITER, 77)))
        host = self.kept(core)
        reserve(core)
        if end != "alive":
            core.receive(5.0, WRITER, Gone("reset"))
        if end == "killed":
            core.receive(5.0, PROCESSES, ProcessEnded(WRITER))
        if end == "restarted":
            core.receive(5.0, RESTARTED, Joined())
        (found,) = self.claim(core)
        assert found == KeptRegion(Region(0, 2, 0, 8), replace(host, generation=2, checksum=5), b"c")
        core.receive(35.0, ME, WriterGraceOver(WRITER, 1))
        assert core.catalog.find(OTHER, found.host.handle, 2) is not None, "it outlives its writer's grace"
        assert core.report().claimed_total == 1

    def test_what_is_not_claimed_goes_with_the_grace(self) -> None:
        core = joined(WRITER, OTHER)
        self.kept(core)
        core.receive(5.0, RESTARTED, Joined())
        assert free_units(core) == 3
        core.receive(35.0, ME, WriterGraceOver(WRITER, 1))
        assert free_units(core) == 4
        assert self.claim(core) == []

    def test_the_old_names_are_dead(self) -> None:
        core = joined(WRITER, OTHER)
        host = self.kept(core)
        (first,) = self.claim(core)
        (back,) = self.claim(core, by=WRITER, attempt=3)
        for dead in (host, first.host):
            core.receive(7.0, WRITER, ReleaseRegion(dead.handle, dead.generation))
            core.receive(7.0, OTHER, ReleaseRegion(dead.handle, dead.generation))
        assert (core.stale_total, free_units(core)) == (4, 3)
        core.receive(8.0, WRITER, ReleaseRegion(back.host.handle, back.host.generation))
        assert free_units(core) == 4

    def test_whose_they_were_hears_which_names_are_dead(self) -> None:
        core = joined(WRITER, OTHER)
        hosts = [self.kept(core, region=Region(0, 2, start, start + 8)) for start in (0, 8)]
        wanted = FindRegions(9, "k", Address("dispatcher", "d", 1), 1, 2, "w", "fp32")
        revoked, found = core.receive(6.0, OTHER, wanted)
        taken = RegionsRevoked(i64(host.handle for host in hosts), i64(host.generation for host in hosts))
        assert revoked == Send(WRITER, taken)
        assert isinstance(found, Send)
        assert isinstance(found.message, RegionsFound)
        core.receive(7.0, OTHER, Gone("reset"))
        assert len(core.receive(8.0, WRITER, replace(wanted, attempt=3))) == 1, (
            "a writer without a stream gets no message"
        )

    def claimed(self, core: KvstoreCore, now_s: float, by: Address, attempt: int = 2) -> list[Send]:
        """What the kvstore sends, in order, when the request `k` is claimed."""
        wanted = FindRegions(9, "k", Address("dispatcher", "d", 1), 1, attempt, "w", "fp32")
        return sends(core.receive(now_s, by, wanted))

    def handed(self, host: HostRegion, by: Address) -> Send:
        """The regions that the claimer gets: this one, under its next name."""
        renamed = replace(host, generation=host.generation + 1, checksum=5)
        return Send(by, RegionsFound(9, (KeptRegion(Region(0, 2, 0, 8), renamed, b"c"),)))

    @pytest.mark.parametrize("by", [WRITER, OTHER])
    def test_a_writer_that_lost_its_stream_and_is_back_hears_nothing(self, by: Address) -> None:
        """It gave up what it kept with the stream over which it was committed."""
        core = joined(WRITER, OTHER)
        host = self.kept(core)
        core.receive(3.0, WRITER, Gone("reset"))
        core.receive(4.0, WRITER, Joined())
        core.receive(4.0, WRITER, PendingWrites())
        assert self.claimed(core, 5.0, by) == [self.handed(host, by)]
        taken = RegionsRevoked(i64([host.handle]), i64([host.generation + 1]))
        (revoked, _) = self.claimed(core, 6.0, WRITER, attempt=3)
        assert revoked == Send(by, taken), "it was claimed over a stream that is open"

    def test_who_claims_its_own_hears_first_that_the_old_names_are_dead(self) -> None:
        """An older attempt there may count on them still."""
        core = joined(WRITER)
        host = self.kept(core)
        taken = RegionsRevoked(i64([host.handle]), i64([host.generation]))
        assert self.claimed(core, 6.0, WRITER) == [Send(WRITER, taken), self.handed(host, WRITER)]

    def test_what_is_committed_after_a_stream_broke_is_kept_by_the_new_one(self) -> None:
        """A copy was under way when the stream broke: its writer keeps the region, and hears when it is taken."""
        core = joined(WRITER, OTHER)
        (effect,) = sends(core.receive(1.0, WRITER, ask(key="k", chain=b"c")))
        assert isinstance(effect.message, RegionReserved)
        host = effect.message.host
        core.receive(2.0, WRITER, Gone("reset"))
        core.receive(3.0, WRITER, Joined())
        core.receive(3.0, WRITER, PendingWrites(i64([host.handle]), i64([host.generation])))
        core.receive(4.0, WRITER, CommitRegion(host.handle, host.generation, 5))
        taken = RegionsRevoked(i64([host.handle]), i64([host.generation]))
        assert self.claimed(core, 5.0, OTHER) == [Send(WRITER, taken), self.handed(host, OTHER)]

    def test_only_the_regions_of_the_open_stream_are_named(self) -> None:
        core = joined(WRITER, OTHER)
        self.kept(core)
        core.receive(3.0, WRITER, Gone("reset"))
        core.receive(4.0, WRITER, Joined())
        later = self.kept(core, region=Region(0, 2, 8, 16))
        (revoked, _) = self.claimed(core, 6.0, OTHER)
        assert revoked == Send(WRITER, RegionsRevoked(i64([later.handle]), i64([later.generation])))

    def test_the_successor_of_whose_they_were_hears_nothing(self) -> None:
        core = joined(WRITER)
        host = self.kept(core)
        core.receive(3.0, RESTARTED, Joined())
        assert self.claimed(core, 6.0, RESTARTED) == [self.handed(host, RESTARTED)]

    def test_what_is_not_committed_stays_its_writers(self) -> None:
        core = joined(WRITER, OTHER)
        core.receive(1.0, WRITER, ask(key="k"))
        assert self.claim(core) == []
        core.receive(7.0, WRITER, CommitRegion(1, 1, 5))
        assert (core.stale_total, len(self.claim(core))) == (0, 1)

    @pytest.mark.parametrize("other", [{"key": "l"}, {"weights_digest": "v"}, {"kv_dtype": "bf16"}, {"attempt": 0}])
    def test_only_what_fits_is_handed_out(self, other: dict[str, Any]) -> None:
        core = joined(WRITER, OTHER)
        self.kept(core)
        assert self.claim(core, **other) == []

    def test_another_dispatchers_attempts_count_anew(self) -> None:
        core = joined(WRITER, OTHER)
        self.kept(core, attempt=7)
        assert len(self.claim(core, dispatcher=Address("dispatcher", "e", 2), attempt=1)) == 1

    def test_they_come_in_the_order_of_their_tokens_the_longest_first(self) -> None:
        core = joined(WRITER, OTHER)
        for start, stop in ((8, 16), (0, 4), (0, 8)):
            self.kept(core, region=Region(0, 2, start, stop))
        spans = [(found.region.start, found.region.stop) for found in self.claim(core)]
        assert spans == [(0, 8), (0, 4), (8, 16)]

    def test_who_is_not_joined_claims_nothing(self) -> None:
        core = joined(WRITER)
        self.kept(core)
        wanted = FindRegions(9, "k", Address("dispatcher", "d", 1), 1, 2, "w", "fp32")
        assert core.receive(6.0, OTHER, wanted) == []
        assert core.stale_total == 1

    def test_checkpoints_leave_room_for_what_is_preempted(self) -> None:
        core = joined(WRITER)
        for _ in range(3):
            self.kept(core, priority=Priority.CHECKPOINT)
        (refused,) = core.receive(3.0, WRITER, ask(priority=Priority.CHECKPOINT))
        assert isinstance(refused, Send)
        assert isinstance(refused.message, RegionRefused)
        reserve(core)
