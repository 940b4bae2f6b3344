"""Starts a monitor: `python -m services.monitor --help`."""

import argparse
import sys
from collections.abc import Sequence

from dunlin.arguments import Parser
from dunlin.wire.options import add_service_flags, service_options
from dunlin.wire.process import run_service
from services.monitor.config import MonitorConfig
from services.monitor.server import serve


def parser() -> argparse.ArgumentParser:
    """The command line."""
    flags = Parser(
        prog="dunlin serve monitor", description="Watches the fleet, publishes its views, keeps the recorded reasons."
    )
    add_service_flags(flags)
    flags.add_argument(
        "--metrics-port",
        type=int,
        metavar="PORT",
        help="serve Prometheus metrics on this port, 0: any (default: do not)",
    )
    flags.add_argument(
        "--stuck-s", type=float, default=3.0, help="without progress for so long is suspect (default: 3)"
    )
    flags.add_argument("--silent-s", type=float, default=3.0, help="without report for so long is suspect (default: 3)")
    flags.add_argument(
        "--otlp",
        default="",
        metavar="URL",
        help="send a trace of each request to this OpenTelemetry collector, http(s)://HOST:4317 (default: do not)",
    )
    flags.add_argument("--ring-records", type=int, default=20_000, help="how many reasons to keep (default: 20000)")
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; returns the exit code."""
    flags = parser()
    arguments = flags.parse_args(argv)
    port = arguments.metrics_port
    if port is not None and not 0 <= port <= 65535:
        flags.error(f"--metrics-port {port}: choose one from 0 to 65535")
    try:
        config = MonitorConfig(
            stuck_s=arguments.stuck_s, silent_s=arguments.silent_s, ring_records=arguments.ring_records
        )
    except ValueError as error:
        flags.error(str(error))
    options = service_options("monitor", arguments)
    metrics = "" if port is None else f"{options.listen.rpartition(':')[0]}:{port}"
    return run_service(options, lambda: serve(options, config, metrics, arguments.otlp))


if __name__ == "__main__":
    sys.exit(main())
