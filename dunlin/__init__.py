"""dunlin serves large language models on a cluster; this package is what its users and its services share.

Importing it is cheap: it loads no torch, no service and no simulator. `Client` and `AsyncClient` are looked up on
first use, so that code which only needs the messages does not load gRPC either.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dunlin.client import AsyncClient, Client

__version__ = "0.1.0"
__all__ = ["AsyncClient", "Client", "__version__"]

_FROM_CLIENT = frozenset({"AsyncClient", "Client"})


def __getattr__(name: str) -> Any:
    if name not in _FROM_CLIENT:
        raise AttributeError(f"module 'dunlin' has no attribute {name!r}")
    from dunlin import client

    return getattr(client, name)


def __dir__() -> list[str]:
    return sorted(__all__)
