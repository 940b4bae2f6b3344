"""The mapped host tier: what lies in it, and nothing outside."""

from pathlib import Path

import pytest

from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.host_tier import HostMapping
from dunlin.messages.engine import MapHost


@pytest.mark.parametrize(("offset", "length"), [(-1, 4), (0, -4), (1020, 5), (1025, 0)])
def test_bytes_outside_the_mapped_tier_are_refused(tmp_path: Path, offset: int, length: int) -> None:
    (tmp_path / "tier").write_bytes(bytes(1024))
    tier = HostMapping()
    tier.map(MapHost(str(tmp_path / "tier"), 1024, 1))
    assert len(tier.host_view(1020, 4)) == 4
    with pytest.raises(TransferError, match="lie outside the host tier of 1024 bytes"):
        tier.host_view(offset, length)


def test_without_a_tier_nothing_is_given() -> None:
    with pytest.raises(TransferError, match="no host tier is mapped"):
        HostMapping().host_view(0, 0)
