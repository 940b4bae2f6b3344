"""I2 from recorded reasons: an attempt at two instances, and attempts out of order, are found."""

from benchmarks.faults.chaos.attempts import attempt_complaints
from dunlin.effects import Address
from dunlin.messages.dispatch import Place
from dunlin.messages.fleet import Reason
from dunlin.messages.types import SamplingParams, i32

ONE, OTHER = Address("instance", "i"), Address("instance", "j")
DISPATCHER, NEXT = Address("dispatcher", "d", 1), Address("dispatcher", "d", 2)


def placed(at_s: float, attempt: int, to: Address, sender: Address = DISPATCHER) -> tuple[Reason, object]:
    place = Place(7, attempt, i32([1]), 1, 4, SamplingParams())
    return Reason(at_s, sender, to, "Place", b""), place


def test_attempts_in_turn_each_at_one_instance_are_right() -> None:
    assert attempt_complaints([placed(1, 1, ONE), placed(2, 2, OTHER), placed(3, 3, ONE)]) == []
    assert attempt_complaints([placed(1, 1, ONE), placed(1, 1, ONE)]) == []


def test_another_dispatcher_counts_anew() -> None:
    assert attempt_complaints([placed(1, 2, ONE), placed(2, 1, OTHER, NEXT)]) == []


def test_an_attempt_at_two_instances_is_found() -> None:
    (found,) = attempt_complaints([placed(1, 1, ONE), placed(2, 1, OTHER)])
    assert found == "I2: d#1 request 7: attempt 1 went to i and to j"


def test_an_attempt_after_a_later_one_is_found() -> None:
    (found,) = attempt_complaints([placed(1, 2, ONE), placed(2, 1, OTHER)])
    assert found == "I2: d#1 request 7: attempt 1 was dispatched after attempt 2"
