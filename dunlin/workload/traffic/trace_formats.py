"""Reading traces in the formats that they are published in: the first line tells the format, rows become arrivals.

Sources: AzurePublicDataset (LLM inference 2023 and 2024), Mooncake (FAST '25), BurstGPT; and dunlin's own CSV.
"""

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from dunlin.workload.traffic.trace import BLOCK_TOKENS, Arrival, TraceError, open_trace

OWN = ("arrival_s", "input_tokens", "output_tokens")
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
BURSTGPT = ("Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type")
MOONCAKE = ("timestamp", "input_length", "output_length", "hash_ids")
KNOWN = (
    f"a trace is CSV with {','.join(OWN)} (and more), Azure's CSV with {','.join(AZURE)}, BurstGPT's CSV with "
    f"{','.join(BURSTGPT)}, or Mooncake's JSON lines with {', '.join(MOONCAKE)}"
)

Row = Mapping[str, Any]
Rows = Iterator[tuple[int, Arrival]]
"""Line numbers from 1, and the arrival in that line."""


def read_trace(path: Path, duration_s: float | None = None, *, one_more: bool = False) -> list[Arrival]:
    """The rows of a trace that arrive before `duration_s`, by arrival; with `one_more` the first one after them too, by
    which a trace that goes on is told from one that ends.

    Raises TraceError naming the line for a missing file or column, a value that is no number, or arrivals out of order.
    """
    with open_trace(path) as lines:
        arrivals = list(parse_trace(lines, str(path), duration_s, one_more=one_more))
    if not arrivals:
        within = "" if duration_s in (None, math.inf) else f" within the first {duration_s:g} s"
        raise TraceError(f"{path}: holds no request{within}")
    return arrivals


def parse_trace(
    lines: Iterable[str], name: str, duration_s: float | None = None, *, one_more: bool = False
) -> Iterator[Arrival]:
    """Like `read_trace`, from the lines themselves; `name` is only named in errors."""
    before_s = 0.0
    for line, arrival in parse_rows(lines, name):
        if arrival.at_s < before_s:
            late = f"{arrival.at_s:g} comes before the line above ({before_s:g})"
            raise TraceError(f"{name}: line {line}: arrival_s {late}; sort the rows")
        before_s = arrival.at_s
        is_within = duration_s is None or arrival.at_s < duration_s
        if is_within or one_more:
            yield arrival
        if not is_within:
            return


def parse_rows(lines: Iterable[str], name: str) -> Rows:
    """The requests of a trace in whatever format its first line shows, each with its line number.

    Raises TraceError for an unknown format, and for values that cannot be.
    """
    left = iter(lines)
    first = next(left, "")
    together = chain((first,), left)
    if first.lstrip("\ufeff \t").startswith("{"):
        return _mooncake(together, name)
    return _table(together, name)


def _table(lines: Iterable[str], name: str) -> Rows:
    reader = csv.DictReader(lines)
    try:
        columns = tuple(text.strip("\ufeff ") for text in reader.fieldnames or ())
        reader.fieldnames = columns
        parse = _parser(columns, name)
        yield from parse(((reader.line_num, row) for row in reader), name)
    except csv.Error as error:
        raise TraceError(f"{name}: line {reader.line_num}: no CSV ({error})") from None


def _parser(columns: tuple[str, ...], name: str) -> "Callable[[Iterator[tuple[int, Row]], str], Rows]":
    for needed, parse in ((OWN, _own), (AZURE, _azure), (BURSTGPT, _burstgpt)):
        if set(needed) <= set(columns):
            return parse
    near = max((OWN, AZURE, BURSTGPT), key=lambda needed: len(set(needed) & set(columns)))
    missing = [column for column in near if column not in columns]
    raise TraceError(f"{name}: line 1: no column {', '.join(missing)}; {KNOWN}")


def _own(table: Iterator[tuple[int, Row]], name: str) -> Rows:
    for line, row in table:
        where = f"{name}: line {line}"
        at_s, inputs = _seconds(row, "arrival_s", where), _count(row, "input_tokens", where)
        outputs, ids = _count(row, "output_tokens", where), _ids((row.get("hash_ids") or "").split(), inputs, where)
        yield line, Arrival(at_s, inputs, outputs, row.get("class") or "", _sender(row), ids)


def _sender(row: Row) -> str:
    return row.get("client") or row.get("source") or ""


def _azure(table: Iterator[tuple[int, Row]], name: str) -> Rows:
    start: datetime | None = None
    for line, row in table:
        where = f"{name}: line {line}"
        moment = _moment(row, where)
        start = start or moment
        inputs, outputs = (_count(row, column, where, lowest=0) for column in AZURE[1:])
        if inputs and outputs:
            yield line, Arrival((moment - start).total_seconds(), inputs, outputs)


def _moment(row: Row, where: str) -> datetime:
    text = row["TIMESTAMP"]
    try:
        value = datetime.fromisoformat(text or "")
    except ValueError:
        raise TraceError(
            f"{where}: TIMESTAMP must be a date and a time such as 2023-11-16 18:15:46.68, not {text!r}"
        ) from None
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def _burstgpt(table: Iterator[tuple[int, Row]], name: str) -> Rows:
    for line, row in table:
        where = f"{name}: line {line}"
        at_s = _seconds(row, "Timestamp", where)
        inputs, outputs = (_count(row, column, where, lowest=0) for column in ("Request tokens", "Response tokens"))
        # No response token: a request that failed, says the publication.
        if inputs and outputs:
            yield line, Arrival(at_s, inputs, outputs, row["Log Type"] or "", row["Model"] or "")


def _mooncake(lines: Iterable[str], name: str) -> Rows:
    for line, text in enumerate(lines, 1):
        if not text.strip():
            continue
        where = f"{name}: line {line}"
        row = _object(text, where)
        at_s = _seconds(row, "timestamp", where, unit="milliseconds") / 1000
        inputs, outputs = (_count(row, column, where, lowest=0) for column in MOONCAKE[1:3])
        ids = _ids(row.get("hash_ids", ()), inputs, where)
        if inputs and outputs:
            yield line, Arrival(at_s, inputs, outputs, blocks=ids)


def _object(text: str, where: str) -> Row:
    try:
        value = json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: no JSON ({error}); {KNOWN}") from None
    missing = [key for key in MOONCAKE[:3] if not isinstance(value, dict) or key not in value]
    if missing:
        raise TraceError(f"{where}: no {', '.join(missing)}; {KNOWN}")
    row: Row = value
    return row


def _ids(found: Any, inputs: int, where: str) -> tuple[int, ...]:
    try:
        ids = tuple(map(int, found))
        if any(isinstance(one, float) and one != whole for one, whole in zip(found, ids, strict=True)):
            raise ValueError  # half a name would be that of another prefix
    except (TypeError, ValueError, OverflowError):
        raise TraceError(f"{where}: hash_ids must be whole numbers, not {found!r:.80}") from None
    if ids and len(ids) != -(-inputs // BLOCK_TOKENS):
        raise TraceError(
            f"{where}: {len(ids)} hash_ids for {inputs} input tokens: one stands for {BLOCK_TOKENS} tokens, the last "
            "for what is left"
        )
    return ids


def _seconds(row: Row, column: str, where: str, unit: str = "seconds") -> float:
    said = row[column]
    try:
        value = float(said)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise TraceError(f"{where}: {column} must be {unit} from the start, 0 or more, not {said!r:.80}")
    return value


def _count(row: Row, column: str, where: str, lowest: int = 1) -> int:
    said = row[column]
    text = str(said)
    if not (text.isascii() and text.isdigit() and len(text) < 16) or int(text) < lowest:
        raise TraceError(f"{where}: {column} must be a whole number of tokens, {lowest} or more, not {said!r:.80}")
    return int(text)
