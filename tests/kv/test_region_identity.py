"""What goes into a region's hash before its bytes: nothing of it may be confused with anything else."""

import pytest

from dunlin.kv.region_identity import region_identity, signed_digest
from dunlin.messages.types import Region


def test_every_part_counts() -> None:
    region = Region(0, 8, 16, 64)
    ways = [
        region_identity(region, "float32", b"c"),
        region_identity(region, "bfloat16", b"c"),
        region_identity(region, "float32", b"d"),
        region_identity(region, "float32c", b""),
        region_identity(Region(0, 8, 16, 65), "float32", b"c"),
        region_identity(Region(0, 8, 15, 64), "float32", b"c"),
        region_identity(Region(0, 9, 16, 64), "float32", b"c"),
        region_identity(Region(1, 8, 16, 64), "float32", b"c"),
    ]
    assert len(set(ways)) == len(ways)
    assert region_identity(Region(0, 8, 16, 64), "float32", b"c") == ways[0]


@pytest.mark.parametrize(
    ("digest", "signed"), [(0, 0), ((1 << 63) - 1, (1 << 63) - 1), (1 << 63, -(1 << 63)), ((1 << 64) - 1, -1)]
)
def test_a_digest_is_a_signed_integer_of_the_same_bits(digest: int, signed: int) -> None:
    assert signed_digest(digest) == signed
    assert signed % (1 << 64) == digest
