"""`dunlin top`: the fleet, live in the terminal."""

import argparse
import os
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from cli.commands.operate.top_view import Paint, StatusSample, render_status
from cli.common.cluster import connect
from cli.common.errors import OK
from cli.common.options import Subparsers, add_cluster_options, add_json, number
from cli.common.output import as_json
from dunlin.messages.fleet import FleetStatus

if TYPE_CHECKING:
    from dunlin.client import Client

_DESCRIPTION = """\
Watch the fleet: load and slots of each instance, tokens per second, queues, host tiers, the leader. q ends it.
Since the process started: preem: preemptions; resto: regions restored; moved: migrations; again: dispatched again.

examples:
  dunlin top
  dunlin top --once                  one picture, then end
  dunlin top --json | jq .version    one line of JSON each second
"""
_RATE_S = 0.5
"""Between the two looks that a single picture needs for its rates."""
_COLORS = {"good": "32", "warn": "33", "bad": "31;1", "dim": "2", "head": "7"}
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand."""
    parser = subparsers.add_parser(
        "top",
        help="watch the fleet live",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--once", action="store_true", help="print one picture and end")
    parser.add_argument(
        "--interval", type=number(0.1), default=1.0, metavar="S", help="seconds between pictures (default: 1)"
    )
    add_cluster_options(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Show it until told to stop."""
    with connect(arguments) as client:
        if arguments.json:
            return _print_json(client, arguments.interval, arguments.once)
        if arguments.once:
            return _print_once(client)
        if sys.stdin.isatty() and sys.stdout.isatty():
            return _watch(client, arguments.interval)
        return _print_on(client, arguments.interval)


def _print_json(client: "Client", interval_s: float, once: bool) -> int:
    if once:
        print(as_json(client.status()))
        return OK
    while True:
        print(as_json(client.status(), indent=None), flush=True)
        time.sleep(interval_s)


def _print_once(client: "Client") -> int:
    before = client.status()
    time.sleep(_RATE_S)
    print(
        "\n".join(render_status(_moment(client.status(), before, _RATE_S), _width(), _paint_for(sys.stdout.isatty())))
    )
    return OK


def _print_on(client: "Client", interval_s: float) -> int:
    """Not a terminal: one picture below the other."""
    before, looked_s = client.status(), time.monotonic()
    while True:
        time.sleep(interval_s)
        status, now_s = client.status(), time.monotonic()
        print("\n".join([*render_status(_moment(status, before, now_s - looked_s), _width()), ""]), flush=True)
        before, looked_s = status, now_s


def _watch(client: "Client", interval_s: float) -> int:
    """A terminal: always the same screen, drawn over."""
    from dunlin.client import DunlinError

    paint, before, looked_s = _paint_for(True), client.status(), time.monotonic()
    with _screen():
        lines = render_status(_moment(before, None, 1.0), _width(), paint)
        while True:
            _draw(lines)
            if _quit_within(interval_s):
                return OK
            try:
                status, now_s = client.status(), time.monotonic()
            except DunlinError as error:
                lines = [paint(f"no answer: {error}"[: _width()], "bad"), *lines[1:]]
                continue
            lines = render_status(_moment(status, before, now_s - looked_s), _width(), paint)
            before, looked_s = status, now_s


def _moment(status: FleetStatus, before: FleetStatus | None, elapsed_s: float) -> StatusSample:
    return StatusSample(status, before, elapsed_s, time.strftime("%H:%M:%S"))


def _width() -> int:
    return shutil.get_terminal_size((100, 24)).columns


def _paint_for(colored: bool) -> Paint:
    if not colored or os.environ.get("NO_COLOR"):
        return lambda text, _: text
    return lambda text, mood: f"\x1b[{_COLORS[mood]}m{text}\x1b[0m"


def _draw(lines: list[str]) -> None:
    """Over what is there, in one write, so that nothing flickers."""
    rows = shutil.get_terminal_size((100, 24)).lines
    sys.stdout.write(_HOME + "\r\n".join(line + _END_OF_LINE for line in lines[:rows]) + _REST)
    sys.stdout.flush()


def _quit_within(seconds: float) -> bool:
    """Wait that long, or until q is pressed."""
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left_s)[0] and os.read(sys.stdin.fileno(), 1) in (b"q", b"Q", b""):
            return True
    return False


@contextmanager
def _screen() -> Iterator[None]:
    """A screen of our own and keys as they are pressed; the terminal as it was afterwards, whatever happens."""
    kept = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        sys.stdout.write(_ENTER)
        with suppress(KeyboardInterrupt):
            yield
    finally:
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, kept)
