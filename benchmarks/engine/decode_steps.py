"""Decode steps on the CPU: all layers in one call of a kernel, layer by layer with the kernels for few rows, by torch.

    python -m benchmarks.engine.decode_steps [--models A,B] [--threads N] [--turns N]

Layers, logits and the choice of the greatest, bf16, random weights. The three take turns within one process;
milliseconds a step, the least of several turns. With one thread they are of the thread's CPU time: for a machine that
others keep busy. By torch: products, norms, gates and rotations; attention is the paged kernel in all three.
"""

import argparse
import os
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.harness.model_shapes import SHAPES
from dunlin.engine.attention.base import LocalRows
from dunlin.engine.attention.choice import choose_backend
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.iteration import Iteration
from dunlin.engine.decoder.layer_segments import BeginSegments
from dunlin.engine.decoder.loading.loader import load_model
from dunlin.engine.decoder.loading.random_checkpoint import write_random_checkpoint
from dunlin.engine.decoder.native.decode_choice import choose_decode_steps
from dunlin.engine.decoder.numerics import Numerics, choose_fast_numerics, fast_numerics

CASES = ((1, 128), (4, 128), (8, 128), (16, 128), (64, 128), (16, 600))
"""(rows, tokens of each sequence)."""


def make_batch(rows: int, length: int) -> DecoderBatch:
    """Rows whose sequences lie one after another."""
    runs = [(array("q", [0]), array("q", [row * length])) for row in range(rows)]
    at = torch.arange(rows)
    packed = LocalRows(list(range(rows)), list(range(1, rows + 1)), [length] * rows, runs)
    return DecoderBatch(at, torch.full((rows,), length - 1), at * length + length - 1, packed, at)


def compute(decoder: Decoder, batch: DecoderBatch, begin: BeginSegments | None) -> None:
    iteration = Iteration(decoder, batch, range(len(decoder.kv)), begin_segments=begin)
    while not iteration.done:
        iteration.advance()
    rows = range(len(batch.rows))
    greatest = iteration.greatest(rows)
    iteration.logits(rows).argmax(-1) if greatest is None else greatest.read()


def load(directory: Path, numerics: Numerics) -> Decoder:
    kv_bytes = max(rows * length for rows, length in CASES) * (32 << 10)
    return load_model(directory, "bfloat16", 2 * kv_bytes, numerics, os.memfd_create("benchmark-arena")).decoder


def measure(model: str, turns: int, clock: Callable[[], float]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "model"
        write_random_checkpoint(directory, shape=SHAPES[model])
        ours, plain = load(directory, choose_fast_numerics()[0]), load(directory, fast_numerics(choose_backend()[0]))
    ways = {"kernel": (ours, choose_decode_steps(ours)), "by layer": (ours, None), "torch": (plain, None)}
    for rows, length in CASES:
        batch, least = make_batch(rows, length), dict.fromkeys(ways, float("inf"))
        for _ in range(turns):
            for name, way in ways.items():
                began = clock()
                compute(way[0], batch, way[1])
                least[name] = min(least[name], clock() - began)
        figures = "".join(f"{1e3 * least[name]:12.2f}" for name in ways)
        ratios = "".join(f"{least[name] / least['kernel']:12.2f}" for name in ("by layer", "torch"))
        print(f"{model:6}{rows:6}{length:8}{figures}{ratios}", flush=True)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="A,B")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    print(f"{options.threads} threads, load {os.getloadavg()[0]:.1f}; ms, and the times of the kernel's")
    print(
        f"{'model':6}{'rows':>6}{'tokens':>8}{'kernel':>12}{'by layer':>12}{'torch':>12}{'by layer':>12}{'torch':>12}"
    )
    for model in options.models.split(","):
        measure(model, options.turns, clock)


if __name__ == "__main__":
    main()
