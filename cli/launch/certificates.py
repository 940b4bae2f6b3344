"""The certificates of a cluster on one machine: a CA of its own and one certificate per process, in the data directory.

The CA is made once and kept, so that clients that trust it need no new copy; the certificates are new at every start.
"""

import socket
from collections.abc import Iterable
from pathlib import Path

from cli.launch.errors import LaunchError

CLIENT = "client"
"""The name of the certificate for the command line and the SDK."""


def tls_dir(data_dir: Path, name: str) -> Path:
    """Where the certificate of the process `name` lies."""
    return data_dir / "tls" / name


def issue_cluster_certificates(data_dir: Path, host: str, processes: Iterable[tuple[str, str]]) -> None:
    """Certificates for processes, given as (role, name), and for a client. Raises LaunchError."""
    from dunlin.auth.certificates import CA, CertificateError, CertificateRequest, issue_certificate, make_ca

    ca = tls_dir(data_dir, "ca")
    try:
        if not (ca / CA).exists():
            make_ca(ca, force=True)  # a key without it is left of a start that was killed: nothing was signed with it
        for role, name in (*processes, (CLIENT, CLIENT)):
            issue_certificate(ca, tls_dir(data_dir, name), CertificateRequest(role, name, _hosts(host)), force=True)
    except CertificateError as error:
        raise LaunchError(str(error)) from None


def _hosts(host: str) -> tuple[str, ...]:
    """Every name and address under which clients may dial this machine."""
    from dunlin.auth.certificates import is_host

    listed = ["localhost", "127.0.0.1", "::1"]
    for name in (socket.gethostname(), host):
        if name not in ("0.0.0.0", "::", *listed) and is_host(name):
            listed.append(name)
    return tuple(listed)
