"""Which tiles suit this GPU's attention: prompts and decode rows of an 8B's heads, with several sizes of tiles each.

    python -m benchmarks.gpu.tune [--only prompts] [--seconds 60]

Prints TFLOP/s of prompts and GB/s of decode rows for each; `TileSizes` of `engine/attention/triton_paged.py` has what
was best on an H100.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import torch
from triton.testing import do_bench

from dunlin.engine.attention.base import LocalRows, run_pass
from dunlin.engine.attention.spans import slot_span
from dunlin.engine.attention.triton_paged import SIZES, TileShape, TileSizes, TritonAttention

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
PROMPTS = ((1, 2048), (1, 8192))
DECODES = ((1, 4096), (16, 512), (16, 4096), (64, 4096))
WIDE = [
    TileShape(*each) for each in product((128, 64), (64, 128), (8, 4), (3, 2)) if each[0] * each[1] >= each[2] << 10
]
NARROW = [TileShape(16, *each) for each in product((32, 64, 128), (2, 4, 8), (2, 3, 4))]
LEAST_KEYS = (256, 512)


def main() -> int:
    """Try all sizes; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="no size is begun after so many")
    parser.add_argument("--only", choices=("decode", "prompts"), help="the others are not tried")
    options = parser.parse_args()
    until_s = time.monotonic() + options.seconds
    for name, bench, shapes in (("prompts", _prompts, PROMPTS), ("decode", _decode, DECODES)):
        for sizes in _candidates(name) if options.only in (None, name) else ():
            if time.monotonic() >= until_s:
                print("no time left", file=sys.stderr)
                return 1
            try:
                found = [f"{rows} x {tokens}: {bench(sizes, rows, tokens):7.1f}" for rows, tokens in shapes]
            except Exception as error:  # too large for the GPU: the next size may fit
                found = [f"{type(error).__name__}: {str(error)[:60]}"]
            print(name, _told(name, sizes), "|", ", ".join(found), flush=True)
    return 0


def _candidates(name: str) -> Iterator[TileSizes]:
    if name == "prompts":
        yield from (TileSizes(wide=wide) for wide in WIDE)
    else:
        yield from (TileSizes(narrow=narrow, least_keys=least) for least in LEAST_KEYS for narrow in NARROW)


def _told(name: str, sizes: TileSizes) -> str:
    shape = sizes.wide if name == "prompts" else sizes.narrow
    return f"lines {shape.lines} keys {shape.keys} warps {shape.warps} stages {shape.stages} least {sizes.least_keys}"


def _prompts(sizes: TileSizes, rows: int, tokens: int) -> float:
    """TFLOP/s of causal attention, two for each multiplication and addition."""
    took_s = _seconds(sizes, [tokens] * rows, [tokens] * rows)
    return 2.0 * rows * tokens * tokens * HEADS * HEAD_DIM / took_s / 1e12


def _decode(sizes: TileSizes, rows: int, tokens: int) -> float:
    """GB/s of keys and values."""
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


def _graphed(work: Callable[[], None]) -> float:
    """Seconds of a call, without the host's launches."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    took_ms = do_bench(graph.replay, warmup=5, rep=25, return_mode="median")
    return 1e-3 * float(took_ms)


if __name__ == "__main__":
    print(f"{torch.cuda.get_device_name()}; now: {SIZES}")
    sys.exit(main())
