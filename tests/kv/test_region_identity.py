"""What goes into a region's hash before its bytes: nothing of it may be confused with anything else."""

from dunlin.kv.region_identity import region_identity
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
