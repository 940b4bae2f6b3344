"""A call's metadata as a mapping, whatever of gRPC's types it comes as."""

from collections.abc import Iterable
from typing import Any, cast


def metadata_values(metadata: object) -> dict[str, Any]:
    """Values by key, the last one of each; empty for None.

    Pair by pair: `dict(metadata)` asks gRPC's aio `Metadata` for its keys, which before gRPC 1.80 were no keys.
    """
    return dict(iter(cast(Iterable[tuple[str, Any]], metadata or ())))
