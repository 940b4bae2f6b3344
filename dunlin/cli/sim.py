"""`dunlin sim`: the cores that serve, in virtual time."""

import argparse

from dunlin.cli import sim_campaign
from dunlin.cli.errors import USAGE, CliError
from dunlin.cli.options import Subparsers

_DESCRIPTION = """\
Run the cores that serve in virtual time, against models of engines, networks, etcd and clients.

examples:
  dunlin sim --campaign --seeds 1000            random faults; exit code 1 if an invariant breaks
  dunlin sim --campaign --seeds 1 --first-seed 7   one seed again, exactly
  dunlin sim --zoo                              planted bugs, each of which must be caught
"""


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand."""
    parser = subparsers.add_parser(
        "sim",
        help="simulate clusters, and their failures",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sim_campaign.add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """What was asked for."""
    if arguments.campaign:
        return sim_campaign.run_campaign(arguments)
    if arguments.zoo:
        return sim_campaign.run_zoo(arguments)
    raise CliError("say what to simulate: --campaign or --zoo", USAGE)
