"""The records of a process in the world."""

from dunlin.effects import Address
from simulator.cluster.process import CallRunner, Delivery, ScheduledCall
from tests.simulator.cluster.hearing import Word

A = Address("test", "a", 1)


def test_a_scheduled_call_is_made_once_and_any_other_message_ignored() -> None:
    called: list[int] = []
    runner = CallRunner()
    assert runner.receive(1.0, A, ScheduledCall(lambda: called.append(1))) == []
    assert runner.receive(1.0, A, Word("x")) == []
    assert called == [1]


def test_deliveries_are_ordered_by_time_and_then_by_number() -> None:
    late = Delivery(2.0, 1, A, A, Word("late"))
    first, second = (Delivery(1.0, number, A, A, Word("early")) for number in (1, 2))
    assert sorted([late, second, first]) == [first, second, late]
