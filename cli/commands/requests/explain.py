"""`dunlin explain REQUEST`: the decisions about a request: each with its process and its reason."""

import argparse
from typing import TYPE_CHECKING

from cli.common.cluster import connect
from cli.common.errors import USAGE, CliError
from cli.common.options import Subparsers, add_cluster_options, add_json
from cli.common.output import as_json, table
from dunlin.messages.fleet import Explanation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dunlin.telemetry.decisions import DecisionRecord

_DESCRIPTION = """\
Tell the story of one request from the decisions that the monitor recorded: running, finished or failed over. Each
line has the seconds since the request came, what was decided, and the figures that were compared; what they mean stands
below. The request's name is what `dunlin generate` prints, and `id` in the answers of the HTTP door.

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
    from dunlin.telemetry.explain import explain, request_outcome, until_request_end

    request: str = arguments.request
    try:
        explain((), request)
    except ValueError as error:
        raise CliError(str(error), USAGE) from None
    with connect(arguments) as client:
        records = until_request_end(decode_records(client.explain(request)), request)
    lines = explain(records, request)
    if not lines:
        raise CliError(
            f"nothing is recorded about {request}: check its name (dunlin generate prints it); the oldest "
            "records are dropped when there are many"
        )
    ended = request_outcome(records, request)
    if arguments.json:
        print(as_json({"request": request, "story": lines, "outcome": ended, "records": records}))
    else:
        print(render(lines, ended, records))
    return 0


def render(lines: "Sequence[str]", ended: str, records: "Sequence[DecisionRecord]") -> str:
    """The story, its end, and a legend of the figures."""
    from dunlin.telemetry.figure_legend import figure_meanings

    legend = table(("figure", "meaning"), figure_meanings(record.message for record in records))
    return "\n".join([*lines, "", f"in short: {ended}", "", legend])


def decode_records(explanation: Explanation) -> "list[DecisionRecord]":
    """The recorded messages, decoded."""
    from dunlin.telemetry.decisions import DecisionRecord
    from dunlin.wire.codec import decode

    return [DecisionRecord(one.at_s, one.sender, one.to, decode(one.kind, one.payload)) for one in explanation.reasons]
