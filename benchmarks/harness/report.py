"""How campaigns end: a table on stdout (or JSON), and an exit code that says whether everything held."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cli.common.output import table, to_json_value


@dataclass(slots=True)
class BenchmarkResult:
    """What a campaign found: figures in order, and what did not hold (nothing: it passed)."""

    title: str
    figures: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def expect(self, holds: bool, otherwise: str) -> None:
        """Note `otherwise` unless it holds."""
        if not holds:
            self.failures.append(otherwise)


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Defaults in the help, the description as it is written."""


def parser(description: str) -> argparse.ArgumentParser:
    """What every campaign takes."""
    made = argparse.ArgumentParser(description=description, formatter_class=_Formatter)
    made.add_argument("--instances", type=int, default=3, metavar="N", help="instances of the cluster")
    made.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return made


def finish(outcome: BenchmarkResult, as_json: bool) -> int:
    """Print it; exit code 0 if everything held, 1 if not."""
    if as_json:
        whole = {
            "title": outcome.title,
            "machine": machine(),
            "figures": to_json_value(outcome.figures),
            "broken": outcome.failures,
        }
        print(json.dumps(whole, indent=2))
    else:
        print(f"{outcome.title}\n{machine()}\n")
        print(table(("figure", "value"), [(name, _text(value)) for name, value in outcome.figures.items()]))
        print("\n" + ("everything held" if not outcome.failures else "BROKEN:\n  " + "\n  ".join(outcome.failures)))
    return 1 if outcome.failures else 0


def machine() -> str:
    """Where this ran, without the host's name."""
    return f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"


def say(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_text, value))
    return str(value)
