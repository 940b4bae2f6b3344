"""Starts a global manager: `python -m services.global_manager --help`."""

import argparse
import sys
from collections.abc import Sequence

from dunlin.policies.group import GROUP_POLICIES
from dunlin.wire.options import add_service_flags, service_options
from dunlin.wire.process import run_service
from services.global_manager.config import GlobalManagerConfig
from services.global_manager.server import serve


def parser() -> argparse.ArgumentParser:
    """The command line."""
    flags = argparse.ArgumentParser(
        prog="dunlin serve global_manager",
        description="Groups the instances; the one of several that is elected leads.",
    )
    add_service_flags(flags)
    flags.add_argument("--group-policy", default="local_groups", choices=tuple(GROUP_POLICIES), help="how to group")
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; returns the exit code."""
    arguments = parser().parse_args(argv)
    options = service_options("global_manager", arguments)
    config = GlobalManagerConfig(policy=arguments.group_policy)
    return run_service(options, lambda: serve(options, config))


if __name__ == "__main__":
    sys.exit(main())
