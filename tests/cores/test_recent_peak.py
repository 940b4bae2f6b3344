"""The highest value lately."""

from dunlin.cores.recent_peak import RecentPeak


def test_nothing_is_what_was_asked_for() -> None:
    assert RecentPeak(10.0, 0).peak(5.0) == 0
    assert RecentPeak(10.0, -1.0).peak(5.0) == -1.0


def test_a_value_holds_until_the_next_and_is_remembered_for_a_while_after() -> None:
    peak = RecentPeak(10.0, 0)
    peak.note(0.0, 8)
    peak.note(20.0, 3)
    assert peak.peak(29.9) == 8
    assert peak.peak(30.0) == 3
    assert peak.peak(1000.0) == 3, "the last one holds still"


def test_a_later_higher_value_counts_at_once_and_a_lower_one_between_is_forgotten() -> None:
    peak = RecentPeak(10.0, 0)
    for at_s, value in ((0.0, 5), (1.0, 2), (2.0, 4), (3.0, 9)):
        peak.note(at_s, value)
    assert peak.peak(3.0) == 9
    peak.note(4.0, 1)
    assert (peak.peak(13.9), peak.peak(14.0)) == (9, 1)


def test_it_is_settled_after_the_time_remembered() -> None:
    peak = RecentPeak(10.0, 0)
    assert not peak.is_settled(100.0)
    peak.note(5.0, 1)
    assert not peak.is_settled(14.9)
    assert peak.is_settled(15.0)


def test_a_value_ended_with_the_next_note_whatever_came_after_that() -> None:
    peak = RecentPeak(10.0, 0.0)
    peak.note(0.0, 8)
    for at_s in range(1, 100):  # rising from then on, so that each note stands in for those before
        peak.note(float(at_s), at_s / 100)
        assert peak.peak(float(at_s)) == (8 if at_s < 11 else at_s / 100)
