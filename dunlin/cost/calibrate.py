"""Fits a device to tables of measured operations, and tells how far the fit is from points it did not see.

Knows which table feeds which part of a `Device`. Needs numpy and the tables, which do not ship: the fitted coefficients
do.
Errors are of points left out, a fifth at a time; the fit that is kept uses all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dunlin.cost.device import Device, Link, Source
from dunlin.cost.fit import Array, fit_surface, surface_values
from dunlin.cost.importers import ATTENTION, COLLECTIVES, GEMM, LAYER_OPS, NETWORK, Kind, Table, read_table
from dunlin.cost.surface import Surface

Mask = NDArray[np.bool_]
FOLDS = 5


@dataclass(frozen=True, slots=True)
class Error:
    """How far a fit is from held-out points of one regime: relative errors."""

    part: str
    regime: str
    points: int
    mean: float
    median: float
    p90: float


def error_of(part: str, regime: str, predicted: Array, seconds: Array) -> Error:
    """Over points of one regime, at least one."""
    relative = np.abs(predicted / seconds - 1.0)
    mean, median, p90 = float(relative.mean()), float(np.median(relative)), float(np.quantile(relative, 0.9))
    return Error(part, regime, len(seconds), mean, median, p90)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a data sheet says of a device, and what is taken for parts that no table measured."""

    name: str
    title: str
    memory_bytes: int
    memory_bytes_per_s: float
    flops: float
    stream_scale: float
    """Its memory bandwidth over that of the device whose element-wise operations were measured."""
    host_bytes_per_s: float
    peer_bytes_per_s: float
    """0 where the network was measured."""
    gemm_tokens: tuple[int, ...]
    estimated: Mapping[str, str]


_ESTIMATED = {
    "host_link": "80 % of the bus's rate; not measured",
    "load": "10 s to start and 5 GB/s of weights per GPU; not measured",
    "step_fixed_s": "0: the time between steps belongs to the host, not to the device",
    "head_dim": "attention was measured with heads of 128; others are priced by their bytes and products",
    "prefix": "no table has prefixes; a chunk after a prefix is priced by the mean keys of its queries",
}
A100 = Facts(
    name="a100",
    title="NVIDIA A100 80 GB SXM",
    memory_bytes=80 * 10**9,
    memory_bytes_per_s=2.039e12,
    flops=312e12,
    stream_scale=1.0,
    host_bytes_per_s=25e9,
    peer_bytes_per_s=0.0,
    gemm_tokens=(1, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192),
    estimated=_ESTIMATED,
)
H200 = Facts(
    name="h200",
    title="NVIDIA H200 141 GB SXM",
    memory_bytes=141 * 10**9,
    memory_bytes_per_s=4.8e12,
    flops=989e12,
    stream_scale=4.8 / 2.039,
    host_bytes_per_s=50e9,
    peer_bytes_per_s=40e9,
    gemm_tokens=(1, 16, 64, 128, 256, 512, 1024, 2048, 8192, 32768),
    estimated=_ESTIMATED
    | {
        "streams": "the A100's, scaled by the memory's bandwidth",
        "peer_link": "80 % of a 400 Gb/s network; not measured",
    },
)
DEVICES = {facts.name: facts for facts in (A100, H200)}

_AICONFIGURATOR = Source("aiconfigurator (NVIDIA)", "Apache-2.0", "matrix products, attention and collectives")
_VIDUR = Source("Vidur (Microsoft)", "MIT", "element-wise operations on the A100, and its network")
_GROUPS = (1, 2, 8, 64)
"""Query heads per kv head; the kernels treat 1 apart, so 2 follows at once."""
_DECODE = ((1, 4, 16, 32, 64, 256, 2048), (16, 128, 256, 512, 1024, 2048, 4096, 16384, 131072), _GROUPS, (1, 2, 4, 8))
_PREFILL = ((16, 64, 256, 1024, 4096, 16384, 262144), (8, 64, 256, 512, 1024, 2048, 8192), _GROUPS, (1, 4, 16, 64))
_REDUCED_BYTES = tuple(2.0**e for e in (8, 12, 14, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 27, 30))
"""Dense where one algorithm takes over from another."""
_STREAM_BYTES = (2**13, 2**16, 2**19, 2**21, 2**23, 2**25, 2**27, 2**29, 2**31)
_WIDTHS = (512, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 16384, 65536)
_DEPTHS = (512, 1024, 2048, 4096, 8192, 16384, 65536)


def _logs(counts: Sequence[float]) -> list[float]:
    return [log2(count) for count in counts]


@dataclass(frozen=True, slots=True)
class Part:
    """One surface to fit: its points, what names each regime, and which points belong together when held out."""

    name: str
    axes: tuple[str, ...]
    knots: tuple[tuple[float, ...], ...]
    points: Array
    seconds: Array
    regimes: Mapping[str, Mask]
    together: NDArray[np.int64]

    def fit(self, keep: Mask | None = None) -> Surface:
        """To all points, or those kept."""
        mask = np.ones(len(self.points), dtype=bool) if keep is None else keep
        knots = [_logs(axis) for axis in self.knots]
        return fit_surface(self.axes, knots, self.points[mask], self.seconds[mask])

    def errors(self) -> list[Error]:
        """Per regime, every point predicted by a fit that did not see it (nor those held out together with it)."""
        groups, group = np.unique(self.together, return_inverse=True)
        fold = np.random.default_rng(0).permutation(len(groups))[group] % FOLDS
        predicted = np.empty_like(self.seconds)
        for left_out in range(FOLDS):
            held = fold == left_out
            predicted[held] = surface_values(self.fit(~held), self.points[held])
        chosen = ((regime, mask) for regime, mask in self.regimes.items() if mask.any())
        return [error_of(self.name, name, predicted[mask], self.seconds[mask]) for name, mask in chosen]


def gemm_part(table: Table, facts: Facts) -> Part:
    """Products at least 512 wide and deep (smaller ones occur in no layer); held out by whole (n, k)."""
    table = table.where((table.numbers["n"] >= 512) & (table.numbers["k"] >= 512))
    points = table.columns("m", "n", "k")
    m, n, k = points.T
    compute = 2 * m * n * k / facts.flops
    memory = 2 * (m * n + m * k + n * k) / facts.memory_bytes_per_s
    return Part(
        "gemm",
        ("m", "n", "k"),
        (facts.gemm_tokens, _WIDTHS, _DEPTHS),
        points,
        table.numbers["latency"],
        {"memory-bound": memory >= compute, "compute-bound": compute > memory},
        (n * 2**20 + k).astype(np.int64),
    )


def attention_part(name: str, table: Table) -> Part:
    """`prefill`: (batch · length queries, mean keys (length + 1) / 2); `decode`: (batch, length). From 16 tokens on."""
    table = table.where(table.numbers["seq_len"] >= 16)
    batch, length, heads, kv_heads = (table.numbers[key] for key in ("batch", "seq_len", "num_q_heads", "num_kv_heads"))
    prefill = name == "prefill"
    queries, keys = (batch * length, (length + 1) / 2) if prefill else (batch, length)
    seconds = table.numbers["latency"]
    short = seconds < 50e-6
    return Part(
        f"{name} attention",
        ("queries", "keys", "group", "kv_heads"),
        _PREFILL if prefill else _DECODE,
        np.stack([queries, keys, heads / kv_heads, kv_heads], axis=1),
        seconds,
        {"start-up (< 50 µs)": short, "throughput": ~short},
        np.arange(len(seconds)),
    )


def all_reduce_parts(table: Table) -> dict[int, Part]:
    """Per number of GPUs, the faster of NCCL and the custom kernel at each size."""
    table = table.where(table.word_is("operation", "all_reduce"))
    parts = {}
    for gpus in (2, 4, 8):
        rows = table.where(table.numbers["num_gpus"] == gpus)
        fastest: dict[float, float] = {}
        for size, seconds, backend in zip(
            rows.numbers["message_bytes"], rows.numbers["latency"], rows.words["backend"], strict=True
        ):
            if backend != "vllm_eager":
                fastest[size] = min(seconds, fastest.get(size, seconds))
        sizes = np.array(sorted(fastest))
        seconds = np.array([fastest[size] for size in sizes])
        small = sizes <= 2**18
        parts[gpus] = Part(
            f"all-reduce over {gpus}",
            ("bytes",),
            (_REDUCED_BYTES,),
            sizes[:, None],
            seconds,
            {"to 256 KiB": small, "larger": ~small},
            np.arange(len(sizes)),
        )
    return parts


_STREAMED: Mapping[str, tuple[str, Callable[[Table], Array]]] = {
    "norm": ("input_layernorm", lambda t: 4 * t.numbers["n_embd"]),
    "rope": (
        "attn_rope",
        lambda t: 4 * (t.numbers["n_head"] + t.numbers["n_kv_head"]) / t.numbers["tp"] * _head_dim(t),
    ),
    "activation": ("mlp_act", lambda t: 6 * t.numbers["n_expanded_embd"] / t.numbers["tp"]),
    "add": ("add", lambda t: 6 * t.numbers["n_embd"]),
}


def _head_dim(table: Table) -> Array:
    return table.numbers["n_embd"] / table.numbers["n_head"]


def stream_parts(table: Table) -> dict[str, Part]:
    """Time over bytes of each element-wise operation, from 4 µs on (below, the source's clock of 1 µs is the error)."""
    parts = {}
    for name, (column, bytes_per_token) in _STREAMED.items():
        seconds = table.numbers[column]
        kept = seconds >= 4e-6
        sizes, seconds = (table.numbers["num_tokens"] * bytes_per_token(table))[kept], seconds[kept]
        short = seconds < 20e-6
        parts[name] = Part(
            f"element-wise: {name}",
            ("bytes",),
            (_STREAM_BYTES,),
            sizes[:, None],
            seconds,
            {"start-up (< 20 µs)": short, "throughput": ~short},
            np.arange(len(sizes)),
        )
    return parts


def faster_memory(surface: Surface, factor: float) -> Surface:
    """A stream's surface where the memory is `factor` times as fast: as many more bytes take the same time."""
    (axis,) = surface.knots
    return Surface(surface.axes, (tuple(knot + log2(factor) for knot in axis),), surface.values)


def peer_part(table: Table) -> Part:
    """Point to point between two boxes."""
    rows = table.where(
        table.word_is("operation", "send_recv")
        & table.word_is("fabric", "a100_dgx")
        & (table.numbers["gpus_per_node"] == 1)
    )
    sizes, seconds = rows.numbers["message_bytes"], rows.numbers["latency"]
    knots = (2.0**11, 2.0**15, 2.0**18, 2.0**21, 2.0**24, 2.0**28)
    every = {"all": np.ones(len(sizes), dtype=bool)}
    return Part("network, point to point", ("bytes",), (knots,), sizes[:, None], seconds, every, np.arange(len(sizes)))


def calibrate(facts: Facts, folder: Path) -> tuple[Device, list[Error]]:
    """The device fitted to the tables in `folder`, and the errors on held-out points. Raises TableError."""

    def table(name: str, kind: Kind, device: str = facts.name) -> Table:
        return read_table(folder / f"{device}_{name}.csv.gz", kind)

    gemm = gemm_part(table("gemm", GEMM), facts)
    prefill = attention_part("prefill", table("prefill_attention", ATTENTION))
    decode = attention_part("decode", table("decode_attention", ATTENTION))
    reduces = all_reduce_parts(table("collectives", COLLECTIVES))
    # Only an A100's element-wise operations and network were measured.
    streams = stream_parts(table("vidur_layer_ops", LAYER_OPS, "a100"))
    peer = peer_part(table("vidur_network", NETWORK, "a100"))
    parts = [gemm, prefill, decode, *reduces.values(), *((*streams.values(), peer) if facts is A100 else ())]
    device = Device(
        name=facts.name,
        title=facts.title,
        memory_bytes=facts.memory_bytes,
        gemm=gemm.fit(),
        prefill=prefill.fit(),
        decode=decode.fit(),
        all_reduce={gpus: part.fit() for gpus, part in reduces.items()},
        streams={name: faster_memory(part.fit(), facts.stream_scale) for name, part in streams.items()},
        host_link=Link(20e-6, facts.host_bytes_per_s),
        peer_link=Link(20e-6, facts.peer_bytes_per_s or peer.points[-1, 0] / peer.seconds[-1]),
        load=Link(10.0, 5e9),
        step_fixed_s=0.0,
        sources=(_AICONFIGURATOR, _VIDUR),
        estimated=facts.estimated,
    )
    return device, [error for part in parts for error in part.errors()]
