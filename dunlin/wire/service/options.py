"""The command-line options that every service has. Knows no gRPC."""

import argparse
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

from dunlin.membership.endpoints import parse_endpoints
from dunlin.runtime.arguments import DefaultsHelpFormatter

ETCD_USER_VARIABLE = "DUNLIN_ETCD_USER"
ETCD_PASSWORD_VARIABLE = "DUNLIN_ETCD_PASSWORD"

TLS_HELP = "ca.pem, cert.pem and key.pem of this process, see `dunlin certs` (default: no TLS)"


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Where one service runs. `listen` is `host:port`, port 0 for any; `advertise` the host that others dial.

    `tls_dir` holds this process's certificates; None: plaintext. `etcd_tls_dir` those for etcd; None: the same ones.
    """

    role: str
    name: str
    etcd: tuple[str, ...]
    node: str = "local"
    listen: str = "127.0.0.1:0"
    advertise: str = ""
    data_dir: Path = Path("dunlin-data")
    parent_pid: int = 0
    tls_dir: Path | None = None
    etcd_tls_dir: Path | None = None
    lease_ttl_s: int = 5
    start_timeout_s: float = 10.0
    stop_timeout_s: float = 2.0
    etcd_user: str = ""
    etcd_password: str = field(default="", repr=False)

    def endpoint(self, port: int) -> str:
        """The `host:port` to register for a server that listens on `port`."""
        host = self.advertise or self.listen.rpartition(":")[0]
        if host in ("0.0.0.0", "[::]", "*", ""):
            host = socket.gethostname()
        return f"{host}:{port}"


def add_service_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that all services have in common. All flags of the parser tell their defaults."""
    parser.formatter_class = DefaultsHelpFormatter
    parser.add_argument("--name", default="", help="unique in its role; a new process of a name replaces the old one")
    parser.add_argument("--node", default=socket.gethostname(), help="the machine; processes of one node share memory")
    parser.add_argument(
        "--listen", default="127.0.0.1:0", metavar="HOST:PORT", type=listen_argument, help="port 0: any"
    )
    parser.add_argument("--advertise", default="", metavar="HOST", help="host that others dial (default: --listen's)")
    parser.add_argument(
        "--etcd", default="127.0.0.1:2379", metavar="HOST:PORT[,…]", type=_etcd, help="all members, in any order"
    )
    parser.add_argument(
        "--etcd-user",
        default=os.environ.get(ETCD_USER_VARIABLE, ""),
        metavar="NAME",
        help=f"for an etcd with authentication (default: ${ETCD_USER_VARIABLE})",
    )
    parser.add_argument(
        "--etcd-password-file",
        dest="etcd_password",
        type=_password,
        metavar="FILE",
        help=f"holds that user's password (default: ${ETCD_PASSWORD_VARIABLE})",
    )
    parser.add_argument(
        "--data-dir", default=Path("dunlin-data"), metavar="DIR", type=Path, help="for the files of the built-in model"
    )
    parser.add_argument("--tls-dir", type=Path, metavar="DIR", help=TLS_HELP)
    parser.add_argument("--etcd-tls-dir", type=Path, metavar="DIR", help="the same, for etcd (default: --tls-dir)")
    parser.add_argument(
        "--lease-ttl-s", default=5, type=int, metavar="S", help="seconds until etcd forgets a dead process"
    )
    parser.add_argument("--parent-pid", default=0, type=int, metavar="PID", help="die with this parent process")


def service_options(role: str, arguments: argparse.Namespace) -> ServiceOptions:
    """The options out of parsed flags."""
    return ServiceOptions(
        role=role,
        name=arguments.name or f"{role}-{os.getpid()}",
        etcd=arguments.etcd,
        node=arguments.node,
        listen=arguments.listen,
        advertise=arguments.advertise,
        data_dir=arguments.data_dir,
        parent_pid=arguments.parent_pid,
        lease_ttl_s=arguments.lease_ttl_s,
        etcd_user=arguments.etcd_user,
        etcd_password=_password_of(arguments),
        tls_dir=arguments.tls_dir,
        etcd_tls_dir=arguments.etcd_tls_dir,
    )


def listen_argument(text: str) -> str:
    """`HOST:PORT` of a flag, as it is. Raises ArgumentTypeError saying what it should look like."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT (example: 127.0.0.1:0)")
    if ":" in host and not host.startswith("["):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not HOST:PORT: write [{host}]:{port}, an IPv6 address in brackets"
        )
    return text


def _etcd(text: str) -> tuple[str, ...]:
    try:
        return parse_endpoints(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _password(path: str) -> str:
    """The file's first line."""
    try:
        password = Path(path).read_text().partition("\n")[0]
    except (OSError, UnicodeError) as error:
        raise argparse.ArgumentTypeError(f"cannot read the password of etcd's user from {path}: {error}") from None
    if not password:
        raise argparse.ArgumentTypeError(f"{path} holds no password: its first line is empty")
    return password


def _password_of(arguments: argparse.Namespace) -> str:
    if not arguments.etcd_user:
        return ""
    return arguments.etcd_password or os.environ.get(ETCD_PASSWORD_VARIABLE, "")
