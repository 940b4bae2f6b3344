"""KV from one engine into the slots of another one of the node: the messages of both sides, and who may still write."""

from typing import Any

import pytest

from dunlin.effects import Address, Gone, Joined, Send
from dunlin.messages.dispatch import Accepted, Ready
from dunlin.messages.engine import (
    CancelTransfer,
    Close,
    ClosePeerRoom,
    EngineExited,
    Forget,
    Meet,
    Met,
    Open,
    OpenPeerRoom,
    Step,
    Transfer,
    TransferDone,
)
from dunlin.messages.group import (
    Filled,
    PeerRoom,
    Release,
    ReservationLost,
    Reserve,
    Reserved,
    Written,
)
from dunlin.messages.plan import Evacuate
from dunlin.messages.types import Priority, Region, TransferKind, TransferStatus, i64
from services.instance.kv.residency import SlotUse
from services.instance.migration.migrate_in import MigrateInTimeout
from services.instance.migration.outgoing import MigrateOutTimeout
from services.instance.migration.peer_copies import MAX_COPY_TOKENS
from services.instance.sequence.states import SequenceState
from tests.services.instance.bench import ENGINE, MANAGER, D, done, make_place, of, only, ready_core

PEER = Address("instance", "peer", 9)
PEER_ENGINE = Address("engine", "peer")
AGENT = {"agent": b"node 1", "layout": 3}
TOKENS = 40


def room(tokens: int = TOKENS + 32, agent: bytes = b"peer's") -> PeerRoom:
    """Slots of the peer, in two extents."""
    return PeerRoom(PEER_ENGINE, agent, 7, i64([100, 200]), i64([16, tokens - 16]))


class Source:
    """An instance with one sequence of 40 tokens, all but the last computed, which is to move to the peer."""

    def __init__(self, agent: dict[str, Any] | None = None, tokens: int = TOKENS) -> None:
        self.direct = ready_core(AGENT if agent is None else agent, migration__tail_tokens=8)
        self.direct.give(PEER, Joined())
        sends = self.direct.give(D, make_place(known=[index % 40 for index in range(tokens)], max_tokens=100))
        self.sequence = self.direct.core.sequences.by_arrival()[0]
        steps = of(Step, sends)
        while self.sequence.valid < tokens:
            step = steps.pop(0)
            rows = [(self.sequence.number, 5)] if any(step.sample) else []
            steps += of(Step, self.direct.give(ENGINE, done(step.step, *rows)))
        self.reserve = only(Reserve, self.direct.give(MANAGER, Evacuate(1, 2, PEER, 10)))

    def is_leaving(self) -> bool:
        return self.sequence.state is SequenceState.LEAVING

    def answer(self, step: int, token: int) -> list[Send]:
        return self.direct.give(ENGINE, done(step, (self.sequence.number, token)))

    def reserved(self, its: PeerRoom | None = None) -> list[Send]:
        return self.direct.give(PEER, Reserved(self.reserve.sequence, 6, None, its or room()))

    def copying(self, **fields: Any) -> Transfer:
        """The first copy, once the engines have met."""
        self.reserved(**fields)
        (copy,) = [send.message for send in self.met() if isinstance(send.message, Transfer)]
        return copy

    def met(self, detail: str = "") -> list[Send]:
        return self.direct.give(ENGINE, Met(PEER_ENGINE, detail))

    def copied(self, copy: Transfer, status: TransferStatus = TransferStatus.OK) -> list[Send]:
        return self.direct.give(ENGINE, TransferDone(copy.ticket, status, 77))


def test_the_engines_meet_and_one_writes_into_the_slots_of_the_other() -> None:
    source = Source()
    meet = only(Meet, source.reserved())
    assert (meet.peer, meet.metadata) == (PEER_ENGINE, b"peer's")
    copy = only(Transfer, source.met())
    valid = source.sequence.valid
    assert (copy.kind, copy.region) == (TransferKind.SLAB_TO_PEER, Region(0, 2, 0, valid))
    assert (copy.peer, copy.peer_handle, copy.layout, copy.peer_layout) == (PEER_ENGINE, 6, 3, 7)
    assert (list(copy.peer_extent_start), list(copy.peer_extent_length)) == ([100, 200], [16, valid - 16])
    assert (list(copy.extent_length), copy.priority) == ([valid], Priority.KV)
    written = only(Written, source.copied(copy))
    assert (written.handle, written.region, written.checksum, written.chain) == (6, copy.region, 77, copy.chain)


def test_the_row_stops_once_the_peer_has_checked_what_was_written() -> None:
    source = Source()
    copy = source.copying()
    source.copied(copy)
    assert not source.is_leaving()
    source.direct.give(PEER, Filled(6, copy.region.stop))
    assert source.is_leaving()


def test_a_tail_is_written_when_the_row_has_stopped_and_then_the_dispatcher_hears_of_it() -> None:
    source = Source()
    copy = source.copying()
    source.copied(copy)
    sends = source.direct.give(PEER, Filled(6, copy.region.stop))
    for number in range(2, 4):
        if source.direct.core.steps.is_outstanding(number):
            sends += source.answer(number, 5)
    tail = of(Transfer, sends)
    assert [(one.region.start, one.region.stop) for one in tail] == [(copy.region.stop, source.sequence.valid)]
    source.copied(tail[0])
    ready = only(Ready, source.direct.give(PEER, Filled(6, tail[0].region.stop)))
    assert (ready.handle, ready.tokens) == (6, source.sequence.valid)


def test_a_peer_that_was_met_is_not_asked_again_until_it_is_another_engine() -> None:
    source = Source()
    copy = source.copying()
    source.copied(copy, TransferStatus.CANCELLED)
    peers = source.direct.core.migration.peer_copies
    migration = next(iter(source.direct.core.migration.migrate_out._migrations.values()))
    migration.room = room(agent=b"the next engine's")
    assert [type(effect.message) for effect in peers.copy(migration, 0) if isinstance(effect, Send)] == [Meet]


def test_an_unreachable_engine_is_written_to_by_no_copy() -> None:
    source = Source()
    source.reserved()
    assert of(Transfer, source.met("another node")) == []
    assert source.is_leaving(), "without KV: the target computes it"


def test_a_long_text_is_written_in_parts() -> None:
    tokens = MAX_COPY_TOKENS + 40
    source = Source({**AGENT, "slots": 8192, "max_positions": 8192}, tokens)
    copy = source.copying(its=room(tokens + 32))
    assert (copy.region.start, copy.region.stop) == (0, min(MAX_COPY_TOKENS, source.sequence.valid))


def test_room_for_fewer_tokens_than_there_are_by_now_is_filled_and_the_rest_computed() -> None:
    source = Source()
    copy = source.copying(its=room(20))
    assert copy.region.stop == 20
    source.copied(copy)
    source.direct.give(PEER, Filled(6, 20))
    assert source.is_leaving()


@pytest.mark.parametrize("status", [TransferStatus.FAILED, TransferStatus.CANCELLED])
def test_a_copy_that_failed_is_not_told_as_written(status: TransferStatus) -> None:
    source = Source()
    assert of(Written, source.copied(source.copying(), status)) == []
    assert source.is_leaving()


def test_a_room_is_released_although_the_copy_into_it_failed() -> None:
    """A target that gave it up holds its slots until it hears that no copy writes there."""
    source = Source()
    source.copied(source.copying(), TransferStatus.FAILED)
    assert only(Release, source.direct.give(PEER, ReservationLost(6))).handle == 6


def test_a_sequence_that_ends_stops_its_copy_and_the_room_is_released_after_that() -> None:
    source = Source()
    copy = source.copying()
    sends = source.direct.give(PEER, ReservationLost(6))
    assert only(CancelTransfer, sends).ticket == copy.ticket
    assert of(Release, sends) == []
    assert source.direct.give(PEER, ReservationLost(6)) == []
    assert only(Release, source.copied(copy, TransferStatus.CANCELLED)).handle == 6


def test_the_next_attempt_comes_to_slots_that_no_copy_writes_any_more() -> None:
    """The copy lasts too long, so the target shall compute the rest: in slots that the copy would overwrite."""
    source = Source()
    core, copy = source.direct.core, source.copying()
    (migration,) = core.migration.migrate_out._migrations.values()
    sends = source.direct.give(core.address, MigrateOutTimeout(migration.number, migration.counter))
    assert source.is_leaving()
    for step in range(1, core.steps.last_step + 1):
        if core.steps.is_outstanding(step):
            sends += source.answer(step, 5)
    assert of(Ready, sends) == []
    ready = only(Ready, source.copied(copy))
    assert (ready.handle, ready.tokens) == (6, 0)


def test_a_lost_engine_writes_no_more_and_the_rest_is_computed_elsewhere() -> None:
    source = Source()
    source.copying()
    source.direct.give(ENGINE, EngineExited(0, 9))
    source.direct.give(ENGINE, Gone("killed"))
    migration = next(iter(source.direct.core.migration.migrate_out._migrations.values()))
    assert (migration.copy_ticket, migration.copying_stopped) == (0, True)


def test_a_lost_engine_ends_the_wait_for_the_last_copy_of_a_migration_that_is_over() -> None:
    source = Source()
    source.copying()
    source.direct.give(PEER, ReservationLost(6))
    source.direct.give(ENGINE, EngineExited(0, 9))
    assert only(Release, source.direct.give(ENGINE, Gone("killed"))).handle == 6


# --- the receiver ---


class Target:
    """An instance with room for 40 tokens of a sequence of the peer."""

    def __init__(self) -> None:
        self.direct = ready_core(AGENT)
        self.direct.give(PEER, Joined())
        names = (None, f"{D}/1", D, 1, 1)
        asked = Reserve(1, TOKENS, 0, 2, 1, 1, *names, longest=48, weights_digest="fake", kv_dtype="float32")
        sends = self.direct.give(PEER, asked)
        self.told, self.opened = only(Reserved, sends), only(OpenPeerRoom, sends)
        self.kinds = [type(send.message) for send in sends]

    def written(self, stop: int = 32, layers: tuple[int, int] = (0, 2), start: int = 0) -> list[Send]:
        return self.direct.give(PEER, Written(1, Region(*layers, start, stop), 77, b"chain"))

    def checked(self, sends: list[Send], status: TransferStatus = TransferStatus.OK) -> list[Send]:
        return self.direct.give(ENGINE, TransferDone(only(Transfer, sends).ticket, status))

    @property
    def slots(self) -> tuple[int, int]:
        table = self.direct.core.slot_table
        return table.count(SlotUse.RESERVED), table.count(SlotUse.QUARANTINED)


def test_the_sender_is_told_where_the_slots_lie() -> None:
    told = Target().told.room
    assert (told.engine, told.agent, told.layout) == (ENGINE, b"node 1", 3)
    assert sum(told.extent_length) == TOKENS


def test_the_room_is_open_before_the_sender_hears_of_it() -> None:
    target = Target()
    assert target.kinds.index(OpenPeerRoom) < target.kinds.index(Reserved)
    room = target.told.room
    assert (target.opened.handle, target.opened.extent_start, target.opened.extent_length) == (
        target.told.handle, room.extent_start, room.extent_length,
    )  # fmt: skip


def test_a_room_is_closed_before_its_slots_serve_the_next_attempt() -> None:
    target = Target()
    target.checked(target.written())
    sends = target.direct.give(D, make_place(tokens=TOKENS, attempt=2, handle=1))
    kinds = [type(send.message) for send in sends]
    assert only(ClosePeerRoom, sends).handle == 1
    assert kinds.index(ClosePeerRoom) < kinds.index(Open) < kinds.index(Step)
    assert of(ClosePeerRoom, target.direct.give(PEER, Release(1))) == []


def test_a_room_that_is_given_up_is_closed_at_once_and_once() -> None:
    target = Target()
    assert only(ClosePeerRoom, target.direct.give(target.direct.core.address, MigrateInTimeout(1, 1))).handle == 1
    assert of(ClosePeerRoom, target.direct.give(PEER, Release(1))) == []
    assert only(ClosePeerRoom, Target().direct.give(PEER, Release(1))).handle == 1


def test_rooms_of_a_lost_engine_went_with_it() -> None:
    target = Target()
    target.direct.give(ENGINE, EngineExited(0, 9))
    assert of(ClosePeerRoom, target.direct.give(ENGINE, Gone("killed"))) == []


def test_an_engine_without_an_agent_lets_no_peer_write() -> None:
    direct = ready_core()
    asked = Reserve(1, 8, 0, 2, 1, 1, None, "k", D, 1, 1, longest=48, weights_digest="fake", kv_dtype="float32")
    assert only(Reserved, direct.give(PEER, asked)).room is None


def test_what_was_written_counts_once_the_own_engine_has_checked_it() -> None:
    target = Target()
    sends = target.written()
    check = only(Transfer, sends)
    assert (check.kind, check.sequence, check.checksum, check.chain) == (TransferKind.PEER_TO_SLAB, 0, 77, b"chain")
    assert (check.region, sum(check.extent_length), check.layout) == (Region(0, 2, 0, 32), 32, 3)
    assert of(Filled, sends) == []
    filled = only(Filled, target.checked(sends))
    assert (filled.handle, filled.tokens, filled.detail) == (1, 32, "")


def test_regions_are_checked_one_after_the_other() -> None:
    target = Target()
    first = target.written(16)
    assert of(Transfer, target.written(32, start=16)) == []
    second = target.checked(first)
    assert only(Transfer, second).region == Region(0, 2, 16, 32)
    assert only(Filled, target.checked(second)).tokens == 32


@pytest.mark.parametrize(
    ("written", "detail"),
    [
        ({"start": 16}, "tokens 16 to 32 were written, 0 of 40 are here"),
        ({"stop": 41}, "tokens 0 to 41 were written"),
        ({"stop": 0}, "tokens 0 to 0 were written"),
        ({"layers": (0, 1)}, "layers 0 to 1 were written"),
    ],
)
def test_what_does_not_follow_or_lacks_layers_is_not_taken(written: dict[str, Any], detail: str) -> None:
    answer = only(Filled, Target().written(**written))
    assert (answer.tokens, detail in answer.detail) == (0, True)


def test_a_corrupt_copy_does_not_count() -> None:
    target = Target()
    answer = only(Filled, target.checked(target.written(), TransferStatus.CORRUPT))
    assert (answer.tokens, "CORRUPT" in answer.detail) == (0, True)


def test_the_next_attempt_starts_from_what_was_checked() -> None:
    target = Target()
    target.checked(target.written())
    assert only(Accepted, target.direct.give(D, make_place(tokens=TOKENS, attempt=2, handle=1))).attempt == 2
    target.direct.core.lifecycle.kv_cache.check_integrity()


def test_no_attempt_takes_over_slots_that_are_being_checked() -> None:
    target = Target()
    target.written()
    sends = target.direct.give(D, make_place(tokens=TOKENS, attempt=2, handle=1))
    assert target.slots[0] == TOKENS
    assert sum(of(Open, sends)[0].extent_length) == 0


def test_slots_of_a_cancelled_room_are_free_only_when_the_sender_says_that_it_writes_no_more() -> None:
    target = Target()
    lost = only(ReservationLost, target.direct.give(target.direct.core.address, MigrateInTimeout(1, 1)))
    assert (lost.handle, target.slots) == (1, (0, TOKENS))
    target.direct.give(PEER, Release(1))
    assert target.slots == (0, 0)
    assert target.direct.core.slot_table.free == target.direct.core.slot_table.capacity


def test_a_check_that_is_under_way_holds_the_slots_of_a_released_room() -> None:
    target = Target()
    sends = target.written()
    target.direct.give(PEER, Release(1))
    assert target.slots == (0, TOKENS)
    target.checked(sends)
    assert target.slots == (0, 0)


def test_the_engine_of_a_sender_that_is_gone_is_shut_out_before_its_slots_are_used_again() -> None:
    target = Target()
    target.direct.give(target.direct.core.address, MigrateInTimeout(1, 1))
    sends = target.direct.give(PEER, Gone("killed"))
    assert only(Forget, sends).peer == PEER_ENGINE
    assert target.slots == (0, 0)


def test_a_room_outlives_its_sender_for_the_attempt_that_follows() -> None:
    target = Target()
    target.checked(target.written())
    assert len(of(Forget, target.direct.give(PEER, Gone("killed")))) == 1
    assert target.slots == (TOKENS, 0)
    assert only(Accepted, target.direct.give(D, make_place(tokens=TOKENS, attempt=2, handle=1))).attempt == 2


def test_a_lost_engine_frees_quarantined_slots() -> None:
    target = Target()
    target.direct.give(target.direct.core.address, MigrateInTimeout(1, 1))
    target.direct.give(ENGINE, EngineExited(0, 9))
    target.direct.give(ENGINE, Gone("killed"))
    assert target.slots == (0, 0)
    assert target.direct.give(PEER, Release(1)) == []


def test_closing_a_sequence_stops_its_copy() -> None:
    source = Source()
    copy = source.copying()
    sends = source.direct.give(PEER, Gone("killed"))
    assert only(CancelTransfer, sends).ticket == copy.ticket
    assert of(Close, sends) == []
