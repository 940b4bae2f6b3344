"""Metadata of calls as a mapping, whatever of gRPC's types it comes as."""

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from dunlin.wire.metadata import metadata_values

PAIRS: tuple[tuple[str, Any], ...] = (("role-bin", b"monitor"), ("after", "3"))


class EarlyMetadata(grpc.aio.Metadata):
    """As gRPC 1.76 to 1.79 have it: what `keys` gives are pairs."""

    def keys(self) -> Any:
        return iter(self)

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__()


@pytest.mark.parametrize("made", [PAIRS, list(PAIRS), grpc.aio.Metadata(*PAIRS), EarlyMetadata(*PAIRS)])
def test_all_kinds_of_metadata_are_read(made: object) -> None:
    assert metadata_values(made) == dict(PAIRS)


def test_no_metadata_is_empty() -> None:
    assert metadata_values(None) == {} == metadata_values(())
