"""How long a silence may last, by the gaps lately."""

from dunlin.cores.gap_limit import LONGER, REMEMBERED_S, YOUNG_S, GapLimit


def settled(limit: GapLimit, gap_s: float) -> float:
    """Signs every `gap_s` for as long as is remembered; the time of the last one."""
    count = int(REMEMBERED_S / gap_s) + 2
    for number in range(count):
        limit.note(number * gap_s, gap_s)
    return (count - 1) * gap_s


def test_the_upper_bound_holds_until_gaps_are_known() -> None:
    limit = GapLimit(1.0, 3.0, 2.0)
    assert limit.limit_s(100.0) == 3.0
    limit.note(0.0, 0.5)
    assert limit.limit_s(REMEMBERED_S - 0.1) == 3.0
    assert limit.limit_s(REMEMBERED_S) == 1.0


def test_it_is_a_multiple_of_the_longest_gap_within_the_bounds() -> None:
    for gap_s, expected_s in ((0.25, 1.0), (0.75, 1.5), (2.5, 3.0)):
        limit = GapLimit(1.0, 3.0, 2.0)
        assert limit.limit_s(settled(limit, gap_s)) == expected_s


def test_a_long_gap_is_forgotten_after_the_time_remembered() -> None:
    limit = GapLimit(1.0, 3.0, 2.0)
    now_s = settled(limit, 0.5)
    limit.note(now_s + 1.25, 1.25)
    assert limit.limit_s(now_s + 1.25) == 2.5
    for half in range(1, 100):
        limit.note(now_s + 1.25 + half / 2, 0.5)
    assert limit.limit_s(now_s + 51.0) == 1.0


def test_a_gap_beyond_the_upper_bound_was_a_fault_and_is_not_believed() -> None:
    limit = GapLimit(1.0, 3.0, 2.0)
    now_s = settled(limit, 0.5)
    limit.note(now_s + 4.0, 4.0)
    assert limit.limit_s(now_s + 4.0) == 1.0
    limit.note(now_s + 6.9, 2.9)
    assert limit.limit_s(now_s + 6.9) == 3.0


def test_the_upper_bound_is_never_passed() -> None:
    limit = GapLimit(2.0, 1.5, 2.0)
    assert limit.limit_s(settled(limit, 0.1)) == 1.5


def test_a_successor_is_expected_to_be_as_regular_once_it_has_given_signs_for_a_while() -> None:
    limit = GapLimit(1.0, 3.0, 2.0)
    now_s = settled(limit, 0.75) + 2.0
    limit.succeed(now_s)
    assert limit.limit_s(now_s + 20.0) == 3.0, "no sign of it"
    limit.note(now_s + 20.0, 0.5)
    assert limit.limit_s(now_s + 20.0 + YOUNG_S - 0.1) == 3.0
    assert limit.limit_s(now_s + 20.0 + YOUNG_S) == 1.5
    limit.note(now_s + 20.0 + YOUNG_S, 1.25)
    assert limit.limit_s(now_s + 20.0 + YOUNG_S) == 2.5, "its own gaps count at once"


def test_of_the_successor_of_one_that_went_long_ago_nothing_is_known() -> None:
    for late_s, expected_s in ((REMEMBERED_S - 0.1, 1.0), (REMEMBERED_S, 3.0)):
        limit = GapLimit(1.0, 3.0, 2.0)
        now_s = settled(limit, 0.5) + late_s
        limit.succeed(now_s)
        limit.note(now_s, 0.5)
        assert limit.limit_s(now_s + YOUNG_S) == expected_s


def test_a_successor_of_one_that_was_not_known_is_not_known_either() -> None:
    limit = GapLimit(1.0, 3.0, 2.0)
    limit.note(0.0, 0.5)
    limit.succeed(10.0)
    limit.note(10.0, 0.5)
    assert limit.limit_s(REMEMBERED_S - 0.1) == 3.0
    assert limit.limit_s(REMEMBERED_S) == 1.0


def test_after_a_silence_that_ended_a_process_the_limit_is_longer_for_a_while() -> None:
    limit = GapLimit(1.0, 5.0, 2.0)
    now_s = settled(limit, 0.25)
    limit.lengthen(now_s, 1.5)
    assert limit.limit_s(now_s + REMEMBERED_S - 0.1) == 1.5 * LONGER
    assert limit.limit_s(now_s + REMEMBERED_S) == 1.0
    limit.lengthen(now_s, 4.0)
    assert limit.limit_s(now_s) == 5.0, "the upper bound is never passed"
    sure = GapLimit(1.0, 5.0, 2.0)
    now_s = settled(sure, 0.25)
    sure.lengthen(now_s, 5.0)
    assert sure.limit_s(now_s) == 1.0, "a silence of the upper bound was no slowness"
