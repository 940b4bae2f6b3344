"""Which times there are to plan with, and what a group of a size that was not measured takes."""

from dataclasses import replace

import pytest

from dunlin.policies.loongserve.inputs import GroupTimes, PrefillPrices

ALONE, OF_THREE = PrefillPrices(0.0, 3.0, 0.0), PrefillPrices(0.0, 1.0, 0.0)
TIMES = GroupTimes({1: ALONE, 3: OF_THREE}, tipping_s=1.0, decode_s=1.0, move_tokens_per_s=1.0, rows_per_master=8)


def test_a_master_has_a_row_at_least() -> None:
    assert replace(TIMES, rows_per_master=1).rows_per_master == 1
    with pytest.raises(ValueError, match="no times to plan with"):
        replace(TIMES, rows_per_master=0)


def test_a_group_computes_with_the_largest_degree_that_it_has_instances_for() -> None:
    assert [TIMES.prices(size) for size in range(1, 6)] == [ALONE, ALONE, OF_THREE, OF_THREE, OF_THREE]
