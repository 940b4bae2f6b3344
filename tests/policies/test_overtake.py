"""What may start before an older sequence that waits for slots."""

from dataclasses import replace

from dunlin.policies.overtake import OVERTAKE_POLICIES, Overtaking, backfill, never

FITS = Overtaking(slots=20, blocked_slots=480, ahead_slots=60, capacity=640)


def test_a_sequence_overtakes_where_all_that_did_and_the_one_that_waits_fit_in_seven_eighths() -> None:
    assert backfill(FITS)
    assert not backfill(replace(FITS, slots=21))
    assert not backfill(replace(FITS, blocked_slots=481))
    assert not backfill(replace(FITS, ahead_slots=61))
    assert not backfill(replace(FITS, capacity=639))


def test_first_come_first_served_is_without_exception() -> None:
    assert not never(replace(FITS, slots=1, ahead_slots=0))


def test_they_are_in_the_table() -> None:
    assert (OVERTAKE_POLICIES["never"], OVERTAKE_POLICIES["backfill"]) == (never, backfill)
