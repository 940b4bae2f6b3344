"""`dunlin serve ROLE`: one service in the foreground, for clusters of several nodes."""

import argparse
import importlib
from collections.abc import Callable

from cli.common.errors import USAGE, CliError
from cli.common.options import Subparsers
from dunlin.runtime.extras import missing_package_text

ROLES = ("dispatcher", "instance", "kvstore", "monitor", "global_manager")

_DESCRIPTION = """\
Start one service in the foreground. Services find each other through etcd: give each the same --etcd.
What a role takes: dunlin serve ROLE --help

examples:
  dunlin serve monitor --name monitor-0 --listen 10.0.0.1:7000 --etcd 10.0.0.1:2379
  dunlin serve instance --name instance-a --listen 10.0.0.2:0 --etcd 10.0.0.1:2379 --model /models/llama
"""


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand. What follows the role is the role's own."""
    parser = subparsers.add_parser(
        "serve",
        help="start one service, for several nodes",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("role", choices=ROLES, metavar="ROLE", help=", ".join(ROLES))
    parser.add_argument("options", nargs=argparse.REMAINDER, metavar="…", help="options of the role")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Hand over to the role's own main."""
    try:
        module = importlib.import_module(f"services.{arguments.role}.__main__")
    except ModuleNotFoundError as error:
        raise CliError(missing_package_text(error.name), USAGE) from None
    main: Callable[[list[str]], int | None] = module.main
    return main(arguments.options) or 0
