"""Readers for tables of measured operation times (CSV, gzipped or not): checked row by row, as arrays for the fits.

Knows the columns of each kind of table. Does not know what is fitted to them. Needs numpy. Every refusal names the file
and the line. Latencies are given in milliseconds in the files and in seconds here.
"""

import csv
import gzip
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


class TableError(ValueError):
    """A table cannot be read; the message says which file and line, what is wrong and what was expected."""


@dataclass(frozen=True, slots=True)
class TableKind:
    """One kind of table: words that select rows, counts (integers ≥ 1; those in `free` ≥ 0), times in ms (> 0)."""

    words: tuple[str, ...]
    counts: tuple[str, ...]
    times: tuple[str, ...]
    zero_times: tuple[str, ...] = ()
    """Times that may be 0: the source rounds to its clock's resolution."""


GEMM = TableKind((), ("m", "n", "k"), ("latency_ms",))
ATTENTION = TableKind((), ("batch", "seq_len", "num_q_heads", "num_kv_heads", "head_dim"), ("latency_ms",))
COLLECTIVES = TableKind(("operation", "backend"), ("num_gpus", "message_bytes"), ("latency_ms",))
NETWORK = TableKind(("fabric", "operation"), ("num_gpus", "gpus_per_node", "message_bytes"), ("latency_ms",))
LAYER_OPS = TableKind(
    ("model",),
    ("tp", "num_tokens", "n_head", "n_kv_head", "n_embd", "n_expanded_embd"),
    ("attn_pre_proj_ms", "attn_post_proj_ms", "mlp_up_proj_ms", "mlp_down_proj_ms"),
    ("emb_ms", "input_layernorm_ms", "attn_rope_ms", "post_attention_layernorm_ms", "mlp_act_ms", "add_ms"),
)
ITERATIONS = TableKind(
    ("model",), ("sp", "tp", "batch", "input_len", "num_sp_masters"), ("prefill_latency_ms", "decode_latency_ms")
)
STEPS = TableKind(
    ("model", "phase"),
    ("tp", "batch", "seq_len"),
    ("linear_ms", "attention_ms", "latency_ms"),
    ("allreduce_ms", "elementwise_ms"),
)


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of a file: `words[name]` lists strings, `numbers[name]` an array (counts as they are, times in seconds,
    under the column's name without `_ms`)."""

    words: dict[str, list[str]]
    numbers: dict[str, NDArray[np.float64]]

    def __len__(self) -> int:
        return len(next(iter(self.numbers.values())))

    def columns(self, *names: str) -> NDArray[np.float64]:
        """An (n × names) array."""
        return np.stack([self.numbers[name] for name in names], axis=1)

    def where(self, keep: Sequence[bool] | NDArray[np.bool_]) -> "Table":
        """The rows for which `keep` is true."""
        mask = np.asarray(keep, dtype=bool)
        words = {
            name: [word for word, kept in zip(column, mask, strict=True) if kept] for name, column in self.words.items()
        }
        return Table(words, {name: column[mask] for name, column in self.numbers.items()})

    def word_is(self, name: str, word: str) -> NDArray[np.bool_]:
        """For each row whether its column holds that word."""
        return np.array([value == word for value in self.words[name]], dtype=bool)


def read_table(path: Path, kind: TableKind) -> Table:
    """Read a table of that kind. Raises TableError (a file that is missing or no such table, a row that is wrong)."""
    words: dict[str, list[str]] = {name: [] for name in kind.words}
    numbers: dict[str, list[float]] = {name.removesuffix("_ms"): [] for name in _numeric(kind)}
    for row in _rows(path, kind):
        for name in kind.words:
            words[name].append(row.word(name))
        for name in kind.counts:
            numbers[name].append(row.count(name))
        for name in (*kind.times, *kind.zero_times):
            numbers[name.removesuffix("_ms")].append(row.seconds(name, zero=name in kind.zero_times))
    if not next(iter(numbers.values())):
        raise TableError(f"{path}:1: no rows under the header")
    return Table(words, {name: np.array(column, dtype=float) for name, column in numbers.items()})


def _numeric(kind: TableKind) -> tuple[str, ...]:
    return (*kind.counts, *kind.times, *kind.zero_times)


@dataclass(frozen=True, slots=True)
class _Row:
    """One line and its number."""

    where: str
    cells: dict[str, str]

    def word(self, name: str) -> str:
        if not self.cells[name]:
            raise TableError(f"{self.where}: {name} is empty")
        return self.cells[name]

    def count(self, name: str) -> float:
        try:
            value = int(self.cells[name])
        except ValueError:
            raise TableError(f"{self.where}: {name} is {self.cells[name]!r}, not an integer") from None
        if value < 1:
            raise TableError(f"{self.where}: {name} is {value}, less than 1")
        return float(value)

    def seconds(self, name: str, zero: bool) -> float:
        try:
            value = float(self.cells[name])
        except ValueError:
            raise TableError(f"{self.where}: {name} is {self.cells[name]!r}, not a number") from None
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            raise TableError(f"{self.where}: {name} is {self.cells[name]}, not a time in milliseconds")
        return value / 1e3


def _rows(path: Path, kind: TableKind) -> Iterator[_Row]:
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
            yield from _checked(path, kind, csv.reader(file))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error) as error:
        raise TableError(f"{path}: cannot be read: {error}") from error


def _checked(path: Path, kind: TableKind, lines: Iterable[list[str]]) -> Iterator[_Row]:
    numbered = enumerate(lines, start=1)
    _, header = next(numbered, (0, []))
    missing = [name for name in (*kind.words, *_numeric(kind)) if name not in header]
    if missing:
        raise TableError(f"{path}:1: the header lacks {', '.join(missing)}")
    for line, cells in numbered:
        if len(cells) != len(header):
            raise TableError(f"{path}:{line}: {len(cells)} columns where the header has {len(header)}")
        yield _Row(f"{path}:{line}", dict(zip(header, cells, strict=True)))
