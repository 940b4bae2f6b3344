"""Is the engine right on this machine's GPU, and how fast is it there?

    benchmarks/gpu/run.sh [--part a|b|all] [--out DIR] [--minutes 20]
    benchmarks/gpu/run.sh --interpret --out /tmp/gpu

Part (a) is equality, part (b) speed (see `equality.py` and `speed.py`). Nothing is fetched. Results are written after
each check, as gpu-DEVICE.md and gpu-DEVICE.json; the exit code is 1 if something did not hold.
"""

import argparse
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.gpu.equality import EqualityPart, checkpoint
from benchmarks.gpu.limits import measure_limits
from benchmarks.gpu.peers import TransformersPart
from benchmarks.gpu.plan import GPU, TINY, GpuPlan
from benchmarks.gpu.random_model import random_model
from benchmarks.gpu.results import Results, usual_facts
from benchmarks.gpu.speed import SpeedPart
from dunlin.engine.device.base import DeviceUnavailable, EngineDevice
from dunlin.engine.device.choice import open_device
from dunlin.engine.device.cuda import describe

KEPT_BYTES = 6 << 30
"""Of the device's memory, for what is computed."""
LIMITS = "b: the device's own limits"


class Run:
    """One run: owns its results and its end."""

    def __init__(self, plan: GpuPlan, device: EngineDevice, out: Path, until_s: float, only: Sequence[str]) -> None:
        self.plan = plan
        self.device = device
        name = describe(device.name)
        self._out, self._until_s, self._only = out, until_s, only
        self.results = Results(name, f"benchmarks/gpu/run.sh {' '.join(sys.argv[1:])}".strip())
        self._file = self.results.file_name("gpu")
        self.results.facts = _facts(device)

    def part_a(self) -> None:
        """Equality."""
        with checkpoint(self.plan) as directory:
            self._all(EqualityPart(self.plan, self.device, self.results, directory).checks())

    def part_b(self) -> None:
        """Speed."""
        limits = measure_limits(self.plan, self.device.torch_device)
        self.results.put(LIMITS, "copy, GB/s read and written", limits.bytes_per_s / 1e9)
        self.results.put(LIMITS, "product in bf16, TFLOP/s", limits.flops / 1e12)
        loaded = random_model(self.plan.speed, self.device, self._slots())
        self.results.put(LIMITS, "KV, tokens", loaded.slots)
        speed = SpeedPart(self.plan, self.device, self.results, loaded, limits)
        self._all(speed.checks())
        seconds = speed.seconds
        loaded.arena.close()
        del loaded, speed
        if not self.plan.is_interpreted:
            torch.cuda.empty_cache()
        if not self._only or any(name.startswith("transformers") for name in self._only):
            self._all(TransformersPart(self.plan, self.device.torch_device, self.results, seconds).checks())

    def attempt(self, name: str, part: Callable[[], None]) -> None:
        """A part; its failure is one of the results."""
        self.results.attempt(name, part, self._until_s)
        self.results.write(self._out, self._file)

    def _all(self, checks: Mapping[str, Callable[[], None]]) -> None:
        for name, check in checks.items():
            if not self._only or name in self._only:
                self.attempt(name, check)

    def _slots(self) -> int:
        """As many as the plan asks for, or as the device has memory for."""
        if self.plan.is_interpreted:
            return self.plan.speed.slots
        shape = self.plan.speed
        free, _ = torch.cuda.mem_get_info(self.device.torch_device)
        weights = 2 * (shape.layers * shape.layer_parameters + 2 * shape.vocab * shape.hidden)
        return min(shape.slots, (free - weights - KEPT_BYTES) // shape.kv_bytes)


def _facts(device: EngineDevice) -> dict[str, str]:
    facts = {
        **usual_facts(), "CUDA": str(torch.version.cuda), "computes": device.choose_numerics()[1],
        "machine": platform.machine(),
    }  # fmt: skip
    try:
        import triton
    except ModuleNotFoundError:
        return facts
    return {**facts, "Triton": str(triton.__version__)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("a", "b", "all"), default="all")
    parser.add_argument("--device", default="cuda", help="cuda, or cuda:N")
    parser.add_argument("--interpret", action="store_true", help="tiny shapes by Triton's interpreter: needs no GPU")
    parser.add_argument("--out", type=Path, default=Path("docs/measurements"), metavar="DIR")
    parser.add_argument("--only", nargs="+", default=[], metavar="CHECK", help='such as decode, "mixed steps"')
    parser.add_argument("--minutes", type=float, default=20.0, help="no check begins after so many")
    options = parser.parse_args()
    began_s = time.monotonic()
    try:
        device = open_device("interpret" if options.interpret else options.device)
        device.choose_numerics()
    except DeviceUnavailable as error:
        print(error, file=sys.stderr)
        return 2
    run = Run(TINY if options.interpret else GPU, device, options.out, began_s + 60 * options.minutes, options.only)
    for part, work in (("a", run.part_a), ("b", run.part_b)):
        if options.part in (part, "all"):
            run.attempt(f"part {part}", work)
    print(run.results.text())
    return 1 if run.results.failures else 0


if __name__ == "__main__":
    sys.exit(main())
