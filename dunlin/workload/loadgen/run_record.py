"""The record of a run, as JSON lines: facts on the cluster, then one line per request with the times of its tokens.

`dunlin replay --record` writes it, `dunlin sim --against` reads it. Times are seconds from the start of the run.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dunlin.workload.loadgen.stats import RequestRecord
from dunlin.workload.traffic.trace import Arrival, TraceError, open_trace

VERSION = 1
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """`facts` as they were written; request i is `arrivals[i]`, and what became of it `records[i]`."""

    facts: Mapping[str, Any]
    arrivals: Sequence[Arrival]
    records: Sequence[RequestRecord]


def write_run(path: Path, run: RecordedRun) -> None:
    """Raises OSError; a file that exists is replaced.

    `facts` must be JSON's types.
    """
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps({"dunlin_run": VERSION, **run.facts}) + "\n")
        for arrival, record in zip(run.arrivals, run.records, strict=True):
            file.write(json.dumps(_line(arrival, record)) + "\n")


def _line(arrival: Arrival, record: RequestRecord) -> dict[str, Any]:
    shared = {"blocks": arrival.blocks, "block_tokens": arrival.block_tokens} if arrival.blocks else {}
    return {
        "at_s": round(record.at_s, _DIGITS),
        "input_tokens": record.input_tokens,
        "output_tokens": record.output_tokens,
        "class": record.label,
        **shared,
        "sent_s": round(record.sent_s, _DIGITS),
        "end_s": round(record.end_s, _DIGITS),
        "outcome": record.outcome,
        "detail": record.detail,
        "request": record.request,
        "token_s": [round(at_s, _DIGITS) for at_s in record.token_s],
    }


def read_run(path: Path) -> RecordedRun:
    """Read it back. Raises TraceError naming the line for what is no record of a run."""
    with open_trace(path) as lines:
        facts, requests = _parsed(lines, str(path))
    return RecordedRun(facts, [arrival for arrival, _ in requests], [record for _, record in requests])


def _parsed(lines: Iterable[str], name: str) -> tuple[Mapping[str, Any], list[tuple[Arrival, RequestRecord]]]:
    rows = ((number, _object(text, f"{name}: line {number}")) for number, text in enumerate(lines, 1) if text.strip())
    _, facts = next(rows, (1, {}))
    if facts.get("dunlin_run") != VERSION:
        raise TraceError(f"{name}: line 1: no record of a run; `dunlin replay --record FILE` writes one")
    return facts, [_request(row, f"{name}: line {number}") for number, row in rows]


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: no JSON ({error})") from None
    if not isinstance(value, dict):
        raise TraceError(f"{where}: an object must stand here, not {text!r:.80}")
    return value


def _request(row: dict[str, Any], where: str) -> tuple[Arrival, RequestRecord]:
    try:
        at_s, inputs, outputs = float(row["at_s"]), int(row["input_tokens"]), int(row["output_tokens"])
        times = [float(at_s) for at_s in row["token_s"]]
        label, blocks = str(row.get("class", "")), tuple(map(int, row.get("blocks", ())))
        arrival = Arrival(at_s, inputs, outputs, label, "", blocks, int(row.get("block_tokens", 1)))
        record = RequestRecord(at_s, inputs, outputs, False, float(row["sent_s"]), times, float(row["end_s"]))
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{where}: {error!r}; the file is not as `dunlin replay --record` wrote it") from None
    record.outcome, record.detail = str(row.get("outcome", "error")), str(row.get("detail", ""))
    record.request, record.label = str(row.get("request", "")), label
    return arrival, record
