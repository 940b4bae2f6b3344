"""`dunlin bench path`: what the path of a token costs between engine and client."""

import argparse
import dataclasses

from cli.common.errors import OK, USAGE, CliError
from cli.common.options import Subparsers, add_json, whole_number
from cli.common.output import as_json, table
from dunlin.runtime.extras import missing_package_text

_PATH = """\
Measure the path of a token: CPU time from the engine's answer to the dispatcher's client, and back for the next step,
through both cores and a real gRPC stream, with an engine that only answers; and the milliseconds that the path adds to
the first token. Other load on the machine makes it worse: look at the best of several runs.

examples:
  dunlin bench path
  dunlin bench path --running 1,16,64,128 --json
"""


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand and its own."""
    parser = subparsers.add_parser("bench", help="measure this installation", description="Measure this installation.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    path = _command(commands, "path", "CPU time per token between dispatcher and instance", _PATH)
    path.add_argument(
        "--running", type=_counts, default=(1, 16, 64), metavar="N,N,…", help="running sequences (default: 1,16,64)"
    )
    path.add_argument(
        "--tokens",
        type=whole_number(100),
        default=20_000,
        metavar="N",
        help="tokens measured for each (default: 20000)",
    )
    path.set_defaults(run=run_path)


def _command(
    commands: "Subparsers[argparse.ArgumentParser]", name: str, text: str, description: str
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=text, description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_json(parser)
    return parser


def _counts(text: str) -> tuple[int, ...]:
    return tuple(whole_number(1, 128)(part) for part in text.split(","))


def run_path(arguments: argparse.Namespace) -> int:
    """Measure and print."""
    try:
        from cli.commands.measure.path_cost import measure
    except ModuleNotFoundError as error:
        raise CliError(missing_package_text(error.name), USAGE) from None
    costs = measure(arguments.running, arguments.tokens)
    if arguments.json:
        print(as_json(costs))
        return OK
    header = ("running", "tokens", "path µs/token", "engine µs/token", "first token ms", "steps/s")
    rows = [[_text(getattr(one, field.name)) for field in dataclasses.fields(one)] for one in costs]
    print(table(header, rows))
    return OK


def _text(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) and value < 100 else f"{value:.0f}" if value is not None else "-"
