"""Starts a kvstore: `python -m services.kvstore --help`."""

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
from services.kvstore.config import KvstoreConfig
from services.kvstore.server import serve

TABLES = {"cluster": ClusterConfig, "kvstore": KvstoreConfig}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    flags = CommandParser(
        prog="dunlin serve kvstore", description="The host-memory tier of one node's KV pool, and its catalog."
    )
    add_service_flags(flags)
    add_config_flags(flags)
    _add_shorthands(flags, Shorthands(TABLES))
    return flags


def _add_shorthands(flags: argparse.ArgumentParser, short: Shorthands) -> None:
    text = "shared memory to keep regions in, filled at start"
    for flag in ("--tier-bytes", "--host-tier-bytes"):
        short.add(flags, flag, "kvstore.tier.capacity_bytes", text, dest="tier_bytes", metavar="N")
    short.add(flags, "--alignment-bytes", "kvstore.tier.alignment_bytes", "of each region")
    text = "how long regions outlive their writer's stream"
    short.add(flags, "--orphan-grace-s", "kvstore.tier.orphan_grace_s", text, metavar="S")
    text = "keep a second copy of everything at another node's kvstore"
    short.switch(flags, "--replicate", "kvstore.exchange.replicate", text)
    text = (
        "how regions go to other nodes: nixl needs the extra `nodes`, and is neither encrypted nor authenticated; "
        "auto takes it where both sides have it and RDMA, and no --tls-dir is given"
    )
    short.add(flags, "--transport", "kvstore.exchange.transport", text)


def settings_of(arguments: argparse.Namespace) -> Settings:
    """What holds for this process. Raises ConfigError."""
    return read_settings(arguments, TABLES)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; returns the exit code."""
    flags = parser()
    arguments = flags.parse_args(argv)
    try:
        settings = settings_of(arguments)
        config = settings.configure("kvstore", KvstoreConfig)
    except ConfigError as error:
        flags.error(str(error))
    options = service_options("kvstore", arguments)
    return run_service(options, lambda: serve(options, config), settings.told())


if __name__ == "__main__":
    sys.exit(main())
