"""Where a step's time goes on this GPU: what its kernels take, by torch's profiler, and what the host does meanwhile.

    python -m benchmarks.gpu.kernels [16x512 512@15000 16x512+512@15000 ...] [--layers 8] [--host] [--trace DIR]

`16x512`: 16 decode rows of 512 tokens; `512@15000`: 512 tokens of a prompt after 15,000; `4*128@0`: four such rows;
joined by `+`, they are one step. Over a model of an 8B's shape, with fewer layers if asked. Steps are queued two at a
time, as an instance does; a step's kernels together, beside the step's whole time, tell what the host costs. A kernel
that begins before the one before it is done (`hopper.py`) counts its wait, too: their sum may be more than the step.
"""

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.driver import EngineDriver
from benchmarks.gpu.plan import GPU, TINY, SpeedShape
from benchmarks.gpu.random_model import random_model, random_tokens
from dunlin.engine.decoder.decoder import Decoder
from dunlin.engine.device.base import EngineDevice
from dunlin.engine.device.choice import open_device

USUAL = ("16x512", "2048@0", "16x512+512@15000")
COUNTED, UNCOUNTED, TRACED = 20, 4, 4
ROOM = UNCOUNTED + 2 * COUNTED + 2 * TRACED
"""Steps of a shape, with the host's functions and a trace: as many tokens does a decode row need."""
SHOWN = 16


@dataclass(frozen=True, slots=True)
class StepShape:
    """Decode rows by the tokens before them, and other rows as (tokens, tokens before them)."""

    name: str
    decode: tuple[int, ...]
    prompts: tuple[tuple[int, int], ...]


def step_shape(text: str) -> StepShape:
    """:raises ValueError: it is none."""
    decode: list[int] = []
    prompts: list[tuple[int, int]] = []
    for part in text.split("+"):
        rows, is_decode, context = part.partition("x")
        if is_decode:
            decode += [int(context)] * int(rows)
            continue
        count, is_many, row = part.rpartition("*")
        tokens, _, after = row.partition("@")
        prompts += [(int(tokens), int(after or 0))] * (int(count) if is_many else 1)
    return StepShape(text, tuple(decode), tuple(prompts))


class StepProfiler:
    """Owns a driver; shows what steps of a shape take."""

    def __init__(self, driver: EngineDriver, device: EngineDevice, vocabulary: int) -> None:
        self._driver = driver
        self._device = device
        self._vocabulary = vocabulary
        self._random = torch.Generator().manual_seed(1)

    def show(self, shape: StepShape, with_host: bool, traces: Path | None) -> None:
        """Print one shape's table; `with_host`: and the functions of the host that take longest."""
        steps = self._steps(shape)
        steps(UNCOUNTED)
        began_s = time.perf_counter()
        steps(COUNTED)
        whole_us = 1e6 * (time.perf_counter() - began_s) / COUNTED
        if self._device.torch_device.type == "cuda":
            self._show_kernels(shape, steps, whole_us, traces)
        else:
            print(f"\n{shape.name}: {whole_us:.0f} us a step", flush=True)
        if with_host:
            watch = cProfile.Profile()
            watch.runcall(steps, COUNTED)
            pstats.Stats(watch).sort_stats("tottime").print_stats(SHOWN)
        self._driver.close()

    def _steps(self, shape: StepShape) -> Callable[[int], None]:
        decode = [self._driver.open(self._tokens(count), ROOM, is_written=True) for count in shape.decode]
        # Not sampled, so that the same tokens may be computed again.
        prompts = [
            (self._driver.open(self._tokens(after + tokens), 1, is_written=True), after, after + tokens)
            for tokens, after in shape.prompts
        ]
        return lambda count: self._driver.mixed_steps(decode, prompts, count)

    def _show_kernels(
        self, shape: StepShape, steps: Callable[[int], None], whole_us: float, traces: Path | None
    ) -> None:
        with profile(activities=[ProfilerActivity.CUDA]) as found:
            steps(TRACED)
            torch.cuda.synchronize()
        rows = [(each.self_device_time_total / TRACED, each.count / TRACED, each.key) for each in found.key_averages()]
        on_device_us = sum(took for took, _, _ in rows)
        print(f"\n{shape.name}: {whole_us:.0f} us a step, of which kernels {on_device_us:.0f} us", flush=True)
        for took_us, count, key in sorted(rows, reverse=True)[:SHOWN]:
            print(f"{took_us:9.1f} us {count:7.1f} x {took_us / max(count, 1e-9):8.2f}  {key[:100]}")
        if traces is not None:
            traces.mkdir(parents=True, exist_ok=True)
            with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as whole:
                steps(TRACED)
                torch.cuda.synchronize()
            whole.export_chrome_trace(str(traces / f"{shape.name}.json"))

    def _tokens(self, count: int) -> list[int]:
        return random_tokens(count, self._vocabulary, self._random)


def _warm_up(device: EngineDevice, decoder: Decoder) -> None:
    """As an engine does before it serves; the segments are thrown away."""
    assert device.begin_segments is not None
    torch.cuda.synchronize()
    free_before, began_s = torch.cuda.mem_get_info()[0], time.perf_counter()
    count = 0

    def beat() -> None:
        nonlocal count
        count += 1

    device.begin_segments(decoder, beat)
    torch.cuda.synchronize()
    taken = free_before - torch.cuda.mem_get_info()[0]
    print(f"{count} segments recorded in {time.perf_counter() - began_s:.1f} s, {taken >> 20} MiB", flush=True)


def _slots(shapes: list[StepShape]) -> int:
    """KV that the largest of them needs, and as much as there is at least."""
    return 4096 + max(
        sum(count + ROOM for count in shape.decode) + sum(tokens + after + 1 for tokens, after in shape.prompts)
        for shape in shapes
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", nargs="*", type=step_shape, default=[*map(step_shape, USUAL)], metavar="STEP")
    parser.add_argument("--layers", type=int, default=GPU.speed.layers)
    parser.add_argument("--host", action="store_true", help="the host's functions, too, by cProfile")
    parser.add_argument("--trace", type=Path, metavar="DIR", help="write each kernel's times, as Chrome reads them")
    parser.add_argument("--warm-up", action="store_true", help="record the usual sizes first, and show what that takes")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or interpret: tiny shapes without a GPU")
    options = parser.parse_args()
    shapes: list[StepShape] = options.steps
    device = open_device(options.device)
    is_gpu = device.torch_device.type == "cuda"
    model: SpeedShape = replace(GPU.speed, layers=options.layers) if is_gpu else TINY.speed
    loaded = random_model(model, device, _slots(shapes))
    if options.warm_up:
        _warm_up(device, loaded.decoder)
    profiler = StepProfiler(EngineDriver(loaded, device), device, model.vocab)
    for shape in shapes:
        profiler.show(shape, options.host, options.trace)


if __name__ == "__main__":
    main()
