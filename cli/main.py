"""`dunlin`: finds the subcommand, runs it, and turns what goes wrong into one line and an exit code."""

import argparse
import os
import sys
from collections.abc import Sequence

from cli.commands.measure import bench, profile, replay
from cli.commands.operate import config, drain, health, serve, status, top, up
from cli.commands.requests import batch, chat, explain, generate
from cli.commands.setup import certs, keys, model_init, version
from cli.commands.simulate import sim
from cli.common.errors import INTERRUPTED, CliError
from dunlin.runtime.arguments import CommandParser

COMMANDS = (
    *(up, generate, chat, batch, status, top, explain, drain),
    *(replay, bench, profile, model_init, sim, serve, config, health, certs, keys, version),
)

_EPILOG = """\
a first look:
  dunlin up --instances 3              start a cluster here, with a small built-in model
  dunlin generate "Once upon a time"   (in another terminal) have it write
  dunlin status                        see every process

exit codes: 0 done; 1 the cluster could not do it; 2 wrong arguments or files; 3 no cluster answers; 130 interrupted
"""


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = CommandParser(
        prog="dunlin",
        description="Serve large language models on a cluster of instances.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code. Raises SystemExit only for argparse's own help and errors."""
    arguments = make_parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except CliError as error:
        print(f"dunlin: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output went away (`| head`); what is still buffered must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
