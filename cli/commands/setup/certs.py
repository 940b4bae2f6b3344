"""`dunlin certs`: a private CA for one cluster, and a certificate for each of its processes."""

import argparse
from pathlib import Path

from cli.common.errors import USAGE, CliError
from cli.common.options import Subparsers, whole_number
from dunlin.auth.certificates import (
    ANY_NAME,
    CA_DAYS,
    LEAF_DAYS,
    ROLES,
    CertificateError,
    CertificateRequest,
    identity_names,
    issue_certificate,
    make_ca,
)
from dunlin.runtime.extras import missing_package_text

_INIT = """\
Make a private certificate authority in DIR: ca.pem, for all processes and clients, and ca-key.pem, which stays there.

example:
  dunlin certs init ./ca
"""
_ISSUE = """\
Issue a certificate from the CA in DIR. Its directory (ca.pem, cert.pem, key.pem) is what --tls-dir of its holder names.
A service takes a certificate of its own role and --name; one for '*' serves every process of the role. Clients (the
command line, the SDK) have the role `client`. --host is for clients that check it: those of HTTPS and of etcd.

examples:
  dunlin certs issue ./ca --role instance --name instance-a
  dunlin certs issue ./ca --role dispatcher --name dispatcher-0 --host 10.0.0.1 --host llm.example.org
  dunlin certs issue ./ca --role client --name alice --out ~/.dunlin-tls
"""


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand and its own."""
    parser = subparsers.add_parser(
        "certs", help="make certificates", description="A private CA, and certificates for the cluster's processes."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_init(commands)
    _add_issue(commands)


def _add_init(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "init", help="make a CA", description=_INIT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the CA is to lie")
    _add_common(parser, CA_DAYS)
    parser.set_defaults(run=run_init)


def _add_issue(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "issue", help="issue a certificate", description=_ISSUE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where the CA lies")
    parser.add_argument("--role", required=True, choices=ROLES, metavar="ROLE", help=", ".join(ROLES))
    parser.add_argument("--name", required=True, metavar="NAME", help="the holder's --name, or '*' for any of the role")
    parser.add_argument("--host", action="append", default=[], metavar="HOST", help="name or address (repeatable)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write it (default: below the CA's, by name)")
    _add_common(parser, LEAF_DAYS)
    parser.set_defaults(run=run_issue)


def _add_common(parser: argparse.ArgumentParser, days: int) -> None:
    parser.add_argument(
        "--days", type=whole_number(1, 36_500), default=days, metavar="N", help=f"how long it holds (default: {days})"
    )
    parser.add_argument("--force", action="store_true", help="replace what is there")


def run_init(arguments: argparse.Namespace) -> int:
    """Make the CA."""
    try:
        make_ca(arguments.directory, arguments.force, arguments.days)
    except (CertificateError, ModuleNotFoundError) as error:
        raise _cli_error(error) from None
    print(f"{arguments.directory}: a CA; keep its ca-key.pem to yourself")
    return 0


def run_issue(arguments: argparse.Namespace) -> int:
    """Issue the certificate."""
    leaf = CertificateRequest(arguments.role, arguments.name, tuple(arguments.host), arguments.days)
    try:
        label = identity_names(leaf.role, leaf.name)[1].partition(".")[0]
        out = arguments.out or arguments.directory / (f"any-{leaf.role}" if leaf.name == ANY_NAME else label)
        issue_certificate(arguments.directory, out, leaf, arguments.force)
    except (CertificateError, ModuleNotFoundError) as error:
        raise _cli_error(error) from None
    holder = f"any {leaf.role}" if leaf.name == ANY_NAME else f"the {leaf.role} {leaf.name}"
    print(f"{out}: a certificate of {holder}, for {leaf.days} days")
    return 0


def _cli_error(error: Exception) -> CliError:
    if isinstance(error, ModuleNotFoundError):
        return CliError(missing_package_text(error.name), USAGE)
    return CliError(str(error), USAGE)
