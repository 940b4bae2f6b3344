"""How long exchanges took lately, by size."""

import pytest

from services.instance.group.leading.exchange_times import FADING, ExchangeTimes


def test_the_longest_of_a_size_counts_and_fades_with_each_further_one() -> None:
    times = ExchangeTimes()
    times.note(600, 2.0)
    assert times.longest_s(1000) == 2.0, "both have ten digits"
    times.note(700, 0.1)
    assert times.longest_s(512) == pytest.approx(2.0 * FADING)
    times.note(700, 3.0)
    assert times.longest_s(512) == 3.0


def test_a_smaller_one_takes_no_longer_than_the_next_larger_and_of_larger_ones_nothing_is_known() -> None:
    times = ExchangeTimes()
    assert times.longest_s(1) is None
    times.note(600, 2.0)
    times.note(40, 0.5)
    assert [times.longest_s(tokens) for tokens in (1, 63, 64, 1023)] == [0.5, 0.5, 2.0, 2.0]
    assert times.longest_s(1024) is None
    times.note(1, 0.01)
    assert times.longest_s(1) == 0.01
