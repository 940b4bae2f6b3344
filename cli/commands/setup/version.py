"""`dunlin version`."""

import argparse

import dunlin
from cli.common.options import Subparsers


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand."""
    parser = subparsers.add_parser("version", help="print the version", description="Print the version of dunlin.")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print it."""
    print(dunlin.__version__)
    return 0
