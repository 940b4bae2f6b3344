"""`dunlin health`: whether one process answers and serves, as an exit code for health checks."""

import argparse
import os
from pathlib import Path

from cli.commands.operate.serve import ROLES
from cli.common.errors import FAILED, OK, USAGE, CliError
from cli.common.options import Subparsers, endpoints, number
from dunlin.runtime.extras import missing_package_text

_DESCRIPTION = """\
Ask one process of any role, over its gRPC port, whether it serves: exit code 0 if it does, 1 if not. It is what a
container's health check runs. It needs no cluster: to see whether instances can serve, ask the HTTP door's /health.

examples:
  dunlin health 127.0.0.1:7000
  dunlin health 127.0.0.1:7002 --role kvstore --tls-dir /etc/dunlin/tls
"""
_TIMEOUT_S = 3.0
_LEAST_S = 0.01


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand."""
    parser = subparsers.add_parser(
        "health",
        help="ask one process whether it serves",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("address", type=endpoints, metavar="HOST:PORT", help="what its --listen said")
    parser.add_argument("--role", choices=ROLES, metavar="ROLE", default="dispatcher", help=_role_help())
    parser.add_argument(
        "--tls-dir", type=Path, metavar="DIR", help="certificates of the caller (default: $DUNLIN_TLS_DIR, else no TLS)"
    )
    parser.add_argument(
        "--timeout", type=number(_LEAST_S), default=_TIMEOUT_S, metavar="S", help=f"default: {_TIMEOUT_S:g}"
    )
    parser.set_defaults(run=run)


def _role_help() -> str:
    return f"with TLS, whose certificate it must show: {', '.join(ROLES)} (default: dispatcher)"


def run(arguments: argparse.Namespace) -> int:
    """Ask. Says nothing when all is well, so that a runtime's log of checks stays short."""
    try:
        from dunlin.wire.errors import StartError
        from dunlin.wire.rpc.health import why_unhealthy
        from dunlin.wire.security import TlsIdentity
    except ModuleNotFoundError as error:
        raise CliError(missing_package_text(error.name), USAGE) from None
    directory = arguments.tls_dir or os.environ.get("DUNLIN_TLS_DIR")
    try:
        security = TlsIdentity.load(Path(directory)) if directory else None
    except StartError as error:
        raise CliError(str(error), USAGE) from None
    why = why_unhealthy(arguments.address, security, arguments.role, arguments.timeout)
    if why:
        raise CliError(f"{arguments.address} does not serve: {why}", FAILED)
    return OK
