"""`python -m services.dispatcher`: command line to configuration, then run."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dunlin.arguments import Parser
from dunlin.origins import origin
from dunlin.policies.dispatch import POLICIES
from dunlin.policies.presets import DEFAULT_PRESET, PRESETS
from dunlin.wire.options import add_service_flags, listen_address, service_options
from dunlin.wire.process import run_service
from services.dispatcher.access_log import AccessLogConfig
from services.dispatcher.config import of_preset
from services.dispatcher.http_config import HttpConfig
from services.dispatcher.server import Dispatcher, DoorOptions


def parser() -> argparse.ArgumentParser:
    """The flags."""
    made = Parser(prog="dunlin serve dispatcher", description="Take requests over gRPC (--listen) and HTTP (--http).")
    add_service_flags(made)
    made.add_argument("--http", default="127.0.0.1:8000", type=_host_port, metavar="HOST:PORT", help="port 0: any")
    made.add_argument("--model", default="builtin:tiny", metavar="DIR", help="for its tokenizer and limits")
    made.add_argument("--model-name", default="", metavar="NAME", help="what clients call it (default: from --model)")
    made.add_argument("--preset", default=DEFAULT_PRESET, choices=tuple(PRESETS), help="which policies decide")
    made.add_argument("--policy", choices=tuple(POLICIES), help="another way to choose an instance than the preset's")
    made.add_argument("--max-queued", default=1024, type=int, metavar="N", help="requests that may wait here")
    made.add_argument(
        "--max-wait-s", default=30.0, type=float, metavar="S", help="refuse at once what would wait longer for its turn"
    )
    made.add_argument("--max-waiting", default=16, type=int, metavar="N", help="requests that may wait at an instance")
    made.add_argument(
        "--grace-s", default=30.0, type=float, metavar="S", help="a cut request with an idempotency key runs on so long"
    )
    made.add_argument(
        "--replay-s", default=60.0, type=float, metavar="S", help="its answer is given again to the same key so long"
    )
    made.add_argument(
        "--access-log", default="", metavar="FILE", help="write a JSON line for each call there; -: to standard output"
    )
    made.add_argument(
        "--access-log-mib", default=64, type=int, metavar="MIB", help="of a file, then a new one; four older are kept"
    )
    made.add_argument("--keys", type=Path, metavar="FILE", help="API keys and quotas of tenants, see `dunlin keys`")
    _add_http(made)
    return made


def _add_http(made: argparse.ArgumentParser) -> None:
    usual = HttpConfig()
    made.add_argument(
        "--cors", action="append", default=[], type=origin, metavar="ORIGIN", help="web pages that may ask; *: all"
    )
    made.add_argument(
        "--max-connections", default=usual.most_connections, type=int, metavar="N", help="of HTTP; one more gets 503"
    )
    made.add_argument(
        "--header-timeout-s",
        default=usual.header_timeout_s,
        type=float,
        metavar="S",
        help="for a request's head, or a TLS handshake",
    )
    made.add_argument(
        "--body-timeout-s", default=usual.body_timeout_s, type=float, metavar="S", help="for a request's body"
    )
    made.add_argument(
        "--idle-timeout-s",
        default=usual.idle_timeout_s,
        type=float,
        metavar="S",
        help="until a connection without a request is closed",
    )
    made.add_argument(
        "--write-timeout-s",
        default=usual.write_timeout_s,
        type=float,
        metavar="S",
        help="until an answer that is not read is cut",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run to the end; the exit code."""
    given = parser().parse_args(arguments)
    options = service_options("dispatcher", given)
    host, port = given.http
    try:
        log = AccessLogConfig(given.access_log, given.access_log_mib << 20) if given.access_log else None
        doors = DoorOptions(given.model, host, port, given.model_name, given.keys, log, _http_config(given))
        names = ("max_queued", "max_waiting", "max_wait_s", "grace_s", "replay_s")
        settings = {name: getattr(given, name) for name in names}
        config = of_preset(given.preset, **settings, **({"policy": given.policy} if given.policy else {}))
    except ValueError as error:
        parser().error(str(error))
    return run_service(options, Dispatcher(options, doors, config).run)


def _http_config(given: argparse.Namespace) -> HttpConfig:
    return HttpConfig(
        most_connections=given.max_connections,
        header_timeout_s=given.header_timeout_s,
        body_timeout_s=given.body_timeout_s,
        idle_timeout_s=given.idle_timeout_s,
        write_timeout_s=given.write_timeout_s,
        origins=tuple(given.cors),
    )


def _host_port(text: str) -> tuple[str, int]:
    host, _, port = listen_address(text).rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    sys.exit(main())
