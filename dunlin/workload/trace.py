"""Reading traces: CSV, plain or gzip, sorted by arrival: `arrival_s,input_tokens,output_tokens` and more columns.

Knows no cluster: a row becomes an `Arrival`.
"""

import csv
import gzip
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

COLUMNS = ("arrival_s", "input_tokens", "output_tokens")


class TraceError(ValueError):
    """A trace that cannot be used: the text names the file, the line and what is wrong."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when it arrives (seconds from the start), and how many tokens go in and come out."""

    at_s: float
    input_tokens: int
    output_tokens: int
    label: str = ""


def read_trace(path: Path, duration_s: float | None = None) -> list[Arrival]:
    """The rows of a trace that arrive before `duration_s`, by arrival.

    Raises TraceError naming the line for a missing file or column, a value that is no number, or arrivals out of order.
    """
    try:
        with _open(path) as lines:
            arrivals = list(parse_trace(lines, str(path), duration_s))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TraceError(f"{path}: cannot be read ({reason}); give a CSV file, plain or .gz") from None
    if not arrivals:
        within = "" if duration_s is None else f" within the first {duration_s:g} s"
        raise TraceError(f"{path}: holds no request{within}")
    return arrivals


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def parse_trace(lines: Iterable[str], name: str, duration_s: float | None = None) -> Iterator[Arrival]:
    """Like `read_trace`, from the lines themselves; `name` is only named in errors."""
    reader = csv.DictReader(lines)
    missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
    if missing:
        raise TraceError(f"{name}: line 1: no column {', '.join(missing)}; a trace has {','.join(COLUMNS)}")
    before_s = 0.0
    for row in reader:
        where = f"{name}: line {reader.line_num}"
        arrival = _arrival(row, where)
        if arrival.at_s < before_s:
            raise TraceError(
                f"{where}: arrival_s {arrival.at_s:g} comes before the line above ({before_s:g}); sort the rows"
            )
        before_s = arrival.at_s
        if duration_s is not None and arrival.at_s >= duration_s:
            return
        yield arrival


def _arrival(row: Mapping[str, str | None], where: str) -> Arrival:
    return Arrival(
        _seconds(row, where),
        _count(row, "input_tokens", where),
        _count(row, "output_tokens", where),
        row.get("class") or "",
    )


def _seconds(row: Mapping[str, str | None], where: str) -> float:
    text = row["arrival_s"]
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise TraceError(f"{where}: arrival_s must be seconds from the start, 0 or more, not {text!r}")
    return value


def _count(row: Mapping[str, str | None], column: str, where: str) -> int:
    text = row[column] or ""
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise TraceError(f"{where}: {column} must be a whole number of tokens, 1 or more, not {row[column]!r}")
    return int(text)
