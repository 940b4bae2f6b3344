"""Which tiles suit this GPU, for an 8B's shape: attention of prompts and of decode rows, and gates of few rows.

    python -m benchmarks.gpu.tune [--only prompts decode gates] [--seconds 60] [--helpers 12]

Prints TFLOP/s of prompts and GB/s of the others for each size of tile; gates beside the library's product. What was
best on an H100 is in `TileSizes` of `engine/attention/tile_sizes.py` and `TILES` of
`engine/decoder/gpu/triton_products.py`. So many `--helpers` compile first: that takes longer than the measurements.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from triton.testing import do_bench

from dunlin.engine.attention.base import LocalRows, run_pass
from dunlin.engine.attention.spans import slot_span
from dunlin.engine.attention.tile_sizes import SIZES, TileShape, TileSizes
from dunlin.engine.attention.triton_paged import TritonAttention
from dunlin.engine.decoder.gpu.triton_products import ProductTile, gated_product
from dunlin.engine.decoder.gpu.triton_rows import silu_gate

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
PROMPTS = ((512, 0), (512, 15_000), (2048, 0), (2048, 30_000), (8192, 0))
"""Tokens, after so many."""
DECODES = ((16, 530), (64, 530), (256, 530), (16, 4096), (64, 4096))
GATES, HIDDEN = 14336, 4096
GATE_ROWS = (16, 64)
WIDE = [
    TileShape(*each) for each in product((128, 64), (64, 128), (8, 4), (3, 2)) if each[0] * each[1] >= each[2] << 10
]
NARROW = [TileShape(16, *each) for each in product((32, 64, 128), (4,), (2, 3, 4))]
SPLIT_KEYS = (256, 512)
TILES = [
    ProductTile(GATE_ROWS[-1], *each)
    for each in product((16, 32, 64), (128, 256), (4,), (3, 4))
    if each[0] * each[1] * each[3] <= 32 << 10
]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One size of tile: `measure()` gives a figure for each of `shapes`."""

    name: str
    told: str
    shapes: Sequence[str]
    measure: Callable[[int], float]


def main() -> int:
    """Try all sizes; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="no size is begun after so many")
    parser.add_argument("--only", nargs="+", default=["prompts", "decode", "gates"], help="kinds that are tried")
    parser.add_argument("--helpers", type=int, default=0, help="processes that compile first")
    parser.add_argument("--share", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    found = [each for name in options.only for each in KINDS[name]()]
    if options.share:
        number, helpers = map(int, options.share.split("/"))
        return _try(found[number::helpers], float("inf"), is_told=False)
    until_s = time.monotonic() + options.seconds
    _compile(options.only, options.helpers)
    print(f"{torch.cuda.get_device_name()}; attention now: {SIZES}; compiled: {until_s - time.monotonic():.0f} s left")
    return _try(found, until_s, is_told=True)


def _compile(only: Sequence[str], helpers: int) -> None:
    started = [
        subprocess.Popen([sys.executable, "-m", "benchmarks.gpu.tune", "--only", *only, "--share", f"{at}/{helpers}"])
        for at in range(helpers)
    ]
    for each in started:
        each.wait()


def _try(candidates: Sequence[Candidate], until_s: float, is_told: bool) -> int:
    for each in candidates:
        if time.monotonic() >= until_s:
            print("no time left", file=sys.stderr)
            return 1
        try:
            found = [f"{shape}: {each.measure(at):7.1f}" for at, shape in enumerate(each.shapes)]
        except Exception as error:  # too large for the GPU: the next size may fit
            found = [f"{type(error).__name__}: {str(error)[:60]}"]
        if is_told:
            print(each.name, each.told, "|", ", ".join(found), flush=True)
    return 0


def _prompt_candidates() -> Iterator[Candidate]:
    shapes = [f"{tokens}@{after}" for tokens, after in PROMPTS]
    for wide in WIDE:
        sizes = TileSizes(wide=wide)
        yield Candidate("prompts", str(wide), shapes, partial(_prompts, sizes))


def _decode_candidates() -> Iterator[Candidate]:
    shapes = [f"{rows} x {tokens}" for rows, tokens in DECODES]
    for keys, narrow in product(SPLIT_KEYS, NARROW):
        sizes = TileSizes(narrow=narrow, split_keys=keys)
        told = f"{narrow} split {keys}"
        yield Candidate("decode", told, shapes, partial(_decode, sizes))


def _gate_candidates() -> Iterator[Candidate]:
    for tile in (None, *TILES):
        yield Candidate("gates", str(tile or "the library's product"), [*map(str, GATE_ROWS)], partial(_gates, tile))


KINDS: dict[str, Callable[[], Iterator[Candidate]]] = {
    "prompts": _prompt_candidates, "decode": _decode_candidates, "gates": _gate_candidates,
}  # fmt: skip


def _gates(tile: ProductTile | None, at: int) -> float:
    """GB/s of weights; by the library's product and a kernel of gates where there is no tile."""
    rows = GATE_ROWS[at]
    weights = [torch.randn(2 * GATES, HIDDEN, device="cuda", dtype=torch.bfloat16) / 64 for _ in range(2)]
    given = torch.randn(rows, HIDDEN, device="cuda", dtype=torch.bfloat16)

    def compute(weight: Tensor) -> Tensor:
        return silu_gate(F.linear(given, weight)) if tile is None else gated_product(given, weight, tile)

    took_s = _graphed(lambda: [compute(weight) for weight in weights])
    return 2 * weights[0].nbytes / took_s / 1e9


def _prompts(sizes: TileSizes, at: int) -> float:
    """TFLOP/s of causal attention, two for each multiplication and addition."""
    tokens, after = PROMPTS[at]
    took_s = _seconds(sizes, [tokens], [after + tokens])
    return 4.0 * tokens * (after + tokens / 2) * HEADS * HEAD_DIM / took_s / 1e12


def _decode(sizes: TileSizes, at: int) -> float:
    """GB/s of keys and values."""
    rows, tokens = DECODES[at]
    took_s = _seconds(sizes, [1] * rows, [tokens] * rows)
    return 4.0 * rows * tokens * KV_HEADS * HEAD_DIM / took_s / 1e9


def _seconds(sizes: TileSizes, queries: Sequence[int], lengths: Sequence[int]) -> float:
    """Of the kernels alone, over consecutive slots; the tables are made before."""
    count, at, rows_at = sum(lengths), 0, 0
    starts, stops, runs = [], [], []
    for tokens, length in zip(queries, lengths, strict=True):
        span = slot_span(range(length), list(range(at, at + length)))
        starts.append(rows_at)
        stops.append(rows_at + tokens)
        runs.append((span.run_at, span.run_slot))
        at, rows_at = at + length, rows_at + tokens
    # Several layers in turn, so that the keys come from memory.
    layers = max(min(int(2e8 // (count * 4 * KV_HEADS * HEAD_DIM)) + 1, 16), 1)
    kv = torch.randn(layers, count, 2, KV_HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    query = torch.randn(rows_at, HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    plan = TritonAttention(sizes).plan(LocalRows(starts, stops, list(lengths), runs))

    def attend() -> None:
        for layer in range(layers):
            run_pass(plan.start(query, kv[layer]), lambda: None)

    return _graphed(attend) / layers


def _graphed(work: Callable[[], Any]) -> float:
    """Seconds of a call, without the host's launches."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    took_ms = do_bench(graph.replay, warmup=5, rep=25, return_mode="median")
    return 1e-3 * float(took_ms)


if __name__ == "__main__":
    sys.exit(main())
