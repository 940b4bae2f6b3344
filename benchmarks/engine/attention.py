"""Attention of one step on the CPU: the paged kernel against torch's fused attention, sequence by sequence, and in fp32
the deterministic mode's by the kernel (exact) and by torch (tiles).

    python -m benchmarks.engine.attention [--threads N] [--layers N] [--turns N] [--cpu-time] [--json]

Model B's shape (16 heads over 8 KV heads of 64), decode batches of 1, 16 and 64 ragged sequences of 100 to 1,000 tokens
whose KV is one run of slots or two, and prompts. The backends take turns within one process; milliseconds for 16
layers, the least of several turns. `--cpu-time` counts this process's CPU seconds: for a machine that others keep busy.
"""

import argparse
import json
import os
import random
import time
from array import array
from collections.abc import Callable
from itertools import product

import torch

from dunlin.engine.attention.base import AttentionPlan, LocalRows, run_pass
from dunlin.engine.attention.block_tiles import TileBlocks
from dunlin.engine.attention.deterministic import DeterministicAttention
from dunlin.engine.attention.fused import FusedAttention
from dunlin.engine.attention.paged import PagedAttention
from dunlin.engine.attention.spans import Runs

HEADS, KV_HEADS, HEAD_DIM, LAYERS = 16, 8, 64, 16
_random = random.Random(1)
CASES = {
    "decode 1": [(1, 1000)],
    "decode 16": [(1, _random.randint(100, 1000)) for _ in range(16)],
    "decode 64": [(1, _random.randint(100, 1000)) for _ in range(64)],
    "8 rows of 8": [(8, 500)] * 8,
    "prompt of 512": [(512, 512)],
    "chunk of 256": [(256, 1280)],
}
"""(tokens computed, tokens of the sequence with them)."""


def make_rows(shapes: list[tuple[int, int]], runs: int) -> LocalRows:
    """Rows whose sequences lie one after another; with two runs the first third of each lies behind the rest."""
    starts: list[int] = []
    stops: list[int] = []
    lengths: list[int] = []
    placed: list[Runs] = []
    token = slot = 0
    for tokens, length in shapes:
        cut = length // 3
        pieces: Runs = (array("q", [0]), array("q", [slot]))
        if runs == 2:
            pieces = array("q", [0, cut]), array("q", [slot + length - cut, slot])
        starts.append(token)
        token, slot = token + tokens, slot + length
        stops.append(token)
        lengths.append(length)
        placed.append(pieces)
    return LocalRows(starts, stops, lengths, placed)


def compare(
    shapes: list[tuple[int, int]], runs: int, dtype: torch.dtype, layers: int, turns: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Milliseconds of each backend for `LAYERS` layers, computed over `layers` slabs that no cache holds together."""
    rows, slots = make_rows(shapes, runs), sum(length for _, length in shapes)
    slabs = [torch.randn(slots, 2, KV_HEADS, HEAD_DIM).to(dtype) for _ in range(layers)]
    query = torch.randn(rows.stops[-1], HEADS, HEAD_DIM).to(dtype)
    plans: dict[str, AttentionPlan] = {"torch": FusedAttention().plan(rows), "paged": PagedAttention().plan(rows)}
    if dtype is torch.float32:
        plans["exact"] = DeterministicAttention().plan(rows)
        plans["tiles"] = DeterministicAttention(TileBlocks()).plan(rows)

    def attend(plan: AttentionPlan) -> float:
        began = clock()
        for slab in slabs:
            run_pass(plan.start(query, slab), lambda: None)
        return (clock() - began) * 1e3 * LAYERS / layers

    taken = [{name: attend(plan) for name, plan in plans.items()} for _ in range(turns + 1)][1:]
    least = {name: min(turn[name] for turn in taken) for name in plans}
    return {**least, "ratio": least["torch"] / least["paged"]}


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--layers", type=int, default=8, help="slabs to compute over (default: 8)")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    load = os.getloadavg()[0]
    found = []
    if not options.json:
        print(f"{options.threads} threads, {'CPU' if options.cpu_time else 'wall-clock'} time, load {load:.1f}")
        print(f"{'':16}{'dtype':>10}{'runs':>6}{'torch ms':>10}{'paged ms':>10}{'ratio':>7}{'exact':>10}{'tiles':>10}")
    for dtype, (case, shapes), runs in product((torch.bfloat16, torch.float32), CASES.items(), (1, 2)):
        one = compare(shapes, runs, dtype, options.layers, options.turns, clock)
        found.append({"case": case, "runs": runs, "dtype": str(dtype)[6:], **one})
        if not options.json:
            figures = f"{one['torch']:10.2f}{one['paged']:10.2f}{one['ratio']:7.2f}"
            figures += "".join(f"{one[name]:10.2f}" for name in ("exact", "tiles") if name in one)
            print(f"{case:16}{str(dtype)[6:]:>10}{runs:6}{figures}", flush=True)
    if options.json:
        print(json.dumps({"threads": options.threads, "load": load, "cpu_time": options.cpu_time, "cases": found}))


if __name__ == "__main__":
    main()
