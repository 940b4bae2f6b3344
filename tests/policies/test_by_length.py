"""Which instances long prompts have for themselves."""

import pytest

from dunlin.effects import Address
from dunlin.policies.by_length import long_instances


def of(count: int) -> list[Address]:
    return [Address("instance", f"i{number}", 9 - number) for number in reversed(range(count))]


@pytest.mark.parametrize(
    ("count", "share", "reserved"),
    [
        (0, 0.5, []),
        (1, 0.5, []),
        (2, 0.01, ["i1"]),
        (2, 0.99, ["i1"]),
        (4, 0.5, ["i2", "i3"]),
        (5, 0.25, ["i4"]),
    ],
)
def test_the_last_by_name_at_least_one_and_never_all(count: int, share: float, reserved: list[str]) -> None:
    assert sorted(each.name for each in long_instances(of(count), share)) == reserved
