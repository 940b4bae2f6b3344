"""Reading standard input. Knows no command."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from cli.common.errors import USAGE, CliError


def input_text() -> str:
    """All of standard input. Raises CliError: it is not UTF-8."""
    with _strict():
        return sys.stdin.read()


def input_lines() -> Iterator[str]:
    """The lines of standard input, as they come. Raises CliError: it is not UTF-8."""
    with _strict():
        yield from sys.stdin


@contextmanager
def _strict() -> Iterator[None]:
    """Whatever the locale: the C locale would let through what no message can carry."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    try:
        yield
    except UnicodeDecodeError as error:
        found = error.object[error.start : error.start + 1].hex()
        raise CliError(f"standard input is not UTF-8 ({error.reason} 0x{found}): convert it", USAGE) from None
