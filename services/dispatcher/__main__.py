"""`python -m services.dispatcher`: command line to configuration, then run."""

import argparse
import sys
from collections.abc import Sequence

from dunlin.auth.web_origins import origin_argument
from dunlin.config.adapters import split_adapters
from dunlin.config.common import ClusterConfig
from dunlin.config.errors import ConfigError
from dunlin.config.flags import Shorthands, add_config_flags, read_settings
from dunlin.config.resolve import Settings
from dunlin.runtime.arguments import CommandParser
from dunlin.wire.service.options import add_service_flags, listen_argument, service_options
from dunlin.wire.service.process import run_service
from services.dispatcher.process_config import DispatcherProcessConfig
from services.dispatcher.server import Dispatcher, DoorOptions

TABLES = {"cluster": ClusterConfig, "dispatcher": DispatcherProcessConfig}


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = CommandParser(
        prog="dunlin serve dispatcher", description="Take requests over gRPC (--listen) and HTTP (--http)."
    )
    add_service_flags(made)
    add_config_flags(made)
    made.add_argument("--http", default="127.0.0.1:8000", type=_host_port, metavar="HOST:PORT", help="port 0: any")
    short = Shorthands(TABLES)
    _add_requests(made, short)
    _add_doors(made, short)
    return made


def _add_requests(made: argparse.ArgumentParser, short: Shorthands) -> None:
    short.add(made, "--model", "cluster.model", "for its tokenizer and limits", metavar="DIR")
    text = "what clients call it (default: from --model)"
    short.add(made, "--model-name", "cluster.model_name", text, metavar="NAME")
    text = "a LoRA adapter that requests may name as their model (may be repeated)"
    short.add(made, "--lora", "cluster.lora", text, several=True, metavar="NAME=DIR")
    short.add(made, "--preset", "cluster.preset", "which policies decide")
    text = "another way to choose an instance than the preset's; default: its"
    short.add(made, "--policy", "dispatcher.placement.policy", text)
    short.add(made, "--max-queued", "dispatcher.admission.max_queued", "requests that may wait here", metavar="N")
    text = "refuse at once what would wait longer for its turn"
    short.add(made, "--max-wait-s", "dispatcher.admission.max_wait_s", text, metavar="S")
    text = "requests that may wait at an instance"
    short.add(made, "--max-waiting", "dispatcher.placement.max_waiting_per_instance", text, metavar="N")
    text = "a cut request with an idempotency key runs on so long"
    short.add(made, "--grace-s", "dispatcher.idempotency.grace_s", text, metavar="S")
    text = "its answer is given again to the same key so long"
    short.add(made, "--replay-s", "dispatcher.idempotency.replay_s", text, metavar="S")


def _add_doors(made: argparse.ArgumentParser, short: Shorthands) -> None:
    text = "write a JSON line for each call there; -: to standard output"
    short.add(made, "--access-log", "dispatcher.access_log.path", text, metavar="FILE")
    text = "of a file, then a new one; four older are kept"
    short.add(made, "--access-log-mib", "dispatcher.access_log.max_bytes", text, unit=1 << 20, metavar="MIB")
    text = "API keys and quotas of tenants, see `dunlin keys`"
    short.add(made, "--keys", "dispatcher.tenants.keys_file", text, metavar="FILE")
    text = "web pages that may ask; *: all"
    short.add(made, "--cors", "dispatcher.http.origins", text, several=True, type=origin_argument, metavar="ORIGIN")
    text = "of HTTP; one more gets 503"
    short.add(made, "--max-connections", "dispatcher.http.max_connections", text, metavar="N")
    for name, text in (
        ("header", "for a request's head, or a TLS handshake"),
        ("body", "for a request's body"),
        ("idle", "until a connection without a request is closed"),
        ("write", "until an answer that is not read is cut"),
    ):
        short.add(made, f"--{name}-timeout-s", f"dispatcher.http.{name}_timeout_s", text, metavar="S")


def settings_of(arguments: argparse.Namespace) -> Settings:
    """What holds for this process. Raises ConfigError."""
    return read_settings(arguments, TABLES)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run to the end; the exit code."""
    given = parser().parse_args(arguments)
    options = service_options("dispatcher", given)
    try:
        settings = settings_of(given)
        config = settings.configure("dispatcher", DispatcherProcessConfig)
    except ConfigError as error:
        parser().error(str(error))
    host, port = given.http
    adapters = split_adapters(settings["cluster.lora"])
    doors = DoorOptions(settings["cluster.model"], host, port, settings["cluster.model_name"], adapters)
    return run_service(options, Dispatcher(options, doors, config).run, settings.told())


def _host_port(text: str) -> tuple[str, int]:
    host, _, port = listen_argument(text).rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    sys.exit(main())
