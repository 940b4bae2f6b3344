"""`dunlin generate`: one text from the command line, printed as it comes."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from cli.common.cluster import connect
from cli.common.errors import OK, USAGE, CliError
from cli.common.input import input_text
from cli.common.options import Subparsers, add_cluster_options, add_json, add_sampling, number, whole_number
from cli.common.output import as_json

if TYPE_CHECKING:
    from dunlin.client import Client

_DESCRIPTION = """\
Generate text. The prompt is the argument, or standard input when it is `-`. The request's name goes to standard error:
`dunlin explain NAME` tells what became of it.

examples:
  dunlin generate "Once upon a time" --max-tokens 64
  dunlin generate --chat "What is a dunlin?" --temperature 0
  dunlin generate --tokens 5,17,99 --max-tokens 8 --json
"""


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand."""
    parser = subparsers.add_parser(
        "generate", help="generate text", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("prompt", nargs="?", metavar="PROMPT", help="the text to go on with (-: standard input)")
    what.add_argument("--chat", metavar="TEXT", help="say this to the model in a chat")
    what.add_argument("--tokens", type=_ids, metavar="ID,ID,…", help="token ids to go on with")
    _add_sampling(parser)
    add_cluster_options(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-tokens",
        type=whole_number(1),
        metavar="N",
        help="at most so many tokens (default: what the context leaves)",
    )
    add_sampling(parser)
    parser.add_argument(
        "--top-k", type=whole_number(0), metavar="K", help="draw from the K likeliest tokens (0: from all)"
    )
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text (repeatable)")
    parser.add_argument("--ignore-eos", action="store_true", help="go on after the end token, up to --max-tokens")
    parser.add_argument("--timeout", type=number(0, above=True), metavar="S", help="give up after so many seconds")


def _ids(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of token ids like 5,17,99") from None


def run(arguments: argparse.Namespace) -> int:
    """Print the text; exit code 1 when it ended in an error."""
    request = _request(arguments)
    with connect(arguments) as client:
        return _whole(client, request) if arguments.json else _streamed(client, request)


def _request(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("model", "max_tokens", "temperature", "top_p", "top_k", "seed", "ignore_eos")
    given = {name: getattr(arguments, name) for name in names}
    given |= {"stop": tuple(arguments.stop), "timeout_s": arguments.timeout}
    if arguments.chat is not None:
        return given | {"messages": [("user", arguments.chat)]}
    if arguments.tokens is not None:
        return given | {"prompt": arguments.tokens}
    prompt = input_text() if arguments.prompt == "-" else arguments.prompt
    if not prompt:
        raise CliError("the prompt is empty; give some text, or - to read standard input", USAGE)
    return given | {"prompt": prompt}


def _streamed(client: "Client", request: dict[str, Any]) -> int:
    named = ""
    for event in client.stream(**request):
        if event.request and not named:
            named = event.request
            print(f"request {named}", file=sys.stderr)
        print(event.text, end="", flush=True)
    print()
    return OK


def _whole(client: "Client", request: dict[str, Any]) -> int:
    chat = request.pop("messages", None)
    done = client.generate(**request) if chat is None else client.chat(chat, **request)
    print(as_json(done))
    return OK
