"""`dunlin explain REQUEST`: what was decided about a request, by whom and why."""

import argparse
from typing import TYPE_CHECKING

from dunlin.cli.cluster import connected
from dunlin.cli.errors import USAGE, CliError
from dunlin.cli.options import Subparsers, add_cluster_options, add_json
from dunlin.cli.output import as_json
from dunlin.messages.fleet import Explanation

if TYPE_CHECKING:
    from dunlin.telemetry.explain import Record

_DESCRIPTION = """\
Tell the story of one request from the decisions that the monitor recorded: running, finished or failed over. The
request's name is what `dunlin generate` prints, and `id` in the answers of the HTTP door.

example:
  dunlin explain req-2a-7
"""


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand."""
    parser = subparsers.add_parser(
        "explain",
        help="why a request went the way it did",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("request", metavar="REQUEST", help="its name, req-…")
    add_cluster_options(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print it."""
    from dunlin.telemetry.explain import explain

    try:
        explain((), arguments.request)
    except ValueError as error:
        raise CliError(str(error), USAGE) from None
    with connected(arguments) as client:
        records = recorded(client.explain(arguments.request))
    lines = explain(records, arguments.request)
    if not lines:
        raise CliError(
            f"nothing is recorded about {arguments.request}: check its name (dunlin generate prints it); the oldest "
            "records are dropped when there are many"
        )
    print(
        as_json({"request": arguments.request, "story": lines, "records": records})
        if arguments.json
        else "\n".join(lines)
    )
    return 0


def recorded(told: Explanation) -> "list[Record]":
    """The recorded messages, decoded."""
    from dunlin.telemetry.explain import Record
    from dunlin.wire.codec import decode

    return [Record(one.at_s, one.sender, one.to, decode(one.kind, one.payload)) for one in told.reasons]
