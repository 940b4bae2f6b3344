"""Starts a global manager: `python -m services.global_manager --help`."""

import argparse
import sys
from collections.abc import Sequence

from dunlin.config.common import ClusterConfig
from dunlin.config.errors import ConfigError
from dunlin.config.flags import Shorthands, add_config_flags, read_settings
from dunlin.config.resolve import Settings
from dunlin.runtime.arguments import CommandParser
from dunlin.wire.service.options import add_service_flags, service_options
from dunlin.wire.service.process import run_service
from services.global_manager.config import GlobalManagerConfig
from services.global_manager.group_profile import read_times
from services.global_manager.server import serve

TABLES = {"cluster": ClusterConfig, "manager": GlobalManagerConfig}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    flags = CommandParser(
        prog="dunlin serve global_manager",
        description="Groups the instances; the one of several that is elected leads.",
    )
    add_service_flags(flags)
    add_config_flags(flags)
    short = Shorthands(TABLES)
    short.add(flags, "--preset", "cluster.preset", "which policies decide")
    short.add(flags, "--group-policy", "manager.groups.policy", "another way to group than the preset's; default: its")
    text = "another way to move work than the preset's; default: its"
    short.add(flags, "--rebalance-policy", "manager.rebalance.policy", text)
    text = "of the instances, so many compute prompts where the preset splits work"
    short.add(flags, "--prefill-share", "manager.groups.prefill_share", text, metavar="X")
    return flags


def settings_of(arguments: argparse.Namespace) -> Settings:
    """What holds for this process. Raises ConfigError."""
    return read_settings(arguments, TABLES)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; returns the exit code."""
    flags = parser()
    arguments = flags.parse_args(argv)
    options = service_options("global_manager", arguments)
    try:
        settings = settings_of(arguments)
        config = settings.configure("manager", GlobalManagerConfig)
        model = settings.configure("cluster", ClusterConfig).model
        times = read_times(config.groups.profile, model) if config.groups.profile else None
    except ConfigError as error:
        flags.error(str(error))
    return run_service(options, lambda: serve(options, config, times), settings.told())


if __name__ == "__main__":
    sys.exit(main())
