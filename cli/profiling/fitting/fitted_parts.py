"""The parts of a device that are fitted, and how far a fit is from points that it did not see.

Each part is made of a table, and knows its points, its regimes, which points belong together when some are held out,
and the form of its fit. Does not know files or devices. Needs numpy.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cli.profiling.fitting.datasheets import DeviceDatasheet
from cli.profiling.fitting.regression import Array, clock_tick_weight, fit_piecewise, fit_surface, surface_values
from cli.profiling.fitting.tables import Table
from dunlin.cost.surface import Surface

Mask = NDArray[np.bool_]
FOLDS = 5
FEW = 50
"""With fewer points than these, each is held out alone: a fifth of them would take whole stages from the fit."""


@dataclass(frozen=True, slots=True)
class FitError:
    """How far a fit is from held-out points of one regime: relative errors."""

    part: str
    regime: str
    points: int
    mean: float
    median: float
    p90: float


def fit_error(part: str, regime: str, predicted: Array, seconds: Array) -> FitError:
    """The errors over points of one regime, at least one."""
    relative = np.abs(predicted / seconds - 1.0)
    mean, median, p90 = float(relative.mean()), float(np.median(relative)), float(np.quantile(relative, 0.9))
    return FitError(part, regime, len(seconds), mean, median, p90)


_GROUPS = (1, 2, 8, 64)
"""Query heads per kv head; the kernels treat 1 apart, so 2 follows at once."""
_DECODE = ((1, 4, 16, 32, 64, 256, 2048), (16, 128, 256, 512, 1024, 2048, 4096, 16384, 131072), _GROUPS, (1, 2, 4, 8))
_PREFILL = ((16, 64, 256, 1024, 4096, 16384, 131072), (8, 64, 256, 512, 1024, 2048, 8192), _GROUPS, (1, 4, 16, 64))
_LAST_REDUCED, _LAST_SENT = 2.0**30, 2.0**26
_ADD_BYTES = tuple(2.0**e for e in (13, 15, 16, 17, *(18 + i / 2 for i in range(15)), 26, 27, 29, 31))
_STREAM_TOKENS = (1, 32, 64, 96, 108, 128, 192, 216, 256, 320, 432, 512, 640, 864, 1024, 1536, 2048, 4096, 32768)
"""A block of these kernels computes a token, and an A100 has 108 multiprocessors."""
_TICK_S = 1e-6
"""Tick of the clock that measured the element-wise operations."""
_WIDTHS = (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384, 65536)
_DEPTHS = (512, 1024, 2048, 4096, 8192, 16384, 65536)


class FittedPart(Protocol):
    """A part to fit: points (n × axes) and their times."""

    @property
    def name(self) -> str: ...
    @property
    def points(self) -> Array: ...
    @property
    def seconds(self) -> Array: ...
    @property
    def regimes(self) -> Mapping[str, Mask]:
        """Which points count as which regime; some may count as none."""
        ...

    @property
    def together(self) -> NDArray[np.int64]:
        """Points with the same number are held out together."""
        ...

    def fit(self, keep: Mask | None = None) -> Surface:
        """Fit to all points, or those kept."""
        ...


def cross_validate(part: FittedPart) -> list[FitError]:
    """Per regime, every point predicted by a fit that did not see it (nor those held out together with it)."""
    groups, group = np.unique(part.together, return_inverse=True)
    folds = len(groups) if len(part.seconds) < FEW else FOLDS
    fold = np.random.default_rng(0).permutation(len(groups))[group] % folds
    predicted = np.empty_like(part.seconds)
    for left_out in range(folds):
        held = fold == left_out
        predicted[held] = surface_values(part.fit(~held), part.points[held])
    chosen = ((regime, mask) for regime, mask in part.regimes.items() if mask.any())
    return [fit_error(part.name, name, predicted[mask], part.seconds[mask]) for name, mask in chosen]


@dataclass(frozen=True, slots=True)
class SurfacePart:
    """A part that varies smoothly over its axes: a surface over knots."""

    name: str
    axes: tuple[str, ...]
    knots: tuple[tuple[float, ...], ...]
    points: Array
    seconds: Array
    regimes: Mapping[str, Mask]
    together: NDArray[np.int64]
    certainty: Array | None = None

    def fit(self, keep: Mask | None = None) -> Surface:
        """Fit to all points, or those kept."""
        mask = np.ones(len(self.points), dtype=bool) if keep is None else keep
        knots = [_logs(axis) for axis in self.knots]
        sure = None if self.certainty is None else self.certainty[mask]
        return fit_surface(self.axes, knots, self.points[mask], self.seconds[mask], certainty=sure)


@dataclass(frozen=True, slots=True)
class PiecewisePart:
    """A part over message sizes, of which each stage is another algorithm's."""

    name: str
    starts: tuple[float, ...]
    last: float
    points: Array
    seconds: Array
    regimes: Mapping[str, Mask]

    @property
    def together(self) -> NDArray[np.int64]:
        """Every point stands alone."""
        return np.arange(len(self.seconds))

    def fit(self, keep: Mask | None = None) -> Surface:
        """To all points, or those kept."""
        mask = np.ones(len(self.points), dtype=bool) if keep is None else keep
        return fit_piecewise("bytes", self.starts, self.last, self.points[mask, 0], self.seconds[mask])


def _logs(counts: Sequence[float]) -> list[float]:
    return [log2(count) for count in counts]


def gemm_part(table: Table, facts: DeviceDatasheet) -> SurfacePart:
    """Products at least 512 wide and deep (smaller ones occur in no layer); held out by whole (n, k)."""
    table = table.where((table.numbers["n"] >= 512) & (table.numbers["k"] >= 512))
    points = table.columns("m", "n", "k")
    m, n, k = points.T
    compute = 2 * m * n * k / facts.flops
    memory = 2 * (m * n + m * k + n * k) / facts.memory_bytes_per_s
    return SurfacePart(
        "gemm",
        ("m", "n", "k"),
        (facts.gemm_tokens, _WIDTHS, _DEPTHS),
        points,
        table.numbers["latency"],
        {"memory-bound": memory >= compute, "compute-bound": compute > memory},
        (n * 2**20 + k).astype(np.int64),
    )


def attention_part(name: str, table: Table) -> SurfacePart:
    """`prefill`: (batch · length queries, mean keys (length + 1) / 2); `decode`: (batch, length). From 16 tokens on."""
    table = table.where(table.numbers["seq_len"] >= 16)
    batch, length, heads, kv_heads = (table.numbers[key] for key in ("batch", "seq_len", "num_q_heads", "num_kv_heads"))
    prefill = name == "prefill"
    queries, keys = (batch * length, (length + 1) / 2) if prefill else (batch, length)
    seconds = table.numbers["latency"]
    short = seconds < 50e-6
    return SurfacePart(
        f"{name} attention",
        ("queries", "keys", "group", "kv_heads"),
        _PREFILL if prefill else _DECODE,
        np.stack([queries, keys, heads / kv_heads, kv_heads], axis=1),
        seconds,
        {"start-up (< 50 µs)": short, "throughput": ~short},
        np.arange(len(seconds)),
    )


def attention_rate(table: Table) -> float:
    """The best rate in a table of causal prefill attention: floating-point operations per second, heads of 128."""
    batch, length, heads = (table.numbers[key] for key in ("batch", "seq_len", "num_q_heads"))
    return float((2 * 2 * 128 * batch * length * (length + 1) / 2 * heads / table.numbers["latency"]).max())


def kv_bandwidth(table: Table) -> float:
    """The best bandwidth in a table of decode attention: bytes of bfloat16 KV that a second reads, heads of 128."""
    batch, length, kv_heads = (table.numbers[key] for key in ("batch", "seq_len", "num_kv_heads"))
    return float((2 * 2 * 128 * batch * length * kv_heads / table.numbers["latency"]).max())


def all_reduce_parts(table: Table, facts: DeviceDatasheet) -> dict[int, PiecewisePart]:
    """Per number of GPUs, the faster of NCCL and the custom kernel at each size."""
    table = table.where(table.word_is("operation", "all_reduce"))
    parts = {}
    for gpus, starts in facts.reduce_starts.items():
        sizes, seconds = _fastest(table.where(table.numbers["num_gpus"] == gpus))
        small = sizes <= 2**18
        parts[gpus] = PiecewisePart(
            f"all-reduce over {gpus}",
            starts,
            _LAST_REDUCED,
            sizes[:, None],
            seconds,
            {"to 256 KiB": small, "larger": ~small},
        )
    return parts


def _fastest(rows: Table) -> tuple[Array, Array]:
    fastest: dict[float, float] = {}
    for size, seconds, backend in zip(
        rows.numbers["message_bytes"], rows.numbers["latency"], rows.words["backend"], strict=True
    ):
        if backend != "vllm_eager":
            fastest[size] = min(seconds, fastest.get(size, seconds))
    sizes = np.array(sorted(fastest))
    return sizes, np.array([fastest[size] for size in sizes])


_WIDE: Mapping[str, tuple[str, tuple[float, ...], Callable[[Table], Array]]] = {
    "norm": ("input_layernorm", (8192, 10240, 16384), lambda t: 2 * t.numbers["n_embd"]),
    "rope": (
        "attn_rope",
        (1280, 2560, 5120, 10240, 20480, 32768),
        lambda t: 2 * (t.numbers["n_head"] + t.numbers["n_kv_head"]) / t.numbers["tp"] * _head_dim(t),
    ),
    "activation": (
        "mlp_act",
        (2752, 5504, 11008, 22016, 57344),
        lambda t: 2 * t.numbers["n_expanded_embd"] / t.numbers["tp"],
    ),
}
"""Operations whose kernels go row by row: column, knots of the row's bytes, and the bytes."""


def _head_dim(table: Table) -> Array:
    return table.numbers["n_embd"] / table.numbers["n_head"]


def stream_parts(table: Table) -> dict[str, SurfacePart]:
    """Time of each element-wise operation: over tokens and the bytes of a row, `add` over all bytes that it moves.

    Fitted from 2 ticks of the source's clock on; errors are counted from 4 µs, below which the clock is the error.
    """
    tokens = table.numbers["num_tokens"]
    parts = {}
    for name, (column, knots, row_bytes) in _WIDE.items():
        points = np.stack([tokens, row_bytes(table)], axis=1)
        parts[name] = _stream(name, ("tokens", "row_bytes"), (_STREAM_TOKENS, knots), points, table.numbers[column])
    moved = (6 * tokens * table.numbers["n_embd"])[:, None]
    parts["add"] = _stream("add", ("bytes",), (_ADD_BYTES,), moved, table.numbers["add"])
    return parts


def _stream(
    name: str, axes: tuple[str, ...], knots: tuple[tuple[float, ...], ...], points: Array, seconds: Array
) -> SurfacePart:
    kept = seconds >= 2 * _TICK_S
    points, seconds = points[kept], seconds[kept]
    _, same = np.unique(points, axis=0, return_inverse=True)
    return SurfacePart(
        f"element-wise: {name}",
        axes,
        knots,
        points,
        seconds,
        {"start-up (4 to 20 µs)": (seconds >= 4e-6) & (seconds < 20e-6), "throughput": seconds >= 20e-6},
        same.reshape(-1),
        clock_tick_weight(seconds, _TICK_S),
    )


def nvlink(table: Table) -> tuple[float, float]:
    """Seconds of the smallest message between two GPUs of one box, and bytes per second of the largest."""
    rows = table.where(
        table.word_is("operation", "send_recv")
        & table.word_is("fabric", "a100_dgx")
        & (table.numbers["gpus_per_node"] == 2)
    )
    sizes, seconds = rows.numbers["message_bytes"], rows.numbers["latency"]
    smallest, largest = int(np.argmin(sizes)), int(np.argmax(sizes))
    return float(seconds[smallest]), float(sizes[largest] / seconds[largest])


def peer_part(table: Table) -> PiecewisePart:
    """Point to point between two boxes."""
    rows = table.where(
        table.word_is("operation", "send_recv")
        & table.word_is("fabric", "a100_dgx")
        & (table.numbers["gpus_per_node"] == 1)
    )
    sizes, seconds = rows.numbers["message_bytes"], rows.numbers["latency"]
    every = {"all": np.ones(len(sizes), dtype=bool)}
    return PiecewisePart("network, point to point", (2.0**11,), _LAST_SENT, sizes[:, None], seconds, every)
