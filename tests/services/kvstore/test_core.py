"""The kvstore's core: reservations, fences, and what becomes of a silent writer's room."""

from typing import Any

import pytest

from dunlin.cores.reporting import ReportDue
from dunlin.effects import Address, After, Effect, Gone, Joined, Message, Send, sends
from dunlin.messages.exchange import Offer, OfferRefused
from dunlin.messages.fleet import KvstoreReport
from dunlin.messages.group import DIALING, DialPeer
from dunlin.messages.membership import MemberDown, MembersReset, MemberUp
from dunlin.messages.pool import (
    CommitRegion,
    FindRegions,
    PendingWrites,
    RegionRefused,
    RegionsFound,
    ReleaseRegion,
    TierReady,
)
from dunlin.messages.types import HostRegion, Priority, i64
from services.kvstore.core import KvstoreCore
from services.kvstore.regions.writer_absences import PROCESSES, AwaitProcessEnd, ProcessEnded, WriterGraceOver
from tests.services.kvstore.bench import (
    ETCD,
    ME,
    MONITOR,
    OTHER,
    RESTARTED,
    UNIT,
    WRITER,
    ask,
    free_units,
    joined,
    make_core,
    member,
    reserve,
)


def test_a_joining_instance_is_told_where_the_tier_is() -> None:
    effects = make_core().receive(0.0, WRITER, Joined())
    assert effects == [Send(WRITER, TierReady("/proc/1/fd/3", 4 * UNIT))]


def test_room_is_reserved_committed_and_released() -> None:
    core = joined()
    host = reserve(core)
    assert host == HostRegion(1, 1, 0, UNIT, 0)
    assert core.receive(2.0, WRITER, CommitRegion(1, 1, -5)) == []
    (entry,) = core.catalog.entries_of(WRITER)
    assert entry.host.checksum == -5
    core.receive(3.0, WRITER, ReleaseRegion(1, 1))
    assert free_units(core) == 4
    assert core.stale_total == 0


def test_a_full_tier_refuses_and_says_the_numbers() -> None:
    core = joined()
    reserve(core, length_bytes=3 * UNIT)
    (effect,) = sends(core.receive(1.0, WRITER, ask(ticket=9, length_bytes=2 * UNIT)))
    assert isinstance(effect.message, RegionRefused)
    assert effect.message.ticket == 9
    assert effect.message.why is not None
    figures = {figure.name: figure.value for figure in effect.message.why.figures}
    assert (figures["asked_bytes"], figures["free_bytes"], figures["largest_free_bytes"]) == (2 * UNIT, UNIT, UNIT)
    assert core.report().refused_total == 1


@pytest.mark.parametrize(("priority", "refused"), [(Priority.CHECKPOINT, True), (Priority.KV, False)])
def test_a_copy_of_another_node_takes_no_room_that_preempted_sequences_may_need(
    priority: Priority, refused: bool
) -> None:
    other = Address("kvstore", "far", 7)
    core = joined(other, tier__spill_share=0.5)
    offer = Offer(5, ask(length_bytes=3 * UNIT, priority=priority), 42)
    (effect,) = sends(core.receive(1.0, other, offer))
    assert isinstance(effect.message, OfferRefused) is refused


def test_an_empty_region_is_refused() -> None:
    (effect,) = sends(joined().receive(1.0, WRITER, ask(length_bytes=0)))
    assert isinstance(effect.message, RegionRefused)


@pytest.mark.parametrize(
    "message",
    [CommitRegion(1, 2, 5), CommitRegion(2, 1, 5), ReleaseRegion(1, 0), ReleaseRegion(7, 1)],
)
def test_a_wrong_name_changes_nothing_and_is_counted(message: object) -> None:
    core = joined()
    reserve(core)
    assert core.receive(2.0, WRITER, message) == []
    assert (core.stale_total, free_units(core), core.catalog.entries_of(WRITER)[0].host.checksum) == (1, 3, 0)


@pytest.mark.parametrize("message", [CommitRegion(1, 1, 5), ReleaseRegion(1, 1)])
def test_no_other_process_may_touch_a_region(message: object) -> None:
    core = joined(WRITER, OTHER)
    reserve(core)
    core.receive(2.0, OTHER, message)
    assert (core.stale_total, free_units(core), core.catalog.entries_of(WRITER)[0].host.checksum) == (1, 3, 0)


def test_a_process_that_is_not_joined_gets_nothing() -> None:
    core = make_core()
    assert core.receive(0.0, WRITER, ask()) == []
    assert (core.stale_total, free_units(core)) == (1, 4)


@pytest.mark.parametrize("message", [CommitRegion(1, 1, 5), CommitRegion(2, 1, 6), ReleaseRegion(1, 1)])
def test_a_writer_without_a_stream_changes_nothing(message: object) -> None:
    core = joined()
    reserve(core)
    core.receive(2.0, WRITER, CommitRegion(1, 1, 5))
    reserve(core)
    core.receive(3.0, WRITER, Gone("reset"))
    before = core.catalog.entries_of(WRITER)
    assert core.receive(4.0, WRITER, message) == []
    assert (core.catalog.entries_of(WRITER), core.stale_total) == (before, 1)


def test_an_older_incarnation_that_wakes_is_fenced() -> None:
    core = joined(RESTARTED)
    assert core.receive(1.0, WRITER, Joined()) == []
    assert core.receive(1.0, WRITER, ask()) == []
    assert (core.stale_total, free_units(core)) == (2, 4)


def test_a_commit_may_be_repeated_but_not_changed() -> None:
    core = joined()
    reserve(core)
    core.receive(2.0, WRITER, CommitRegion(1, 1, 5))
    core.receive(2.0, WRITER, CommitRegion(1, 1, 5))
    assert core.stale_total == 0
    core.receive(2.0, WRITER, CommitRegion(1, 1, 6))
    assert (core.stale_total, core.catalog.entries_of(WRITER)[0].host.checksum) == (1, 5)


def test_one_byte_is_a_region() -> None:
    assert reserve(joined(), length_bytes=1).length_bytes == 1


def test_a_joined_process_is_fenced_as_soon_as_its_successor_joins() -> None:
    core = joined(WRITER)
    reserve(core)
    core.receive(1.0, RESTARTED, Joined())
    assert core.receive(2.0, WRITER, ask()) == []
    assert (core.stale_total, free_units(core)) == (1, 4)


@pytest.mark.parametrize("end", ["killed", "left", "never joined", "replaced", "lapsed", "silent"])
def test_a_process_that_is_over_is_forgotten(end: str) -> None:
    core = make_core()
    core.receive(0.0, ETCD, MemberUp(member(WRITER, 77)))
    if end != "never joined":
        core.receive(0.0, WRITER, Joined())
        host = reserve(core)
        if end in ("left", "silent"):
            core.receive(1.0, WRITER, CommitRegion(host.handle, host.generation, 5))
        if end == "left":
            core.receive(1.0, WRITER, ReleaseRegion(host.handle, host.generation))
    if end == "replaced":
        core.receive(2.0, ETCD, MemberUp(member(RESTARTED, 78)))
        core.receive(2.0, RESTARTED, Joined())
        core.receive(2.0, RESTARTED, Gone())
        core.receive(2.0, ETCD, MemberDown(RESTARTED))
    elif end == "lapsed":
        core.receive(2.0, ETCD, MemberDown(WRITER))
        core.receive(2.0, WRITER, Gone())
    else:
        core.receive(2.0, WRITER, Gone())
        core.receive(2.0, ETCD, MemberDown(WRITER))
    if end in ("killed", "lapsed"):
        core.receive(3.0, PROCESSES, ProcessEnded(WRITER))
    core.receive(40.0, ME, WriterGraceOver(WRITER, 1))
    assert (len(core.absences), free_units(core)) == (0, 4)


def test_an_idle_process_whose_registration_ended_is_forgotten_with_its_stream() -> None:
    core = joined()
    core.receive(0.0, ETCD, MemberUp(member(WRITER, 77)))
    core.receive(1.0, ETCD, MemberDown(WRITER))
    assert len(core.absences) == 1
    assert core.receive(2.0, WRITER, Gone()) == []
    assert len(core.absences) == 0


def test_registered_kvstores_of_other_nodes_are_asked_for_what_is_unknown_here() -> None:
    core, peer = joined(), Address("kvstore", "far", 8)
    find = FindRegions(9, "k", Address("dispatcher", "d", 1), 1, 2, "w", "fp32")
    here, there = [Send(WRITER, RegionsFound(9))], [Send(DIALING, DialPeer(peer))]
    changes: list[tuple[Message, list[Send]]] = [
        (MemberUp(member(peer, node="m")), there),
        (MemberDown(peer), here),
        (MembersReset((member(peer, node="m"),)), there),
        (MembersReset((member(WRITER),)), here),
    ]
    assert core.receive(1.0, WRITER, find) == here
    for change, expected in changes:
        core.receive(2.0, ETCD, change)
        assert sends(core.receive(3.0, WRITER, find)) == expected, change


@pytest.mark.parametrize("pid", [0, -1])
def test_an_impossible_process_id_is_not_watched(pid: int) -> None:
    core = joined()
    core.receive(0.0, ETCD, MemberUp(member(WRITER, pid)))
    reserve(core)
    assert sends(core.receive(5.0, WRITER, Gone())) == []


def test_a_corrupt_region_is_counted_and_its_room_is_free() -> None:
    core = joined()
    reserve(core)
    core.receive(2.0, WRITER, CommitRegion(1, 1, 5))
    core.receive(3.0, WRITER, ReleaseRegion(1, 1, corrupt=True))
    core.receive(3.0, WRITER, ReleaseRegion(1, 1, corrupt=True))
    assert (core.report().corrupt_total, core.stale_total, free_units(core)) == (1, 1, 4)


class TestSilentWriter:
    def silent(self, *, pid: int | None = None, commit: bool = False) -> tuple[KvstoreCore, list[Effect]]:
        """One region of `WRITER`, whose stream then ends at 5 s."""
        core = joined(tier__orphan_grace_s=30.0)
        if pid is not None:
            core.receive(0.0, ETCD, MembersReset((member(WRITER, pid),)))
        reserve(core)
        if commit:
            core.receive(2.0, WRITER, CommitRegion(1, 1, 5))
        return core, list(core.receive(5.0, WRITER, Gone("reset")))

    def test_uncommitted_room_is_not_used_again_until_the_process_ended(self) -> None:
        core, effects = self.silent(pid=77)
        assert effects == [After(30.0, WriterGraceOver(WRITER, 1)), Send(PROCESSES, AwaitProcessEnd(WRITER, 77))]
        core.receive(35.0, ME, WriterGraceOver(WRITER, 1))
        assert core.receive(40.0, ETCD, MemberDown(WRITER)) == [Send(PROCESSES, AwaitProcessEnd(WRITER, 77))]
        assert free_units(core) == 3
        core.receive(99.0, PROCESSES, ProcessEnded(WRITER))
        assert free_units(core) == 4

    def test_another_incarnation_is_proof(self) -> None:
        core, _ = self.silent(pid=77)
        core.receive(6.0, RESTARTED, Joined())
        assert free_units(core) == 4

    def test_another_name_is_no_proof(self) -> None:
        core, _ = self.silent(pid=77)
        core.receive(6.0, OTHER, Joined())
        assert free_units(core) == 3

    @pytest.mark.parametrize("first", ["stream", "registration"])
    def test_without_a_process_id_the_end_of_the_registration_must_do(self, first: str) -> None:
        core = joined()
        reserve(core)
        steps = [(WRITER, Gone("reset")), (ETCD, MemberDown(WRITER))]
        for sender, message in steps if first == "stream" else reversed(steps):
            assert free_units(core) == 3
            core.receive(5.0, sender, message)
        assert free_units(core) == 4

    def test_a_registration_lost_and_regained_is_no_end(self) -> None:
        core = joined()
        reserve(core)
        core.receive(4.0, ETCD, MemberDown(WRITER))
        core.receive(4.5, ETCD, MemberUp(member(WRITER, pid=0)))
        core.receive(5.0, WRITER, Gone("reset"))
        assert free_units(core) == 3

    def test_a_process_of_another_node_is_not_watched_here(self) -> None:
        core = joined()
        core.receive(0.0, ETCD, MemberUp(member(WRITER, 77, node="elsewhere")))
        reserve(core)
        assert sends(core.receive(5.0, WRITER, Gone())) == []

    def test_the_end_of_a_process_that_has_a_stream_again_is_not_believed(self) -> None:
        core, _ = self.silent(pid=77)
        core.receive(6.0, WRITER, Joined())
        core.receive(7.0, PROCESSES, ProcessEnded(WRITER))
        assert free_units(core) == 3

    def test_a_writer_that_is_back_may_commit_or_release_what_it_reserved(self) -> None:
        core, _ = self.silent(pid=77)
        core.receive(6.0, WRITER, Joined())
        core.receive(7.0, WRITER, CommitRegion(1, 1, 5))
        core.receive(8.0, WRITER, ReleaseRegion(1, 1))
        assert (core.stale_total, free_units(core)) == (0, 4)

    def test_the_registration_of_a_writer_that_is_back_ends_nothing(self) -> None:
        core, _ = self.silent()
        core.receive(6.0, WRITER, Joined())
        assert core.receive(7.0, ETCD, MemberDown(WRITER)) == []
        core.receive(8.0, WRITER, CommitRegion(1, 1, 5))
        assert (core.stale_total, free_units(core)) == (0, 3)

    def test_a_writer_that_is_back_says_what_it_writes_and_the_rest_is_free(self) -> None:
        """The end of a copy, or the answer to a question, may have been under way when the stream broke."""
        core, _ = self.silent(pid=77)
        core.receive(6.0, WRITER, Joined())
        core.receive(6.1, WRITER, PendingWrites(i64([1]), i64([1])))
        assert free_units(core) == 3
        core.receive(7.0, WRITER, Gone())
        core.receive(8.0, WRITER, Joined())
        later = reserve(core)
        core.receive(8.1, WRITER, PendingWrites())
        assert core.catalog.find(WRITER, 1, 1) is None
        assert core.catalog.find(WRITER, later.handle, later.generation) is not None
        assert (free_units(core), core.stale_total) == (3, 0)

    def test_another_use_of_the_same_handle_is_not_meant(self) -> None:
        core, _ = self.silent(pid=77)
        core.receive(6.0, WRITER, Joined())
        core.receive(6.1, WRITER, PendingWrites(i64([1]), i64([2])))
        assert free_units(core) == 4

    def test_who_is_not_joined_frees_nothing(self) -> None:
        core, _ = self.silent(pid=77)
        core.receive(6.0, WRITER, PendingWrites())
        assert (free_units(core), core.stale_total) == (3, 1)

    def test_committed_regions_live_for_the_grace_and_no_longer(self) -> None:
        core, effects = self.silent(commit=True, pid=77)
        assert effects == [After(30.0, WriterGraceOver(WRITER, 1))]
        core.receive(6.0, ETCD, MemberDown(WRITER))
        assert free_units(core) == 3
        core.receive(35.0, ME, WriterGraceOver(WRITER, 1))
        assert free_units(core) == 4

    def test_each_grace_frees_what_was_committed_before_its_absence(self) -> None:
        core, _ = self.silent(commit=True)
        core.receive(6.0, WRITER, Joined())
        second = reserve(core)
        core.receive(7.0, WRITER, CommitRegion(second.handle, second.generation, 6))
        assert After(30.0, WriterGraceOver(WRITER, 2)) in core.receive(8.0, WRITER, Gone())
        core.receive(35.0, ME, WriterGraceOver(WRITER, 1))
        assert core.catalog.find(WRITER, second.handle, second.generation) is not None
        assert free_units(core) == 3
        core.receive(38.0, ME, WriterGraceOver(WRITER, 2))
        assert free_units(core) == 4

    def test_a_writer_that_is_back_has_given_up_what_it_kept(self) -> None:
        core, _ = self.silent(commit=True)
        core.receive(6.0, WRITER, Joined())
        assert free_units(core) == 3
        core.receive(35.0, ME, WriterGraceOver(WRITER, 1))
        assert free_units(core) == 4

    def test_a_reset_without_the_writer_counts_as_its_end(self) -> None:
        core, _ = self.silent()
        core.receive(6.0, ETCD, MembersReset((member(OTHER),)))
        assert free_units(core) == 4

    def test_a_live_stream_counts_for_more_than_a_registration(self) -> None:
        core = joined()
        reserve(core)
        assert core.receive(5.0, ETCD, MemberDown(WRITER)) == []
        assert free_units(core) == 3
        core.receive(6.0, WRITER, CommitRegion(1, 1, 5))
        assert core.stale_total == 0


class TestReports:
    def test_a_monitor_gets_one_at_once_and_then_each_interval(self) -> None:
        core = joined()
        effects = core.receive(1.0, MONITOR, Joined())
        assert effects == [Send(MONITOR, KvstoreReport(capacity_bytes=4 * UNIT)), After(0.5, ReportDue(1))]
        reserve(core, length_bytes=UNIT + 1)
        effects = core.receive(1.5, ME, ReportDue(1))
        report = KvstoreReport(capacity_bytes=4 * UNIT, used_bytes=2 * UNIT, regions=1, reserved_total=1)
        assert effects == [Send(MONITOR, report), After(0.5, ReportDue(2))]

    def test_an_old_timer_is_ignored_and_none_runs_without_monitors(self) -> None:
        core = make_core()
        core.receive(1.0, MONITOR, Joined())
        core.receive(1.2, MONITOR, Joined())
        assert core.receive(1.5, ME, ReportDue(1)) == []
        core.receive(1.6, MONITOR, Gone())
        assert core.receive(1.7, ME, ReportDue(2)) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tier__alignment_bytes": 100}, "needs one of"),
        ({"tier__capacity_bytes": 5}, "at least 64"),
        ({"tier__max_regions": 0}, "at least 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_core(**settings)
