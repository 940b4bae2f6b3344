"""The rate of copies under memory pressure: none at half of the slots free, and more the fewer there are."""

import pytest

from dunlin.policies.checkpoint_rate import pressure_share


@pytest.mark.parametrize(
    ("free", "share"), [(1.0, 0.0), (0.5, 0.0), (0.375, 0.05), (0.25, 0.1), (0.0, 0.2), (-0.1, 0.2)]
)
def test_it_grows_with_the_slots_in_use(free: float, share: float) -> None:
    assert pressure_share(free, 0.2) == pytest.approx(share)


def test_none_of_it_where_there_is_no_share() -> None:
    assert pressure_share(0.0, 0.0) == 0.0
