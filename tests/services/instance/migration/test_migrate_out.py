"""The state machine of an outgoing migration: its stages, its end, and late answers."""

from typing import Any

import pytest

from dunlin.effects import Address, After, Effect, Send
from dunlin.messages.dispatch import Ready
from dunlin.messages.engine import Discard
from dunlin.messages.group import DIALING, DialPeer, Filled, Release, ReservationLost, Reserve, Reserved, ReserveRefused
from dunlin.messages.pool import RegionsSent
from dunlin.messages.types import RejectedOption, Why, i64
from services.instance.engine.met_engines import MetEngines
from services.instance.kv.host_cache import HostCacheClient
from services.instance.migration.migrate_out import MigrateOut
from services.instance.migration.outgoing import (
    MigrateOutTimeout,
    MigrationLimits,
    MigrationSource,
    OutgoingMigration,
)
from services.instance.migration.peer_copies import PeerCopies
from services.instance.scheduling.step_ledger import StepLedger
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable
from simulator.engine.model import make_engine_ready
from tests.services.instance.bench import ENGINE, OTHER, D, make_place

X, Y = (Address("instance", name, 9) for name in "xy")
LIMITS = MigrationLimits(stage_s=5.0, tail_tokens=8)


class NoExport:
    """A host cache that cannot be used: the target recomputes everything."""

    usable = False
    kvstore = None


class Lifecycle:
    """Resumes sequences as the real one does, and counts it."""

    def __init__(self, sequences: SequenceTable) -> None:
        self._sequences = sequences

    def resume(self, sequence: Sequence) -> None:
        self._sequences.transition(sequence, SequenceState.RUNNING)

    def unpark(self, sequence: Sequence) -> list[Effect]:
        if sequence.state is not SequenceState.PARKED:
            return []
        self._sequences.transition(sequence, SequenceState.RUNNING)
        return [Send(ENGINE, Discard(i64([sequence.number])))]


class Source:
    """An instance with one running sequence of 10 tokens; the stream to X is open."""

    def __init__(self) -> None:
        self.sequences = SequenceTable()
        self.sequence = self.sequences.add(D, make_place(1, tokens=10, max_tokens=8))
        self.sequences.transition(self.sequence, SequenceState.RUNNING)
        self.engine: MigrationSource | None = MigrationSource(make_engine_ready(), 4, 2)
        self.ends: list[str] = []
        lifecycle: Any = Lifecycle(self.sequences)
        export: Any = NoExport()
        steps = StepLedger(ENGINE, self.sequences)
        peers = PeerCopies(ENGINE, lifecycle, HostCacheClient(ENGINE, 1.0), MetEngines(ENGINE), steps)
        self.out = MigrateOut(self.sequences, lifecycle, export, peers, LIMITS, lambda: self.engine)
        self.out.on_peer_joined(X)

    def start(self, target: Address = X) -> list[Effect]:
        return self.out.start(self.sequence, target, Why("llumnix", "balance"), self._ended)

    def handed(self) -> "Source":
        self.start()
        self.out.on_reserved(0.0, X, Reserved(1, 6))
        (ready,) = sent(self.out.advance(), Ready)
        assert (ready.request, ready.target, ready.handle, ready.tokens) == (1, X, 6, 0)
        return self

    def _ended(self, migration: OutgoingMigration, reason: str) -> None:
        self.ends.append(reason)

    @property
    def totals(self) -> tuple[int, int, int]:
        return self.out.moved_total, self.out.failed_total, self.out.stale_total


def sent(effects: list[Effect], kind: type[Any]) -> list[Any]:
    return [one.message for one in effects if isinstance(one, Send) and isinstance(one.message, kind)]


def timer(effects: list[Effect]) -> MigrateOutTimeout:
    (found,) = [one for one in effects if isinstance(one, After)]
    assert isinstance(found.message, MigrateOutTimeout)
    assert found.delay_s == LIMITS.stage_s
    return found.message


def test_a_reservation_names_the_sequence_the_plan_and_the_engine() -> None:
    source = Source()
    (reserve,) = sent(source.start(), Reserve)
    assert (reserve.sequence, reserve.tokens, reserve.longest) == (1, 10 + LIMITS.tail_tokens, 18)
    assert (reserve.epoch, reserve.plan_version, reserve.dispatcher, reserve.request) == (4, 2, D, 1)
    assert (reserve.layer_stop, reserve.weights_digest) == (len(make_engine_ready().layers), "fake")
    assert source.out.is_migrating(source.sequence)


def test_a_target_without_a_stream_is_dialled_first() -> None:
    source = Source()
    effects = source.start(Y)
    assert effects[0] == Send(DIALING, DialPeer(Y))
    assert len(sent(source.out.on_peer_joined(Y), Reserve)) == 1
    assert source.out.on_peer_joined(Y) == [], "it is reserved once"


def test_the_sequence_leaves_between_steps_and_ends_with_the_next_attempt() -> None:
    source = Source()
    source.start()
    source.out.on_reserved(0.0, X, Reserved(1, 6))
    source.sequence.in_steps = 1
    source.out.advance()
    assert source.sequence.state is SequenceState.LEAVING
    assert sent(source.out.advance(), Ready) == []
    source.sequence.in_steps = 0
    assert len(sent(source.out.advance(), Ready)) == 1
    source.sequences.transition(source.sequence, SequenceState.ENDED)
    assert source.out.advance() == [Send(X, Release(6))]
    assert (source.totals, source.ends, len(source.out)) == ((1, 0, 0), [""], 0)


def test_the_parked_row_of_a_sequence_is_discarded_before_it_leaves() -> None:
    source = Source()
    source.start()
    source.sequences.transition(source.sequence, SequenceState.PARKED)
    source.out.on_reserved(0.0, X, Reserved(1, 6))
    effects = source.out.advance()
    assert list(sent(effects, Discard)[0].sequence) == [1]
    assert source.sequence.state is SequenceState.LEAVING
    assert len(sent(effects, Ready)) == 1, "its valid KV migrates"


def test_a_sequence_that_ends_before_it_is_handed_over_did_not_move() -> None:
    source = Source()
    source.start()
    source.sequences.transition(source.sequence, SequenceState.ENDED)
    assert source.out.advance() == []
    assert (source.totals, source.ends) == ((0, 0, 0), ["it ended first"])


def test_a_refusal_ends_it_with_the_reason_of_the_target() -> None:
    source = Source()
    source.start()
    why = Why("arrivals", "refuse", (), (RejectedOption("reserve", "no slots"),))
    assert source.out.on_refused(0.0, X, ReserveRefused(1, why)) == []
    assert (source.totals, source.ends) == ((0, 1, 0), ["x refuses: no slots"])


@pytest.mark.parametrize("stage", ["reserving", "handed"])
def test_a_lost_target_matters_only_before_the_hand_over(stage: str) -> None:
    source = Source().handed() if stage == "handed" else Source()
    if stage == "reserving":
        source.start()
    assert source.out.on_peer_gone(X) == []
    assert source.ends == ([] if stage == "handed" else ["x is gone"])
    assert len(source.out) == (stage == "handed")


def test_a_lost_reservation_is_not_released_and_the_sequence_goes_on() -> None:
    source = Source()
    source.start()
    source.out.on_reserved(0.0, X, Reserved(1, 6))
    source.sequence.in_steps = 1
    source.out.advance()
    assert source.out.on_reservation_lost(0.0, X, ReservationLost(6)) == []
    assert source.sequence.state is SequenceState.RUNNING
    assert source.ends == ["x lost the room"]


def test_a_lost_dispatcher_of_a_handed_over_sequence_aborts_and_releases() -> None:
    source = Source().handed()
    assert source.out.on_peer_gone(D) == [Send(X, Release(6))]
    assert source.sequence.state is SequenceState.RUNNING
    assert source.ends == ["its dispatcher d is gone"]


def test_a_sequence_that_another_dispatcher_adopted_stays() -> None:
    source = Source().handed()
    source.sequences.reassign(source.sequence, OTHER, source.sequence.place)
    assert source.out.advance() == [Send(X, Release(6))]
    assert source.ends == ["e goes on with it here"]


def test_a_recall_by_the_dispatcher_aborts_it() -> None:
    source = Source().handed()
    assert source.out.cancel(source.sequence) == [Send(X, Release(6))]
    assert source.out.cancel(source.sequence) == []
    assert source.sequence.state is SequenceState.RUNNING


def test_only_the_newest_timer_of_a_stage_ends_it() -> None:
    source = Source()
    old = timer(source.start())
    copying = timer(source.out.on_reserved(0.0, X, Reserved(1, 6)))
    assert source.out.on_timeout(5.0, X, old) == []
    again = timer(source.out.on_timeout(5.0, X, copying))
    assert len(source.out) == 1, "it leaves all the same, without the missing KV"
    assert source.out.on_timeout(9.0, X, again) == [Send(X, Release(6))]
    assert source.ends == ["copying after 5 s"]


def test_late_answers_are_counted_and_foreign_room_is_given_back() -> None:
    source = Source()
    assert source.out.on_reserved(0.0, X, Reserved(7, 3)) == [Send(X, Release(3))]
    source.start()
    assert source.out.on_reserved(0.0, Y, Reserved(1, 3)) == [Send(Y, Release(3))], "it asked another target"
    source.out.on_reserved(0.0, X, Reserved(1, 6))
    assert source.out.on_reserved(0.0, X, Reserved(1, 6)) == [], "its own room, kept for longer"
    assert source.out.on_refused(0.0, X, ReserveRefused(1)) == []
    assert source.out.on_filled(0.0, X, Filled(9, 5)) == []
    assert source.out.on_reservation_lost(0.0, Y, ReservationLost(6)) == [Send(Y, Release(6))], (
        "nothing is copied there"
    )
    assert source.out.on_regions_sent(9, RegionsSent(1, 5)) == []
    assert (source.totals, source.ends) == ((0, 0, 6), [])


def test_without_an_engine_nothing_is_reserved() -> None:
    source = Source()
    source.engine = None
    assert source.start() == []
    assert (source.totals, source.ends) == ((0, 1, 0), ["no engine runs here"])
