"""How long exchanges took lately, by size."""

import pytest

from services.instance.group.leading.exchange_times import FADING, ExchangeTimes


def test_the_longest_of_a_size_counts_and_fades_with_each_further_one() -> None:
    times = ExchangeTimes()
    times.note(600, 2.0)
    assert times.longest_s(1000, 9.0) == 2.0, "both have ten digits"
    times.note(700, 0.1)
    assert times.longest_s(512, 9.0) == pytest.approx(2.0 * FADING)
    times.note(700, 3.0)
    assert times.longest_s(512, 9.0) == 3.0


def test_a_smaller_one_takes_no_longer_than_the_next_larger_and_a_larger_one_may_take_longer_than_all() -> None:
    times = ExchangeTimes()
    assert times.longest_s(1, 9.0) == 9.0
    times.note(600, 2.0)
    times.note(40, 0.5)
    assert [times.longest_s(tokens, 9.0) for tokens in (1, 63, 64, 1023)] == [0.5, 0.5, 2.0, 2.0]
    assert (times.longest_s(1024, 1.0), times.longest_s(1024, 9.0)) == (2.0, 9.0)
    times.note(1, 0.01)
    assert times.longest_s(1, 9.0) == 0.01
