"""Which sequences leave a prefill instance after the first token, to which target, and which rows wait."""

from typing import Any

import pytest

from dunlin.effects import Address, After, Effect
from dunlin.messages.plan import GroupOrder, Handoff, HandoffTarget
from dunlin.messages.types import GroupKind, GroupRole
from dunlin.policies.handoff import HandoffPolicy, most_room, stay_local
from services.instance.migration.kv_handoff import (
    MAX_FAILURES,
    HandoffHoldExpired,
    HandoffLimits,
    KvHandoffs,
    TargetPauseExpired,
)
from services.instance.migration.migrate_out import NOT_COPIED
from services.instance.migration.outgoing import MigrationStage, OnMigrationEnd
from services.instance.scheduling.group_orders import GroupOrders
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable
from tests.services.instance.bench import MANAGER, ME, D, make_place

X, Y = (Address("instance", name, 9) for name in "xy")
TAIL = 8


class Leaving:
    """Departures that end when told."""

    def __init__(self, sequences: SequenceTable) -> None:
        self._sequences = sequences
        self.going: dict[Sequence, tuple[Address, OnMigrationEnd]] = {}
        self.log: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self.going)

    def is_migrating(self, sequence: Sequence) -> bool:
        return sequence in self.going

    def start(
        self, sequence: Sequence, target: Address, why: Any, ended: OnMigrationEnd, *, needs_kv: bool, pushes: bool
    ) -> list[Effect]:
        assert (why.policy, needs_kv, pushes) == ("most_room", True, True)
        self.going[sequence] = (target, ended)
        self.log.append((sequence.order, target.name))
        return []

    def end(self, sequence: Sequence, stays: str = "", stage: MigrationStage = MigrationStage.RESERVING) -> None:
        _, ended = self.going.pop(sequence)
        if not stays:
            self._sequences.transition(sequence, SequenceState.ENDED)
        migration: Any = type("D", (), {"sequence": sequence, "stage": stage})()
        ended(migration, stays)


class Here:
    """A prefill instance with running sequences of 10 tokens, numbered from 1; none has its first token yet."""

    def __init__(self, sequences: int = 1, most: int = 4, policy: HandoffPolicy = most_room) -> None:
        self.orders = GroupOrders(ME)
        self.follow(GroupRole.PREFILL)
        self.can_copy = True
        self.sequences = SequenceTable()
        self.leaving = Leaving(self.sequences)
        limits = HandoffLimits(most, hold_s=10.0, pause_s=0.1, tail_tokens=TAIL)
        migrate_out: Any = self.leaving
        self.kv_handoffs = KvHandoffs(self.sequences, migrate_out, policy, limits, self.orders, lambda: self.can_copy)
        for request in range(1, sequences + 1):
            sequence = self.sequences.add(D, make_place(request, tokens=10))
            self.sequences.transition(sequence, SequenceState.RUNNING)
        self.all = self.sequences.by_arrival()

    def follow(self, role: GroupRole, epoch: int = 1) -> None:
        """The manager has the instance do that."""
        self.orders.apply(MANAGER, GroupOrder(epoch, 1, 1, GroupKind.LOCAL, role, (ME,)))

    def rooms(self, *rooms: tuple[Address, int], ticket: int = 1, epoch: int = 5) -> "Here":
        self.kv_handoffs.set_targets(
            0.0, MANAGER, Handoff(epoch, ticket, tuple(HandoffTarget(*room, 1000) for room in rooms))
        )
        return self

    def prefill(self, *sequences: Sequence) -> list[Effect]:
        """The last row of the prompt is in a step."""
        for sequence in sequences or self.all:
            sequence.issued, sequence.pending = 10, 1
        return self.kv_handoffs.start_handoffs()

    def runs(self) -> list[int]:
        return [sequence.order for sequence in self.kv_handoffs.runnable(self.sequences.running)]


def timers(effects: list[Effect], kind: type[Any]) -> list[tuple[float, Any]]:
    return [(one.delay_s, one.message) for one in effects if isinstance(one, After) and isinstance(one.message, kind)]


def test_it_leaves_once_its_prompt_is_in_a_step_and_its_row_waits() -> None:
    here = Here(2).rooms((X, 100))
    assert here.kv_handoffs.start_handoffs() == []
    assert (here.leaving.log, here.runs()) == ([], [1, 2])
    first = here.all[0]
    assert timers(here.prefill(first), HandoffHoldExpired) == [(10.0, HandoffHoldExpired(1))]
    assert (here.leaving.log, here.runs()) == ([(1, "x")], [2])
    assert here.kv_handoffs.start_handoffs() == [], "once is enough"


def test_a_row_waits_even_before_anything_was_settled() -> None:
    here = Here().rooms((X, 100))
    here.all[0].issued, here.all[0].pending = 10, 1
    assert here.runs() == []


@pytest.mark.parametrize("off", ["part", "rooms", "tier", "policy"])
def test_without_any_of_these_it_decodes_here(off: str) -> None:
    here = Here(policy=stay_local if off == "policy" else most_room)
    here.rooms(*([] if off == "rooms" else [(X, 100)]))
    here.follow(GroupRole.DECODE if off == "part" else GroupRole.PREFILL)
    here.can_copy = off != "tier"
    assert here.prefill() == []
    assert (here.leaving.log, here.runs()) == ([], [1])


def test_what_is_over_with_its_first_token_stays() -> None:
    here = Here().rooms((X, 100))
    one = here.all[0]
    one.place = make_place(1, tokens=10, max_tokens=1)
    here.prefill()
    assert here.leaving.log == []


def test_what_has_to_be_computed_again_is_computed_first() -> None:
    here = Here().rooms((X, 100))
    one = here.all[0]
    one.tokens.append(7)
    one.issued, one.pending = 4, 0  # preempted after its first token, and back
    assert (here.kv_handoffs.start_handoffs(), here.runs()) == ([], [1])
    assert here.leaving.log == []


def test_what_decoded_here_before_goes_on_until_it_is_gone() -> None:
    here = Here().rooms((X, 100))
    one = here.all[0]
    one.tokens += [7, 7]
    one.issued = 11
    here.kv_handoffs.start_handoffs()
    assert (here.leaving.log, here.runs()) == ([(1, "x")], [1])


def test_promises_count_while_those_are_on_their_way() -> None:
    here = Here(6, most=9).rooms((X, 45), (Y, 40))  # each needs 10 and 8
    here.prefill()
    assert here.leaving.log == [(1, "x"), (2, "y"), (3, "x"), (4, "y")]
    assert here.runs() == [], "the last ones wait for room"
    here.rooms((X, 50), (Y, 0), ticket=2).kv_handoffs.start_handoffs()
    assert len(here.leaving.log) == 4, "36 of those are promised"
    here.leaving.end(here.all[0])
    here.kv_handoffs.start_handoffs()
    assert here.leaving.log[4:] == [(5, "x")]


def test_so_many_leave_at_once_the_oldest_first() -> None:
    here = Here(3, most=2).rooms((X, 1000))
    here.prefill()
    assert here.leaving.log == [(1, "x"), (2, "x")]
    here.leaving.end(here.all[0])
    here.kv_handoffs.start_handoffs()
    assert here.leaving.log[2:] == [(3, "x")]


def test_hand_offs_go_on_beside_what_the_manager_evacuates() -> None:
    here = Here(3, most=2).rooms((X, 1000))
    for evacuated in (SequenceTable().add(D, make_place(9, tokens=10)) for _ in range(4)):
        here.leaving.going[evacuated] = (Y, lambda migration, stays: None)
    here.prefill()
    assert here.leaving.log == [(1, "x"), (2, "x")]
    here.leaving.end(here.all[0], stays="no room")
    here.kv_handoffs.start_handoffs()
    assert len(here.leaving.log) == 2, "the only target refused"


def test_who_refuses_is_left_alone_for_a_while_and_another_is_asked_at_once() -> None:
    here = Here().rooms((X, 1000), (Y, 900))
    here.prefill()
    one = here.all[0]
    here.leaving.end(one, stays="x refuses: too few free slots")
    ((pause_s, due),) = timers(here.kv_handoffs.start_handoffs(), TargetPauseExpired)
    assert (pause_s, due.address) == (0.1, X)
    assert here.leaving.log == [(1, "x"), (1, "y")]
    here.leaving.end(one, stays="y refuses: too few free slots")
    here.kv_handoffs.start_handoffs()
    here.rooms((X, 1000), (Y, 900), ticket=2).kv_handoffs.start_handoffs()
    assert len(here.leaving.log) == 2, "both rest, whatever the manager says"
    here.kv_handoffs.on_pause_expired(0.0, ME, TargetPauseExpired(X, due.counter + 9))
    here.kv_handoffs.start_handoffs()
    assert len(here.leaving.log) == 2
    here.kv_handoffs.on_pause_expired(0.0, ME, due)
    here.kv_handoffs.start_handoffs()
    assert here.leaving.log[2:] == [(1, "x")]


def test_no_sequence_waits_for_longer_than_it_may() -> None:
    here = Here(2).rooms((X, 5))
    here.prefill()
    assert here.runs() == []
    here.all[1].valid = 10
    assert here.kv_handoffs.on_hold_expired(0.0, ME, HandoffHoldExpired(2)) == []
    assert here.runs() == [2]
    here.rooms((X, 500), ticket=2).kv_handoffs.start_handoffs()
    assert here.leaving.log == [(1, "x")], "the other one stays for good"


def test_the_time_in_which_its_prompt_is_computed_is_no_wait() -> None:
    here = Here().rooms((X, 5))
    here.prefill()
    again = here.kv_handoffs.on_hold_expired(0.0, ME, HandoffHoldExpired(1))
    assert timers(again, HandoffHoldExpired) == [(10.0, HandoffHoldExpired(1))]
    assert here.runs() == []


def test_what_fails_on_its_way_again_and_again_stays() -> None:
    here = Here().rooms((X, 1000))
    here.prefill()
    one = here.all[0]
    for left in range(MAX_FAILURES - 1, -1, -1):
        here.leaving.end(one, stays="x lost the room", stage=MigrationStage.COPYING)
        ((_, due),) = timers(here.kv_handoffs.start_handoffs(), TargetPauseExpired)
        assert here.runs() == ([] if left else [1])
        here.kv_handoffs.on_pause_expired(0.0, ME, due)
        here.kv_handoffs.start_handoffs()
    assert len(here.leaving.log) == MAX_FAILURES


def test_what_cannot_be_copied_stays_at_once_and_blames_no_target() -> None:
    here = Here(2).rooms((X, 1000))
    here.prefill(here.all[0])
    here.leaving.end(here.all[0], stays=NOT_COPIED, stage=MigrationStage.SWITCHING)
    assert timers(here.prefill(here.all[1]), TargetPauseExpired) == []
    assert (here.leaving.log, here.runs()) == ([(1, "x"), (2, "x")], [1])


def test_one_that_ended_on_its_way_blames_no_target() -> None:
    here = Here(2).rooms((X, 1000))
    here.prefill(here.all[0])
    here.sequences.transition(here.all[0], SequenceState.ENDED)
    here.leaving.end(here.all[0], stays="it ended first")
    assert timers(here.prefill(here.all[1]), TargetPauseExpired) == []
    assert here.leaving.log == [(1, "x"), (2, "x")]


@pytest.mark.parametrize(("epoch", "ticket", "known_epoch"), [(4, 9, 0), (5, 0, 0), (5, 2, 6)])
def test_the_word_of_an_older_term_or_ticket_changes_nothing(epoch: int, ticket: int, known_epoch: int) -> None:
    here = Here().rooms((X, 100))
    here.follow(GroupRole.PREFILL, max(1, known_epoch))
    here.kv_handoffs.set_targets(0.0, MANAGER, Handoff(epoch, ticket, ()))
    assert here.kv_handoffs.is_on
    assert here.kv_handoffs.stale_total == 1
