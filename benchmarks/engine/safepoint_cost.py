"""What the safepoints of a long step cost: the same step with and without them, layer by layer in turn.

    python -m benchmarks.engine.safepoint_cost --model B --tokens 8192 --steps 2

Runners of one process compute the same prompt, each in KV slots of its own, and one layer each in turn: a pair of
layers is seconds apart, where whole steps are a minute apart, and a machine's speed drifts. Every layer has the same
work. One runner has safepoints and pieces of `response_s`; one computes its linear work uncut; one in blocks of rows,
as far as that costs nothing. Compared is the CPU time of the thread; beside it stands the clock's. The interval is of
the median ratio of the pairs, by drawing pairs anew. Last, what one safepoint takes is measured alone and multiplied by
their number.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, cast

import torch

from benchmarks.engine.comparison import in_turn
from benchmarks.engine.interrupts import SHAPES, WAYS
from benchmarks.harness import report
from benchmarks.harness.report import BenchmarkResult, say
from dunlin.engine.decoder.iteration import Safepoint
from dunlin.engine.decoder.loading.loader import LoadedModel, load_model
from dunlin.engine.decoder.loading.random_checkpoint import write_random_checkpoint
from dunlin.engine.decoder.numerics import choose_fast_numerics
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.process.host_allocator import keep_freed_memory
from dunlin.engine.process.progress_page import ProgressPage
from dunlin.messages.engine import Close, Open, Step, StepDone
from dunlin.messages.types import SamplingParams, i8, i32, i64

SAFE, BLOCKS, UNCUT = "with safepoints", "in blocks of rows", "uncut"
BOUND = 0.01
"""Of the step without safepoints."""
LOOKS = 200_000
DRAWS = 2000
SHARE = 0.95
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class SafepointCostPlan:
    """`steps`: how often the whole step is computed in each way."""

    model: str = "B"
    tokens: int = 8192
    threads: int = 1
    steps: int = 2


@dataclass(slots=True)
class LayerTimes:
    """Seconds of each layer of one way, in order."""

    cpu_s: list[float] = field(default_factory=list)
    wall_s: list[float] = field(default_factory=list)


class LayerwisePrefill:
    """One prompt as one step of a runner of its own, from KV slot `slot` on; computed a layer at a time."""

    def __init__(self, loaded: LoadedModel, tokens: int, limits: RunnerLimits, slot: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.times = LayerTimes()
        self.tokens: list[int] = []
        self._prompt = torch.randint(0, loaded.config.vocab, (tokens,), generator=generator).tolist()
        self._runner = EngineRunner(loaded.decoder, loaded.slots, time.perf_counter, limits)
        self._slot = slot
        self._layers = len(loaded.decoder.kv)
        self._count = 0

    def begin(self) -> None:
        """Queue the step."""
        self._count += 1
        count = len(self._prompt)
        opened = Open(self._count, i32(self._prompt), count, 8, SamplingParams(temperature=0.0))
        columns = (i64([self._count]), i64([0]), i64([count]), i8([1]), i32([0]), i64([self._slot]), i64([count]))
        for message in (opened, Step(self._count, *columns)):
            assert not self._runner.receive(message)

    def compute_layer(self, layer: int, safepoint: Safepoint) -> None:
        """Compute up to the end of a layer."""

        def at_end() -> bool:
            safepoint()
            progress = self._runner.steps.progress
            return progress is not None and layer < progress[1] < self._layers

        began = time.thread_time(), time.perf_counter()
        events = self._runner.work(at_end)
        self.times.cpu_s.append(time.thread_time() - began[0])
        self.times.wall_s.append(time.perf_counter() - began[1])
        if events:
            (done,) = events
            assert isinstance(done, StepDone)
            self.tokens.append(done.token[0])
            self._runner.receive(Close(self._count))

    def look_s(self, safepoint: Safepoint) -> float:
        """CPU seconds of one safepoint of this runner, apart from any work."""
        looking = LookingSteps()
        cast(Any, self._runner).steps = looking
        self._runner.work(safepoint)
        return looking.look_s


class LookingSteps:
    """Stands where a runner has its steps, and passes safepoints alone."""

    is_running = True
    progress = (1, 0)

    def __init__(self) -> None:
        self.look_s = 0.0

    def __len__(self) -> int:
        return 1

    def work(self, safepoint: Safepoint) -> list[Any]:
        """Pass `LOOKS` safepoints."""
        began_s = time.thread_time()
        for _ in range(LOOKS):
            safepoint()
        self.look_s = (time.thread_time() - began_s) / LOOKS
        return []


def ratio_interval(ours: Sequence[float], theirs: Sequence[float], seed: int = 1) -> tuple[float, Interval]:
    """The median of the ratios of pairs, and the interval in which it lies with probability `SHARE`."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    choose = random.Random(seed)
    drawn = sorted(median(choose.choices(ratios, k=len(ratios))) for _ in range(DRAWS))
    cut = int(DRAWS * (1 - SHARE) / 2)
    return median(ratios), (drawn[cut], drawn[-1 - cut])


def measure_layers(prefills: dict[str, LayerwisePrefill], plan: SafepointCostPlan, look: Callable[[], bool]) -> None:
    """All steps, a layer of each way in turn."""
    turn, layers = 0, SHAPES[plan.model].layers
    for step in range(plan.steps):
        for prefill in prefills.values():
            prefill.begin()
        for layer in range(layers):
            for way in in_turn(list(prefills), turn):
                prefills[way].compute_layer(layer, look if way == SAFE else lambda: False)
            turn += 1
            taken = ", ".join(f"{way} {each.times.cpu_s[-1]:.3f}" for way, each in prefills.items())
            say(f"step {step}, layer {layer}: {taken} s of CPU time")


def measure(plan: SafepointCostPlan, outcome: BenchmarkResult) -> None:
    """All of it, over one model."""
    torch.set_num_threads(plan.threads)
    keep_freed_memory()
    shape = SHAPES[plan.model]
    page = ProgressPage(os.memfd_create("progress"))

    def look() -> bool:
        page.count()
        return page.is_called()

    with tempfile.TemporaryDirectory() as folder:
        write_random_checkpoint(Path(folder) / "model", "llama", shape)
        room = plan.tokens + 64
        kv_bytes = len(WAYS) * room * shape.layers * 2 * shape.kv_heads * shape.head_dim * 2 + (shape.layers << 17)
        numerics, description = choose_fast_numerics()
        outcome.figures["computes"] = description
        arena = os.memfd_create("dunlin-bench-arena")
        loaded = load_model(Path(folder) / "model", "bfloat16", kv_bytes, numerics, arena)
        outcome.figures["load of the machine at the start"] = os.getloadavg()[0]
        prefills = {
            way: LayerwisePrefill(loaded, plan.tokens, limits, at * room)
            for at, (way, limits) in enumerate(WAYS.items())
        }
        measure_layers(prefills, plan, look)
        safepoints = page.passed // plan.steps
        outcome.figures["load of the machine at the end"] = os.getloadavg()[0]
        judge(prefills, safepoints, prefills[SAFE].look_s(look), plan, outcome)


def judge(
    prefills: dict[str, LayerwisePrefill],
    safepoints: int,
    look_s: float,
    plan: SafepointCostPlan,
    outcome: BenchmarkResult,
) -> None:
    """Put the figures into the outcome."""
    step_s = {way: sum(each.times.cpu_s) / plan.steps for way, each in prefills.items()}
    outcome.figures["pairs of layers"] = len(prefills[SAFE].times.cpu_s)
    outcome.figures["safepoints of the step"] = safepoints
    for way, each_s in step_s.items():
        outcome.figures[f"CPU s of the step {way}"] = each_s
    for way in (UNCUT, BLOCKS):
        for name in ("cpu_s", "wall_s"):
            ours, theirs = (getattr(prefills[each].times, name) for each in (SAFE, way))
            middle, interval = ratio_interval(ours, theirs)
            outcome.figures[f"cost of safepoints and cuts, {name}, against {way}"] = middle - 1
            outcome.figures[f"  95 % of it, {name}, against {way}"] = tuple(each - 1 for each in interval)
            if name == "cpu_s":
                outcome.expect(interval[0] - 1 <= BOUND, f"safepoints and cuts cost {middle - 1:.1%} of the step {way}")
    alone = safepoints * look_s / step_s[UNCUT]
    outcome.figures["one safepoint alone, µs of CPU time"] = 1e6 * look_s
    outcome.figures["all of them, share of the step uncut"] = alone
    outcome.expect(alone <= BOUND, f"safepoints alone cost {alone:.2%} of the step")
    different = {token for each in prefills.values() for token in each.tokens}
    outcome.expect(len(different) == 1, f"cuts change the token: {different}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = SafepointCostPlan()
    parser.add_argument("--model", choices=sorted(SHAPES), default=defaults.model)
    for name in ("tokens", "threads", "steps"):
        parser.add_argument(f"--{name}", type=int, default=getattr(defaults, name))
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    plan = SafepointCostPlan(**options)
    outcome = BenchmarkResult(f"a step of {plan.tokens} prompt tokens, model {plan.model}, {plan.threads} threads")
    measure(plan, outcome)
    return report.finish(outcome, as_json)


if __name__ == "__main__":
    sys.exit(main())
