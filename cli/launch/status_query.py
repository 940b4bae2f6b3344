"""Asking a cluster how it is, over its doors."""

from pathlib import Path

from dunlin.messages.fleet import FleetStatus

_TIMEOUT_S = 2.0


def query_status(endpoint: str, monitor: str, tls_dir: Path | None) -> FleetStatus | None:
    """The status that the `monitor` of the cluster with the dispatcher at `endpoint` gives, None while it does not."""
    from dunlin.client import Client, DunlinError

    with Client(endpoint, call_timeout_s=_TIMEOUT_S, tls_dir=tls_dir or "", api_key="", monitor=monitor) as client:
        try:
            return client.status()
        except DunlinError:
            return None
