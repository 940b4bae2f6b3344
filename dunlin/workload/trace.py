"""Reading traces: a file, plain or gzip, in one of the formats that `formats` knows, becomes arrivals.

Knows no cluster and no column: a row becomes an `Arrival`.
"""

import gzip
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

BLOCK_TOKENS = 512
"""Input tokens that one prefix block of a trace stands for (Mooncake's)."""


class TraceError(ValueError):
    """A file that cannot be used: the text names the file, the line and what is wrong."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when it arrives (seconds from the start), and how many tokens go in and come out.

    `label` is its class and `client` who sent it, where the trace says so. `blocks[i]` names input tokens
    [i * block_tokens, (i + 1) * block_tokens): equal leading names are a shared prefix. Tokens past them are its own.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    label: str = ""
    client: str = ""
    blocks: tuple[int, ...] = ()
    block_tokens: int = BLOCK_TOKENS


def read_trace(path: Path, duration_s: float | None = None) -> list[Arrival]:
    """The rows of a trace that arrive before `duration_s`, by arrival.

    Raises TraceError naming the line for a missing file or column, a value that is no number, or arrivals out of order.
    """
    with opened(path) as lines:
        arrivals = list(parse_trace(lines, str(path), duration_s))
    if not arrivals:
        within = "" if duration_s is None else f" within the first {duration_s:g} s"
        raise TraceError(f"{path}: holds no request{within}")
    return arrivals


@contextmanager
def opened(path: Path) -> Iterator[TextIO]:
    """The text of a file, plain or gzip. Whatever cannot be read, now or later, becomes a TraceError."""
    try:
        with _open(path) as lines:
            yield lines
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TraceError(f"{path}: cannot be read ({reason}); give a text file, plain or .gz") from None


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def parse_trace(lines: Iterable[str], name: str, duration_s: float | None = None) -> Iterator[Arrival]:
    """Like `read_trace`, from the lines themselves; `name` is only named in errors."""
    from dunlin.workload.formats import rows

    before_s = 0.0
    for line, arrival in rows(lines, name):
        if arrival.at_s < before_s:
            late = f"{arrival.at_s:g} comes before the line above ({before_s:g})"
            raise TraceError(f"{name}: line {line}: arrival_s {late}; sort the rows")
        before_s = arrival.at_s
        if duration_s is not None and arrival.at_s >= duration_s:
            return
        yield arrival
