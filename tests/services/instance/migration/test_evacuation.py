"""What a `Evacuate` makes leave: which sequences, how many at once, and what the manager hears."""

from collections.abc import Iterable
from typing import Any

import pytest

from dunlin.effects import Address, Effect, Joined, Send
from dunlin.messages.plan import Drain, DrainDone, Evacuate, EvacuateDone, GroupOrder, Undrain
from dunlin.messages.types import GroupKind, GroupRole
from services.instance.migration.evacuation import Evacuations
from services.instance.migration.outgoing import MigrateOutTimeout, OnMigrationEnd, OutgoingMigration
from services.instance.scheduling.group_orders import GroupOrders
from services.instance.sequence.sequence import Sequence
from services.instance.sequence.states import SequenceState
from services.instance.sequence.table import SequenceTable
from tests.services.instance.bench import MANAGER, ME, D, make_place, ready_core

THERE = Address("instance", "there", 9)


class Leaving:
    """Departures that end when told."""

    def __init__(self) -> None:
        self.going: dict[int, tuple[Sequence, Any]] = {}

    def __len__(self) -> int:
        return len(self.going)

    def is_migrating(self, sequence: Sequence) -> bool:
        return sequence.number in self.going

    def start(self, sequence: Sequence, target: Address, why: object, ended: OnMigrationEnd) -> list[Effect]:
        assert target == THERE
        self.going[sequence.number] = (sequence, ended)
        return []

    def end(self, number: int, stays: str = "", silent: bool = False) -> None:
        sequence, ended = self.going.pop(number)
        sequence.state = SequenceState.ENDED if not stays else sequence.state
        ended(OutgoingMigration(number, sequence, THERE, None, ended, is_target_silent=silent), stays)


def make_evacuations(
    *tokens: int, most: int = 4, orders: GroupOrders | None = None, handle: int = 0
) -> tuple[Evacuations, Leaving]:
    """Waiting sequences of so many tokens, numbered from 1; with a `handle` they came by a migration."""
    sequences, leaving = SequenceTable(), Leaving()
    for request, count in enumerate(tokens, start=1):
        sequences.add(D, make_place(request, tokens=count, handle=handle))
    return Evacuations(sequences, leaving, orders or GroupOrders(ME), most), leaving  # type: ignore[arg-type]


def order(slots: int, ticket: int = 1, epoch: int = 5) -> Evacuate:
    return Evacuate(epoch, ticket, THERE, slots)


def told(effects: Iterable[Effect]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, Send) and effect.to == MANAGER]


@pytest.mark.parametrize(
    ("slots", "gone"),
    [(1, [2]), (10, [2]), (11, [2]), (20, [2, 3]), (45, [2, 3]), (50, [2, 3, 1]), (1000, [2, 3, 1, 4])],
)
def test_the_cheapest_leave_until_about_so_many_slots_are_free(slots: int, gone: list[int]) -> None:
    evacuations, leaving = make_evacuations(40, 10, 20, 400)
    evacuations.evacuate(0.0, MANAGER, order(slots))
    assert list(leaving.going) == gone


@pytest.mark.parametrize(("most", "gone"), [(0, [2, 3, 1]), (9, []), (10, [2]), (69, [2, 3]), (70, [2, 3, 1])])
def test_no_more_leave_than_the_order_has_room_for(most: int, gone: list[int]) -> None:
    evacuations, leaving = make_evacuations(40, 10, 20, 400)
    evacuations.evacuate(0.0, MANAGER, Evacuate(5, 1, THERE, 50, most_slots=most))
    assert list(leaving.going) == gone


def test_an_order_that_fits_no_sequence_is_answered_with_why() -> None:
    evacuations, _ = make_evacuations(40, 10, 20, 400)
    answers = told(evacuations.evacuate(0.0, MANAGER, Evacuate(5, 1, THERE, 50, most_slots=9)))
    assert answers == [EvacuateDone(5, 1, detail="the smallest of 4 sequences has 10 tokens, and 9 may leave")]


def test_what_came_by_a_migration_gets_a_token_before_it_leaves_again() -> None:
    """Otherwise two policies that disagree, as a hand-off and a rebalance, move it to and fro for ever."""
    evacuations, leaving = make_evacuations(10, 20, handle=7)
    (answer,) = told(evacuations.evacuate(0.0, MANAGER, order(100)))
    assert (answer.moved, len(leaving)) == (0, 0)
    evacuations._sequences.by_arrival()[1].tokens.append(5)
    evacuations.evacuate(0.0, MANAGER, order(100, ticket=2))
    assert list(leaving.going) == [2]


def test_a_drained_instance_gives_away_what_has_just_come() -> None:
    evacuations, leaving = make_evacuations(10, handle=7)
    evacuations.drain(0.0, MANAGER, Drain(5, 1))
    evacuations.evacuate(0.0, MANAGER, order(100, ticket=2))
    assert list(leaving.going) == [1]


def test_so_many_leave_at_once_and_the_manager_hears_when_all_are_through() -> None:
    evacuations, leaving = make_evacuations(10, 10, 10, most=2)
    assert told(evacuations.evacuate(0.0, MANAGER, order(30))) == []
    assert (list(leaving.going), evacuations.waiting) == ([3, 2], 1)
    leaving.end(3)
    assert told(evacuations.advance()) == []
    assert list(leaving.going) == [2, 1]
    leaving.end(2, stays="no room")
    leaving.end(1)
    assert told(evacuations.advance()) == [EvacuateDone(5, 1, moved=2, moved_slots=20, stayed=1, detail="no room")]


def test_the_rest_stays_where_the_target_is_silent_and_other_orders_go_on() -> None:
    evacuations, leaving = make_evacuations(10, 10, 10, most=2)
    evacuations.evacuate(0.0, MANAGER, order(30))
    leaving.end(3, stays="no answer about room after 5 s", silent=True)
    assert told(evacuations.advance()) == []
    assert (list(leaving.going), evacuations.waiting) == ([2], 0)
    leaving.end(2, stays="no answer about room after 5 s", silent=True)
    detail = "no answer about room after 5 s"
    assert told(evacuations.advance()) == [EvacuateDone(5, 1, stayed=3, detail=detail)]


@pytest.mark.parametrize("is_reached", [False, True])
def test_an_order_to_a_dead_target_ends_after_one_stage(is_reached: bool) -> None:
    direct = ready_core(migration__max_outgoing=1)
    for request in (1, 2, 3):
        direct.give(D, make_place(request, tokens=10, max_tokens=100))
    if is_reached:
        direct.give(THERE, Joined())
    direct.give(MANAGER, order(30))
    (due,) = [timer.message for timer in direct.timers if isinstance(timer.message, MigrateOutTimeout)]
    (done,) = [each for each in told(direct.give(ME, due, 5.0)) if isinstance(each, EvacuateDone)]
    assert (done.moved, done.stayed) == (0, 3)


def test_a_drain_does_not_wait_for_hand_offs_that_go_on_and_on() -> None:
    evacuations, leaving = make_evacuations(10, 10, 10, most=2)
    handed_off = [SequenceTable().add(D, make_place(9, tokens=10)) for _ in range(4)]
    for number, sequence in enumerate(handed_off, start=100):
        leaving.going[number] = (sequence, None)
    evacuations.drain(0.0, MANAGER, Drain(5, 1))
    evacuations.evacuate(0.0, MANAGER, order(30, ticket=2))
    assert list(leaving.going)[4:] == [3, 2]
    leaving.end(3)
    evacuations.advance()
    assert list(leaving.going)[4:] == [2, 1]


def test_an_order_without_a_sequence_to_migrate_is_answered_at_once() -> None:
    evacuations, _ = make_evacuations()
    assert told(evacuations.evacuate(0.0, MANAGER, order(30))) == [EvacuateDone(5, 1)]


def test_orders_of_an_older_term_or_ticket_change_nothing() -> None:
    orders = GroupOrders(ME)
    evacuations, leaving = make_evacuations(10, orders=orders)
    evacuations.drain(0.0, MANAGER, Drain(5, 3))
    for stale in (order(10, ticket=2), order(10, ticket=9, epoch=4)):
        (answer,) = told(evacuations.evacuate(0.0, MANAGER, stale))
        assert "stale" in answer.detail
    orders.apply(MANAGER, GroupOrder(6, 1, 1, GroupKind.LOCAL, GroupRole.LOCAL, (ME,)))
    assert "stale" in told(evacuations.evacuate(0.0, MANAGER, order(10, ticket=9)))[0].detail
    assert len(leaving) == 0
    assert evacuations.stale_total == 3


def test_draining_ends_when_ordered_and_what_had_not_begun_stays() -> None:
    evacuations, leaving = make_evacuations(10, 10, most=1)
    assert told(evacuations.drain(0.0, MANAGER, Drain(5, 1))) == [DrainDone(5, 1, draining=True)]
    evacuations.evacuate(0.0, MANAGER, order(20, ticket=2))
    assert told(evacuations.drain(0.0, MANAGER, Undrain(5, 3))) == [DrainDone(5, 3, draining=False)]
    assert not evacuations.draining
    leaving.end(2)
    assert told(evacuations.advance()) == [EvacuateDone(5, 2, moved=1, moved_slots=10)]
