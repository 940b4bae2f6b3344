"""Where a step's time goes on this GPU: the kernels of a decode step and of a prompt, by torch's profiler.

    python -m benchmarks.gpu.kernels [--rows 16] [--context 512] [--prompt 2048] [--layers 8]

Over a model of an 8B's shape with fewer layers. A step's kernels together, beside the step's whole time, tell what the
host costs.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.driver import EngineDriver
from benchmarks.gpu.plan import GPU
from benchmarks.gpu.random_model import random_model
from dunlin.engine.device.choice import open_device

STEPS = 10


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write each kernel's times, as Chrome reads them")
    options = parser.parse_args()
    device = open_device("cuda")
    shape = replace(GPU.speed, layers=options.layers)
    slots = options.rows * (options.context + 10 * (2 * STEPS + 4)) + 2 * options.prompt
    driver = EngineDriver(random_model(shape, device, slots), device)
    random = torch.Generator().manual_seed(1)

    def tokens(count: int) -> list[int]:
        found: list[int] = torch.randint(0, shape.vocab, (count,), generator=random).tolist()
        return found

    texts = [driver.open(tokens(options.context), 10 * (2 * STEPS + 4), is_written=True) for _ in range(options.rows)]
    _show(
        f"decode {options.rows} x {options.context}, {shape.layers} layers", lambda: driver.decode_steps(texts, 10), 10
    )
    if options.trace:
        _write_trace(options.trace, lambda: driver.decode_steps(texts, 4))
    driver.close()

    def prompt() -> None:
        text = driver.open(tokens(options.prompt), 1)
        driver.run(driver.step((text, 0, options.prompt)))
        driver.close()

    _show(f"prompt of {options.prompt}, {shape.layers} layers", prompt)


def _write_trace(file: Path, steps: Callable[[], object]) -> None:
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as found:
        steps()
        torch.cuda.synchronize()
    found.export_chrome_trace(str(file))


def _show(name: str, step: Callable[[], object], count: int = 1) -> None:
    """`step` computes `count` steps."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    for _ in range(STEPS):
        step()
    turns = STEPS * count
    whole_us = 1e6 * (time.perf_counter() - began_s) / turns
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
    rows = [(each.self_device_time_total / turns, each.count / turns, each.key) for each in found.key_averages()]
    on_device_us = sum(took for took, _, _ in rows)
    print(f"\n{name}: {whole_us:.0f} us a step, of which kernels {on_device_us:.0f} us")
    for took_us, count, key in sorted(rows, reverse=True)[:22]:
        print(f"{took_us:9.1f} us {count:7.1f} x {took_us / max(count, 1e-9):8.2f}  {key[:100]}")


if __name__ == "__main__":
    main()
