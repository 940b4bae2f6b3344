"""An engine of two ranks beside one of one, as processes: the same texts, and what a decode step takes.

On a machine with two GPUs each rank has one; by the interpreter none is needed.
"""

import statistics
import time
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import torch

from benchmarks.gpu.driver import GREEDY
from benchmarks.gpu.plan import GpuPlan
from benchmarks.gpu.results import Results
from cli.profiling.engine_process import EngineProcess, ProbeOptions
from dunlin.engine.device.base import EngineDevice
from dunlin.messages.engine import Open, Step, StepDone
from dunlin.messages.types import i8, i32, i64

PART = "a: two ranks"
RANKS = 2


def can_compare(device: EngineDevice) -> bool:
    """Whether each rank finds a device."""
    if device.torch_device.type != "cuda":
        return True
    return (device.torch_device.index or 0) + RANKS <= torch.cuda.device_count()


def compare_ranks(
    plan: GpuPlan, device: EngineDevice, results: Results, directory: Path, kv_bytes: int, prompts: Sequence[list[int]]
) -> None:
    """Greedy texts of the model in `directory`, in float32, and the median of their decode steps in seconds."""
    texts = []
    for ranks in (1, RANKS):
        options = ProbeOptions(directory, RANKS * kv_bytes, device=device.name, ranks=ranks)
        process = EngineProcess(options)
        try:
            found, took_s = generate(process, prompts, plan.generated)
        finally:
            process.close()
        texts.append(found)
        results.put(PART, f"decode step of {len(prompts)} rows, {ranks} ranks, s", took_s)
    results.put(PART, "texts: equal", texts[0] == texts[1])
    results.expect(texts[0] == texts[1], f"texts of one rank and of {RANKS} differ: {texts}")


def generate(process: EngineProcess, prompts: Sequence[list[int]], count: int) -> tuple[list[list[int]], float]:
    """`count` tokens after each prompt, the prompts in one step, and the median of what the steps after it took."""
    firsts = [0, *accumulate(len(prompt) + count for prompt in prompts)]
    for number, prompt in enumerate(prompts, start=1):
        process.send(Open(number, i32(prompt), len(prompt), count, GREEDY, i32()))
    texts, ends, took = [list[int]() for _ in prompts], [0] * len(prompts), []
    for number in range(1, count + 1):
        stops = [len(prompt) + len(text) for prompt, text in zip(prompts, texts, strict=True)]
        began_s = time.perf_counter()
        process.send(_step(number, ends, stops, firsts))
        done = process.receive(StepDone)
        took.append(time.perf_counter() - began_s)
        for text, token in zip(done.sequence, done.token, strict=True):
            texts[text - 1].append(token)
        ends = stops
    return texts, statistics.median(took[1:])


def _step(number: int, starts: Sequence[int], stops: Sequence[int], firsts: Sequence[int]) -> Step:
    """All texts' tokens from `starts` to `stops`; text n has slots from `firsts[n]` on."""
    count = len(starts)
    lengths = [stop - start for start, stop in zip(starts, stops, strict=True)]
    slots = [first + start for first, start in zip(firsts, starts, strict=False)]
    return Step(
        number, i64(range(1, count + 1)), i64(starts), i64(stops), i8([1] * count), i32(range(count)), i64(slots),
        i64(lengths),
    )  # fmt: skip
