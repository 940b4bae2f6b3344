"""The command lines' parser: argparse, whose complaints are short and name what was probably meant."""

import argparse
import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

_CHOICE = re.compile(r"(?P<before>.*invalid choice: )'?(?P<given>[^']*?)'? \(choose from (?P<choices>.*)\)", re.DOTALL)


class DefaultsHelpFormatter(argparse.HelpFormatter):
    """Ends the help of each option with its default, where it has one and the text does not tell it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        is_told = "default" in text or action.default in (None, "", False, argparse.SUPPRESS, [])
        return text if is_told else f"{text} (default: %(default)s)".lstrip()


class CommandParser(argparse.ArgumentParser):
    """An ArgumentParser that refuses unknown options itself, so that a subcommand's names the subcommand's own."""

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Like argparse's, but nothing unknown is passed on: the caller could not say which options there are."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(_unknown(unknown, [*self._option_string_actions]))
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 and one line; the whole usage is a command away."""
        self.exit(2, f"{self.prog}: {_with_guess(message)} (see {self.prog} --help)\n")


def _unknown(given: Sequence[str], options: Sequence[str]) -> str:
    first = next((word for word in given if word.startswith("-")), None)
    if first is None:
        return f"unexpected argument {given[0]!r}"
    name = first.partition("=")[0]
    return f"unknown option {name}{_guess(name, options)}"


def _with_guess(message: str) -> str:
    """The message, and of a wrong choice the nearest right one."""
    found = _CHOICE.fullmatch(message)
    if found is None:
        return message
    choices = [choice.strip(" '") for choice in found["choices"].split(",")]
    given = found["given"]
    return f"{found['before']}{given!r}{_guess(given, choices)} (choose from {', '.join(choices)})"


def _guess(given: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.6)
    return f": did you mean {near[0]}?" if near else ""
