"""`dunlin chat`: a conversation in the terminal, or line by line out of a pipe."""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cli.common.cluster import connect
from cli.common.errors import FAILED, OK, CliError
from cli.common.input import input_lines
from cli.common.options import Subparsers, add_cluster_options, add_sampling, whole_number

if TYPE_CHECKING:
    from dunlin.client import Client

_DESCRIPTION = """\
Talk with the model. Each line is a turn; its answer comes as it is made. Ctrl-C stops an answer, not the program;
Ctrl-D or /exit ends it. Lines from a pipe are turns too.

  /system TEXT   begin again, with this as the system's message (without TEXT: none)
  /reset         begin again
  /exit          end

examples:
  dunlin chat
  dunlin chat --system "Answer in one sentence." --temperature 0.2
  printf 'Hello\\nWho are you?\\n' | dunlin chat
"""
_MOST_TOKENS = 512
"""Of an answer for which no limit was given: a model may go on until its context is full."""
_HELP = "commands: /system TEXT, /reset, /exit"


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand."""
    parser = subparsers.add_parser(
        "chat",
        help="talk with the model",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--system", metavar="TEXT", help="the system's message")
    parser.add_argument(
        "--max-tokens", type=whole_number(1), metavar="N", help=f"of one answer (default: {_MOST_TOKENS})"
    )
    add_sampling(parser)
    add_cluster_options(parser)
    parser.set_defaults(run=run)


@dataclass(slots=True)
class ChatHistory:
    """The turns so far. A turn that was not answered is not kept."""

    system: str = ""
    turns: list[tuple[str, str]] = field(default_factory=list)

    def messages_with(self, text: str) -> list[tuple[str, str]]:
        """The messages of a request with one more turn of the user."""
        first = [("system", self.system)] if self.system else []
        return [*first, *self.turns, ("user", text)]

    def add_answer(self, text: str, answer: str) -> None:
        """Both spoke."""
        self.turns += [("user", text), ("assistant", answer)]

    def run_command(self, line: str) -> str | None:
        """Obey a line that begins with a slash; what to say to that, None: end."""
        name, _, rest = line.partition(" ")
        match name:
            case "/exit" | "/quit":
                return None
            case "/reset":
                self.turns.clear()
                return "begun again"
            case "/system":
                self.system = rest.strip()
                self.turns.clear()
                return "begun again, " + (
                    f"the system says: {self.system}" if self.system else "without a system's message"
                )
            case _:
                return f"no such command: {name}; {_HELP}"


def run(arguments: argparse.Namespace) -> int:
    """Talk until the end of the input."""
    options = {name: getattr(arguments, name) for name in ("model", "max_tokens", "temperature", "top_p", "seed")}
    conversation = ChatHistory(arguments.system or "")
    is_terminal = sys.stdin.isatty()
    with connect(arguments) as client:
        if is_terminal:
            print(f"{client.info().model}; {_HELP}", file=sys.stderr)
        return chat_lines(client, conversation, options, _lines(is_terminal), keep_on=is_terminal)


def chat_lines(
    client: "Client", conversation: ChatHistory, options: dict[str, Any], lines: Iterator[str], keep_on: bool
) -> int:
    """Answer line by line. `keep_on`: an answer that fails ends itself alone; else it ends all, with exit code 1."""
    from dunlin.client import DunlinError

    for line in lines:
        text = line.strip()
        if text.startswith("/"):
            reply = conversation.run_command(text)
            if reply is None:
                return OK
            print(reply, file=sys.stderr)
        elif text:
            try:
                conversation.add_answer(text, _answer(client, conversation.messages_with(text), options))
            except KeyboardInterrupt:
                print("\n(stopped)", file=sys.stderr)
            except DunlinError as error:
                if not keep_on:
                    raise CliError(str(error), FAILED) from None
                print(f"\n({error})", file=sys.stderr)
    return OK


def _answer(client: "Client", messages: list[tuple[str, str]], options: dict[str, Any]) -> str:
    """Print the answer as it comes. Leaving the stream cancels it.

    The limit that was not given is kept here, not sent: sent, it could be more than the context or a quota leaves.
    """
    said, count, is_cut = "", 0, False
    stream = client.stream(messages=messages, **options)
    try:
        for event in stream:
            said += event.text
            print(event.text, end="", flush=True)
            count += len(event.tokens)
            is_cut = not options["max_tokens"] and count >= _MOST_TOKENS
            if is_cut:
                break
    finally:
        stream.close()
    print()
    if is_cut:
        print(f"(stopped after {count} tokens; --max-tokens N sets another limit)", file=sys.stderr)
    return said


def _lines(is_terminal: bool) -> Iterator[str]:
    if not is_terminal:
        yield from input_lines()
        return
    import readline  # noqa: F401  # history and editing of `input`

    while True:
        try:
            yield input("> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("\n(/exit or Ctrl-D ends)", file=sys.stderr)
