"""The arrivals of a trace, and its text file, plain or gzip. `formats.py` reads its rows."""

import csv
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

BLOCK_TOKENS = 512
"""Input tokens that one prefix block of a trace stands for (Mooncake's)."""


class TraceError(ValueError):
    """A file that cannot be used: the text names the file, the line and the fault."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when it arrives (seconds from the start), and how many tokens go in and come out.

    `label` is its class and `client` its sender, where the trace says so. `blocks[i]` names input tokens
    [i * block_tokens, (i + 1) * block_tokens): equal leading names are a shared prefix. Tokens past them are its own.
    """

    at_s: float
    input_tokens: int
    output_tokens: int
    label: str = ""
    client: str = ""
    blocks: tuple[int, ...] = ()
    block_tokens: int = BLOCK_TOKENS


@contextmanager
def open_trace(path: Path) -> Iterator[TextIO]:
    """The text of a file, plain or gzip. A file that cannot be read, now or later, becomes a TraceError."""
    try:
        with _open(path) as lines:
            yield lines
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TraceError(f"{path}: cannot be read ({reason}); give a text file, plain or .gz") from None


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")
