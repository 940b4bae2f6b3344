"""What a change of layers costs an engine: `python -m benchmarks.engine.remap [--rounds 3] [--layers 8] [--json]`.

One engine, in this process, one thread, bf16. Half of its layers go and come back, from host memory and from disk in
turns, while decode steps of sixteen rows run between pieces of work. A stall is what one call of `advance` takes: by
how much a step may be late. Beside it, in the same run: the same phases done at once, a copy and a hash of the same
bytes, and pages touched for the first time. Times are the thread's own, so that a busy machine changes them little; the
longest stall by the clock stands beside them.
"""

import math
import mmap
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
import xxhash

from benchmarks.harness import report
from benchmarks.harness.report import BenchmarkResult, say
from dunlin.engine.attention.base import local_row
from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.decoder import DecoderBatch
from dunlin.engine.decoder.iteration import forward
from dunlin.engine.decoder.loader import LoadedModel, load_model
from dunlin.engine.decoder.random_checkpoint import CheckpointShape, write_random_checkpoint
from dunlin.engine.decoder.weight_sources import CheckpointSource, HostSource, WeightSource
from dunlin.engine.execution.remap import LayerRemapper
from dunlin.messages.engine import Remap
from dunlin.messages.types import RemapPhase, i32

STALL_MS_AT_MOST = 10.0
ROWS, CONTEXT, STEP_EVERY = 16, 128, 4
AWAY = (RemapPhase.PREPARE, RemapPhase.DROP_WEIGHTS, RemapPhase.RELEASE_KV)
BACK = (RemapPhase.PREPARE, RemapPhase.LOAD, RemapPhase.COMMIT)


@dataclass(frozen=True, slots=True)
class RemapPlan:
    """`layers` of 12 MiB; `kv_mib` of KV over all; `rounds` of there and back with each source."""

    layers: int = 8
    kv_mib: int = 64
    rounds: int = 3

    @property
    def shape(self) -> CheckpointShape:
        return CheckpointShape(self.layers, 768, 12, 4, 64, 2048, 4096, 4096, dtype="bfloat16")


class RemapBench:
    """One engine; owns the times of its phases, in milliseconds."""

    def __init__(self, loaded: LoadedModel, directory: Path) -> None:
        self.loaded = loaded
        self.remapper = LayerRemapper(loaded.arena, loaded.weights, CheckpointSource(directory))
        self.pieces_ms: dict[str, list[float]] = defaultdict(list)
        self.longest_ms: dict[str, float] = defaultdict(float)
        self.whole_ms: dict[str, list[float]] = defaultdict(list)
        self.steps_ms: list[float] = []
        self._layout = 0

    def change(
        self, phases: tuple[RemapPhase, ...], layers: int, name: str, source: WeightSource | None, steps: bool
    ) -> list[int]:
        """Carry a change out; the slots after each phase."""
        slots = []
        self._layout += 1
        for phase in phases:
            order = Remap(self._layout, phase, i32(range(layers)))
            label, from_source = f"{phase.name} {name}".strip(), source if phase is RemapPhase.LOAD else None
            before = len(self.pieces_ms[label])
            self._piece(label, partial(self.remapper.begin, order, from_source))
            while self.remapper.busy:
                self._piece(label, self.remapper.advance)
                if steps and len(self.pieces_ms[label]) % STEP_EVERY == 0:
                    self.step()
            self.whole_ms[label].append(math.fsum(self.pieces_ms[label][before:]))
            slots.append(self.remapper.slots)
        return slots

    def _piece(self, label: str, work: Callable[[], object]) -> None:
        began_s = time.perf_counter()
        self.pieces_ms[label].append(_timed(work) * 1e3)
        self.longest_ms[label] = max(self.longest_ms[label], (time.perf_counter() - began_s) * 1e3)

    def step(self) -> None:
        """One decode step over the layers held."""
        places = torch.arange(ROWS) * CONTEXT + CONTEXT - 1
        rows = [local_row(row, row + 1, row * CONTEXT, CONTEXT) for row in range(ROWS)]
        tokens = torch.arange(ROWS)
        batch = DecoderBatch(tokens, tokens * 0 + CONTEXT - 1, places, rows, tokens)
        self.steps_ms.append(_timed(lambda: forward(self.loaded.decoder, batch)) * 1e3)


@torch.inference_mode()
def measure(plan: RemapPlan, outcome: BenchmarkResult) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "model"
        write_random_checkpoint(directory, "llama", plan.shape)
        fd = os.memfd_create("dunlin-bench-arena")
        loaded = load_model(directory, "bfloat16", plan.kv_mib << 20, numerics.fast_numerics(), fd)
        bench = RemapBench(loaded, directory)
        host = {layer: loaded.arena.layer_room(layer).content.clone() for layer in range(plan.layers // 2, plan.layers)}
        for layer in loaded.decoder.kv:
            layer[: loaded.slots] = 0.0
        sources: dict[str, WeightSource | None] = {"from host": HostSource(host), "from disk": None}
        slots: list[int] = [loaded.slots]
        for turn in range(plan.rounds):
            for name, source in sources.items():
                say(f"round {turn + 1}: {name}")
                away = bench.change(AWAY, plan.layers // 2, "", None, steps=True)
                back = bench.change(BACK, plan.layers, name, source, steps=True)
                slots = [slots[0], away[1], away[2], back[2]]
        pieces = dict(bench.pieces_ms)
        at_once = RemapBench(loaded, directory)
        at_once._layout = bench._layout
        at_once.change(AWAY, plan.layers // 2, "", None, steps=False)
        at_once.change(BACK, plan.layers, "from host", sources["from host"], steps=False)
        _report(plan, outcome, bench, pieces, at_once, slots, sum(len(each) for each in host.values()))
        loaded.arena.close()
        os.close(fd)


def _report(
    plan: RemapPlan,
    outcome: BenchmarkResult,
    bench: RemapBench,
    pieces: dict[str, list[float]],
    at_once: RemapBench,
    slots: list[int],
    loaded_bytes: int,
) -> None:
    outcome.figures["weights that move (MiB)"] = loaded_bytes / (1 << 20)
    outcome.figures["slots: before, weights dropped, KV released, back"] = slots
    outcome.figures["slots gained"] = slots[2] / slots[0]
    for name, found in pieces.items():
        ordered = sorted(found)
        whole = statistics.median(bench.whole_ms[name])
        stalls = (statistics.median(ordered), ordered[-1], bench.longest_ms[name])
        outcome.figures[f"{name}: stall p50, most, most by the clock; all of a round (ms)"] = (*stalls, whole)
    for name, (whole_ms,) in at_once.whole_ms.items():
        outcome.figures[f"{name}: if it were done at once (ms)"] = whole_ms
    copy_s, hash_s, touch_s = _limits(loaded_bytes)
    rates = {"copy": copy_s, "hash": hash_s, "first touch": touch_s}
    outcome.figures["machine: copy, hash, first touch (GB/s)"] = [loaded_bytes / s / 1e9 for s in rates.values()]
    for name in ("from host", "from disk"):
        load_s = statistics.median(bench.whole_ms[f"LOAD {name}"]) / 1e3
        outcome.figures[f"LOAD {name}: GB/s; share of a copy and a hash"] = (
            loaded_bytes / load_s / 1e9,
            (copy_s + hash_s) / load_s,
        )
    outcome.figures["decode step between pieces: p50, p99 (ms)"] = (
        statistics.median(bench.steps_ms),
        sorted(bench.steps_ms)[int(0.99 * (len(bench.steps_ms) - 1))],
    )
    for name, found in pieces.items():
        outcome.expect(max(found) <= STALL_MS_AT_MOST, f"{name} stalls for {max(found):.1f} ms")


def _limits(size: int) -> tuple[float, float, float]:
    """Seconds to copy and to hash so many bytes in memory, and to touch fresh pages of a memory file."""
    source, target = np.ones(size, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
    copy_s = min(_timed(lambda: np.copyto(target, source)) for _ in range(3))
    hash_s = min(_timed(lambda: xxhash.xxh3_128(source.data)) for _ in range(3))
    fd = os.memfd_create("dunlin-bench-fresh")
    os.ftruncate(fd, size)
    fresh = np.frombuffer(mmap.mmap(fd, size), dtype=np.uint8)
    touch_s = _timed(lambda: fresh[:: mmap.PAGESIZE].fill(1))
    os.close(fd)
    return copy_s, hash_s, touch_s


def _timed(work: Callable[[], object]) -> float:
    """Seconds that this thread computed."""
    began_s = time.thread_time()
    work()
    return time.thread_time() - began_s


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    plan = RemapPlan()
    arguments.add_argument("--rounds", type=int, default=plan.rounds)
    arguments.add_argument("--layers", type=int, default=plan.layers, help="an even number")
    arguments.add_argument("--kv-mib", type=int, default=plan.kv_mib)
    given = arguments.parse_args(argv)
    outcome = BenchmarkResult("remap: half of the layers dropped and restored between decode steps")
    measure(RemapPlan(given.layers, given.kv_mib, given.rounds), outcome)
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
