"""Invariant I10: after any crash each line of a batch has exactly one whole result line. A pure check of the files.

`dunlin batch fetch --check` runs it over what was fetched, the tests over jobs whose dispatchers were killed.
"""

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any


def broken_results(input_lines: Iterable[bytes], output: Iterable[bytes], errors: Iterable[bytes]) -> list[str]:
    """What is wrong with the results of a finished batch; empty: nothing. Each argument has the lines of one file."""
    complaints: list[str] = []
    wanted = [text for text in input_lines if text.strip()]
    ids = {found for found in map(_custom_id, wanted) if found is not None}
    results = [*_read("output", output, complaints), *_read("errors", errors, complaints)]
    if len(results) != len(wanted):
        complaints.append(f"{len(wanted)} input lines, {len(results)} result lines")
    counts = Counter(str(result["custom_id"]) for result in results if result.get("custom_id") is not None)
    complaints += [f"{name!r} has {count} result lines" for name, count in counts.items() if count > 1]
    complaints += [f"{name!r} has no result line" for name in sorted(ids - counts.keys())]
    complaints += [f"{name!r} is no custom_id of the input" for name in sorted(counts.keys() - ids)]
    return complaints


def _read(file: str, lines: Iterable[bytes], complaints: list[str]) -> list[dict[str, Any]]:
    results = []
    for number, text in enumerate(lines, start=1):
        found = _object(text)
        if found is None or ("response" not in found) or not text.endswith(b"\n"):
            complaints.append(f"{file} line {number} is not whole")
        else:
            results.append(found)
    return results


def _custom_id(text: bytes) -> str | None:
    found = (_object(text) or {}).get("custom_id")
    return found if isinstance(found, str) and found else None


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
