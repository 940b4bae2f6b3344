"""Starts a monitor: `python -m services.monitor --help`."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from dunlin.config.common import ClusterConfig
from dunlin.config.errors import ConfigError
from dunlin.config.flags import Shorthands, add_config_flags, read_settings
from dunlin.config.resolve import Settings
from dunlin.runtime.arguments import CommandParser
from dunlin.wire.service.options import add_service_flags, service_options
from dunlin.wire.service.process import run_service
from services.monitor.process_config import MonitorProcessConfig
from services.monitor.server import serve

TABLES = {"cluster": ClusterConfig, "monitor": MonitorProcessConfig}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    flags = CommandParser(
        prog="dunlin serve monitor", description="Watches the fleet, publishes its views, keeps the recorded reasons."
    )
    add_service_flags(flags)
    add_config_flags(flags)
    flags.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve Prometheus metrics on this port, 0: any (default: do not)",
    )
    short = Shorthands(TABLES)
    liveness = "monitor.liveness"
    short.add(flags, "--stuck-s", f"{liveness}.stuck_s", "without progress for so long is suspect", metavar="S")
    short.add(flags, "--silent-s", f"{liveness}.silent_s", "without report for so long is suspect", metavar="S")
    short.add(flags, "--otlp", "monitor.tracing.otlp_url", "send traces to this OpenTelemetry collector", metavar="URL")
    short.add(flags, "--ring-records", "monitor.reasons.ring_records", "how many reasons to keep", metavar="N")
    return flags


def settings_of(arguments: argparse.Namespace) -> Settings:
    """What holds for this process. Raises ConfigError."""
    return read_settings(arguments, TABLES)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; returns the exit code."""
    flags = parser()
    arguments = flags.parse_args(argv)
    port = arguments.metrics_port
    if port is not None and not 0 <= port <= 65535:
        flags.error(f"--metrics-port {port}: choose one from 0 to 65535")
    try:
        settings = settings_of(arguments)
        config = settings.configure("monitor", MonitorProcessConfig)
    except ConfigError as error:
        flags.error(str(error))
    options = service_options("monitor", arguments)
    metrics = "" if port is None else f"{options.listen.rpartition(':')[0]}:{port}"
    started = partial(serve, options, config, metrics, config.tracing.otlp_url)
    return run_service(options, started, settings.told())


if __name__ == "__main__":
    sys.exit(main())
