"""What a change of layers costs an engine: `python -m benchmarks.engine.remap [--rounds 3] [--layers 8] [--json]`.

One engine, in this process, one thread, bf16. Half of its layers go and come back, from shared memory and from disk in
turns, by the messages that an instance sends, while decode steps of sixteen rows are always queued. A stall is what a
turn of the engine takes beside its step: by how much a step may be late. Beside it, in the same run: the same phases
done at once, a copy and a hash of the same bytes, and pages touched for the first time. Times are the thread's own, so
that a busy machine changes them little; the longest stall by the clock stands beside them.
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
from pathlib import Path

import numpy as np
import torch
import xxhash

from benchmarks.harness import report
from benchmarks.harness.report import BenchmarkResult, say
from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.loading.loader import LoadedModel, load_model
from dunlin.engine.decoder.loading.random_checkpoint import CheckpointShape, write_random_checkpoint
from dunlin.engine.decoder.loading.weight_sources import CheckpointSource
from dunlin.engine.execution.engine_layers import LayerMemory
from dunlin.engine.execution.engine_transfers import OwnMemory
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.transfer.arena_slots import slab_of
from dunlin.messages.engine import Close, LayerSource, Open, Remap, RemapDone, Step, StepDone
from dunlin.messages.types import RemapPhase, SamplingParams, i8, i32, i64

STALL_MS_AT_MOST = 10.0
ROWS, CONTEXT = 16, 128
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
    """One engine, commanded by messages; owns the times of its phases, in milliseconds.

    A stall is what a turn of the engine takes beside its step: by how much that step, or the next one, is late.
    """

    def __init__(self, loaded: LoadedModel, directory: Path, first_layout: int = 0) -> None:
        self.loaded = loaded
        memory = OwnMemory(slab_of(loaded.arena, loaded.decoder.kv))
        layers = LayerMemory(loaded.arena, loaded.weights, CheckpointSource(directory))
        clock = time.thread_time
        self.runner = EngineRunner(loaded.decoder, loaded.slots, clock, memory=memory, layers=layers)
        self.pieces_ms: dict[str, list[float]] = defaultdict(list)
        self.longest_ms: dict[str, float] = defaultdict(float)
        self.whole_ms: dict[str, list[float]] = defaultdict(list)
        self.steps_ms: list[float] = []
        self.layout = first_layout
        self._steps = 0

    def change(
        self, phases: tuple[RemapPhase, ...], layers: int, name: str, sources: tuple[LayerSource, ...], steps: bool
    ) -> list[int]:
        """Carry a change out; the slots after each phase."""
        slots = []
        self.layout += 1
        self._open()
        for phase in phases:
            from_sources = sources if phase is RemapPhase.LOAD else ()
            message = Remap(self.layout, phase, i32(range(layers)), sources=from_sources)
            label = f"{phase.name} {name}".strip()
            before = len(self.pieces_ms[label])
            events = self.runner.receive(message)
            while self.runner.busy:
                if steps:
                    events += self.runner.receive(self._step())
                events += self._turn(label)
            (done,) = [event for event in events if isinstance(event, RemapDone)]
            self.whole_ms[label].append(math.fsum(self.pieces_ms[label][before:]))
            slots.append(done.slots)
        return slots

    def _turn(self, label: str) -> list[object]:
        began_s = time.perf_counter()
        events: list[object] = []
        took_s = _timed(lambda: events.extend(self.runner.work(lambda: False)))
        by_clock_s = time.perf_counter() - began_s
        step_s = math.fsum(event.compute_s for event in events if isinstance(event, StepDone))
        self.steps_ms += [step_s * 1e3] if step_s else []
        self.pieces_ms[label].append((took_s - step_s) * 1e3)
        self.longest_ms[label] = max(self.longest_ms[label], (by_clock_s - step_s) * 1e3)
        return events

    def _open(self) -> None:
        """Sixteen sequences whose KV is taken for valid in the layers that are here."""
        tokens = i32(range(CONTEXT))
        for row in range(1, ROWS + 1):
            self.runner.receive(Close(row))
            extents = i64([(row - 1) * CONTEXT]), i64([CONTEXT])
            self.runner.receive(Open(row, tokens, CONTEXT - 1, 8, SamplingParams(), i32(), *extents))

    def _step(self) -> Step:
        """A decode step of all sequences over the first layers held: their last token again."""
        self._steps += 1
        rows, held = range(ROWS), self.loaded.arena.record.held
        last, one = i64([CONTEXT - 1] * ROWS), i64([1] * ROWS)
        slots = i64([row * CONTEXT + CONTEXT - 1 for row in rows])
        stop = i64([CONTEXT] * ROWS)
        is_whole = len(held) == len(self.loaded.decoder.kv)
        return Step(
            self._steps, i64(range(1, ROWS + 1)), last, stop, i8([0] * ROWS), i32(rows), slots, one,
            layer_stop=0 if is_whole else len(held), hidden_out=0 if is_whole else 1,
            layout=self.loaded.arena.record.layout,
        )  # fmt: skip


@torch.inference_mode()
def measure(plan: RemapPlan, outcome: BenchmarkResult) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "model"
        write_random_checkpoint(directory, "llama", plan.shape)
        fd = os.memfd_create("dunlin-bench-arena")
        loaded = load_model(directory, "bfloat16", plan.kv_mib << 20, numerics.fast_numerics(), fd)
        bench = RemapBench(loaded, directory)
        half = range(plan.layers // 2, plan.layers)
        host = [loaded.arena.layer_room(layer).content.numpy().tobytes() for layer in half]
        shared = os.memfd_create("dunlin-bench-weights")
        os.write(shared, b"".join(host))
        for layer in loaded.decoder.kv:
            layer[: loaded.slots] = 0.0
        path, size = f"/proc/self/fd/{shared}", len(host[0])
        from_host = tuple(LayerSource(layer, path=path, offset_bytes=at * size) for at, layer in enumerate(half))
        sources: dict[str, tuple[LayerSource, ...]] = {"from host": from_host, "from disk": ()}
        slots: list[int] = [loaded.slots]
        for turn in range(plan.rounds):
            for name, named in sources.items():
                say(f"round {turn + 1}: {name}")
                away = bench.change(AWAY, plan.layers // 2, "", (), steps=True)
                back = bench.change(BACK, plan.layers, name, named, steps=True)
                slots = [slots[0], away[1], away[2], back[2]]
        pieces = dict(bench.pieces_ms)
        at_once = RemapBench(loaded, directory, bench.layout)
        at_once.change(AWAY, plan.layers // 2, "", (), steps=False)
        at_once.change(BACK, plan.layers, "from host", from_host, steps=False)
        _report(plan, outcome, bench, pieces, at_once, slots, sum(len(each) for each in host))
        os.close(shared)
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
