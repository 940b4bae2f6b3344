"""What may start before an older sequence that waits for slots."""

from dataclasses import replace

from dunlin.policies.overtake import OVERTAKE_POLICIES, Overtaking, never, shorter

SHORT = Overtaking(slots=20, blocked_slots=160, ahead_slots=60, capacity=640)
LONG = Overtaking(slots=20, blocked_slots=480, ahead_slots=60, capacity=640)


def test_a_much_shorter_sequence_overtakes_while_those_that_did_need_an_eighth_of_all_slots() -> None:
    assert shorter(SHORT)
    assert not shorter(replace(SHORT, slots=21, ahead_slots=50))
    assert not shorter(replace(SHORT, blocked_slots=159))
    assert not shorter(replace(SHORT, ahead_slots=61))
    assert not shorter(replace(SHORT, capacity=639))


def test_what_overtakes_leaves_seven_eighths_to_the_one_that_waits_and_to_those_that_overtook() -> None:
    assert shorter(LONG)
    assert not shorter(replace(LONG, blocked_slots=481))
    assert shorter(replace(LONG, blocked_slots=520, ahead_slots=20))
    assert not shorter(replace(LONG, blocked_slots=520, ahead_slots=21))


def test_first_come_first_served_is_without_exception() -> None:
    assert not never(replace(SHORT, slots=1, ahead_slots=0))


def test_they_are_in_the_table() -> None:
    assert (OVERTAKE_POLICIES["never"], OVERTAKE_POLICIES["shorter"]) == (never, shorter)
