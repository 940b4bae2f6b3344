"""Asking a cluster how it is, over its public door."""

from dunlin.messages.fleet import FleetStatus

_TIMEOUT_S = 2.0


def ask(endpoint: str) -> FleetStatus | None:
    """The status that the dispatcher at `endpoint` and its monitor give, or None while one of them does not answer."""
    from dunlin.client import Client, DunlinError

    with Client(endpoint, call_timeout_s=_TIMEOUT_S) as client:
        try:
            return client.status()
        except DunlinError:
            return None
