"""How soon an engine answers an interrupt within a long prefill, and what its safepoints cost.

    python -m benchmarks.engine.interrupts --model B --tokens 8192 --threads 1

One runner without its process computes a prompt in one step. Interrupts are due at random moments; each suspends the
row, which is resumed at once, so one step answers many. A response is from the moment that the interrupt is due until
its answer, in wall time and in the process's own CPU time (on a busy machine, and with one thread, the one to read).
Before that the step runs in turns, in CPU time: with safepoints and pieces of the engine's `response_s`; without
safepoints, its linear work cut into blocks of rows alone, as far as that costs nothing; and not cut at all. Attention
is computed in the same pieces in all three.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.engine.comparison import in_turn
from benchmarks.harness import report
from benchmarks.harness.report import BenchmarkResult, say
from dunlin.engine.decoder.iteration import Safepoint
from dunlin.engine.decoder.loading.loader import LoadedModel, load_model
from dunlin.engine.decoder.loading.random_checkpoint import CheckpointShape, write_random_checkpoint
from dunlin.engine.decoder.numerics import choose_fast_numerics
from dunlin.engine.decoder.piece_sizes import MOST
from dunlin.engine.execution.limits import RunnerLimits
from dunlin.engine.execution.runner import EngineRunner
from dunlin.engine.process.host_allocator import keep_freed_memory
from dunlin.engine.process.progress_page import ProgressPage
from dunlin.messages.engine import Close, Interrupt, Interrupted, Open, Resume, Step, StepDone
from dunlin.messages.types import SamplingParams, Verdict, i8, i32, i64

SHAPES = {
    "A": CheckpointShape(8, 512, 8, 4, 64, 1408, 8192, dtype="bfloat16", max_positions=16384),
    "B": CheckpointShape(16, 1024, 16, 8, 64, 2816, 32768, dtype="bfloat16", max_positions=16384),
}
LAYERS_BOUND = 1.2
RESPONSE_BOUND_S = 0.005
COST_BOUND = {"uncut": 0.01, "in blocks of rows": 0.02}
"""Of safepoints, against the step uncut and in the form that is fastest."""
WAYS = {
    "with safepoints": RunnerLimits(),
    "in blocks of rows": RunnerLimits(response_s=0.0, piece_columns=MOST),
    "uncut": RunnerLimits(response_s=0.0, piece_tokens=MOST, piece_columns=MOST),
}
"""How the step is computed; only the first has safepoints."""
SAFE = next(iter(WAYS))


@dataclass(frozen=True, slots=True)
class InterruptsPlan:
    """`interrupts` in all, about `per_step` in each step; `repeats` of the step in each way."""

    model: str = "B"
    tokens: int = 8192
    threads: int = 1
    interrupts: int = 100
    per_step: int = 50
    repeats: int = 3


class Prefill:
    """One prompt, computed again and again by a runner of its own."""

    def __init__(self, loaded: LoadedModel, tokens: int, limits: RunnerLimits | None = None) -> None:
        generator = torch.Generator().manual_seed(1)
        self._prompt = torch.randint(0, loaded.config.vocab, (tokens,), generator=generator).tolist()
        self._runner = EngineRunner(loaded.decoder, loaded.slots, time.perf_counter, limits)
        self._numbers = 0
        self._sequence = 0

    def run(self, safepoint: Safepoint, on_pause: Callable[[], None] = lambda: None) -> tuple[int, float]:
        """The token that the step ends with, and its CPU seconds. `on_pause` is called where it paused."""
        self._sequence, count = self._number(), len(self._prompt)
        self._feed(Open(self._sequence, i32(self._prompt), count, 8, SamplingParams(temperature=0.0)))
        columns = (i64([self._sequence]), i64([0]), i64([count]), i8([1]))
        self._feed(Step(self._number(), *columns, i32([0]), i64([0]), i64([count])))
        began_s = time.process_time()
        while not (events := self._runner.work(safepoint)):
            on_pause()
        took_s = time.process_time() - began_s
        self._feed(Close(self._sequence))
        (done,) = events
        assert isinstance(done, StepDone)
        return done.token[0], took_s

    def decode(self, safepoint: Safepoint) -> None:
        """A step of one decode row."""
        self._sequence = self._number()
        self._feed(Open(self._sequence, i32([5, 6]), 1, 8, SamplingParams(temperature=0.0)))
        for at in range(2):
            columns = (i64([self._sequence]), i64([at]), i64([at + 1]), i8([at]))
            self._feed(Step(self._number(), *columns, i32([0]), i64([at]), i64([1])))
            self._runner.work(safepoint if at else lambda: False)

    def suspend(self) -> None:
        """Interrupt the step where it stands; returns when the answer is there."""
        self._feed(Interrupt(Verdict.SUSPEND, ticket=self._number()))
        left, _ = self._runner.work(lambda: False)
        assert isinstance(left, Interrupted)
        assert list(left.parked) == [1], left

    def resume(self) -> None:
        """Queue what was suspended."""
        self._feed(Resume(self._number(), i64([self._sequence])))

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _feed(self, message: Any) -> None:
        answers = self._runner.receive(message)
        assert not answers, answers


class RandomInterrupts:
    """Interrupts that are due at random moments of CPU time; a safepoint pauses once one is. Responses in seconds."""

    def __init__(self, prefill: Prefill, spacing_s: float) -> None:
        self.cpu_s: list[float] = []
        self.wall_s: list[float] = []
        self._prefill = prefill
        self._spacing_s = spacing_s
        self._choose = random.Random(1)
        self._before = self._now()
        self._due_s = self._before[1] + self._choose.expovariate(1 / spacing_s)

    def safepoint(self) -> bool:
        """Whether one is due. Remembers the safepoint: in wall time a response is counted from the one before, too."""
        now = self._now()
        if now[1] >= self._due_s:
            return True
        self._before = now
        return False

    def answer(self) -> None:
        """Suspend, take the time, go on."""
        self._prefill.suspend()
        wall_s, cpu_s = self._now()
        # When it was due in wall time is not known on a busy machine: as far into the piece as in CPU time.
        share = (cpu_s - self._due_s) / (cpu_s - self._before[1])
        self.cpu_s.append(cpu_s - self._due_s)
        self.wall_s.append(share * (wall_s - self._before[0]))
        self._prefill.resume()
        self._due_s = time.process_time() + self._choose.expovariate(1 / self._spacing_s)

    def _now(self) -> tuple[float, float]:
        return time.perf_counter(), time.process_time()


def measure_cost(loaded: LoadedModel, plan: InterruptsPlan, outcome: BenchmarkResult) -> tuple[int, float]:
    """The step in each way, in turns; its token, and the CPU seconds with safepoints."""
    page = ProgressPage(os.memfd_create("progress"))

    def safepoint() -> bool:
        page.count()
        return page.is_called()

    prefills = {way: Prefill(loaded, plan.tokens, limits) for way, limits in WAYS.items()}
    tokens: set[int] = set()
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(plan.repeats):
        for way in in_turn(list(WAYS), turn):
            token, took_s = prefills[way].run(safepoint if way == SAFE else lambda: False)
            tokens.add(token)
            seconds[way].append(took_s)
            say(f"turn {turn}, {way}: {took_s:.2f} s of CPU time")
    least = {way: min(each) for way, each in seconds.items()}
    outcome.figures["safepoints of the step"] = page.passed // plan.repeats
    for way, least_s in least.items():
        outcome.figures[f"CPU s of the step {way}, least of the turns"] = least_s
    for way, bound in COST_BOUND.items():
        cost = least[SAFE] / least[way] - 1
        outcome.figures[f"cost of safepoints and cuts, against {way}"] = cost
        outcome.figures[f"cost in each turn, against {way}"] = [
            a / b - 1 for a, b in zip(seconds[SAFE], seconds[way], strict=True)
        ]
        outcome.expect(cost <= bound, f"safepoints cost {cost:.1%} of the step {way}")
    outcome.expect(len(tokens) == 1, f"cuts change the token: {tokens}")
    passed = page.passed
    prefills[SAFE].decode(safepoint)
    outcome.figures["safepoints of a step of a decode row"] = page.passed - passed
    outcome.expect(page.passed == passed, "a step of decode rows has safepoints")
    return tokens.pop(), least[SAFE]


def measure_responses(
    loaded: LoadedModel, plan: InterruptsPlan, outcome: BenchmarkResult, expected: int, step_s: float
) -> None:
    """Random interrupts, each of which suspends the row; the text is what it is without them."""
    prefill = Prefill(loaded, plan.tokens)
    parent = RandomInterrupts(prefill, step_s / plan.per_step)
    while len(parent.cpu_s) < plan.interrupts:
        token, _ = prefill.run(parent.safepoint, parent.answer)
        outcome.expect(token == expected, f"suspended {len(parent.cpu_s)} times, the token is {token}, not {expected}")
        say(f"{len(parent.cpu_s)} interrupts answered")
    bound_s = max(LAYERS_BOUND * step_s / SHAPES[plan.model].layers, RESPONSE_BOUND_S)
    for name, seconds in (("CPU", parent.cpu_s), ("wall", parent.wall_s)):
        figures = tuple(1e3 * each for each in (median(seconds), quantile(seconds, 0.99), max(seconds)))
        outcome.figures[f"response, ms of {name} time: p50, p99, max"] = figures
    outcome.figures["bound of p99, ms of CPU time"] = 1e3 * bound_s
    worst_s = quantile(parent.cpu_s, 0.99)
    outcome.expect(worst_s <= bound_s, f"p99 of the responses is {1e3 * worst_s:.1f} ms, the bound {1e3 * bound_s:.1f}")


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def measure(plan: InterruptsPlan, outcome: BenchmarkResult) -> None:
    """All of it, over one model."""
    torch.set_num_threads(plan.threads)
    keep_freed_memory()
    shape = SHAPES[plan.model]
    with tempfile.TemporaryDirectory() as folder:
        write_random_checkpoint(Path(folder) / "model", "llama", shape)
        kv_bytes = (plan.tokens + 64) * shape.layers * 2 * shape.kv_heads * shape.head_dim * 2 + (shape.layers << 17)
        fd = os.memfd_create("dunlin-bench-arena")
        numerics, description = choose_fast_numerics()
        outcome.figures["computes"] = description
        loaded = load_model(Path(folder) / "model", "bfloat16", kv_bytes, numerics, fd)
        outcome.figures["load of the machine at the start"] = os.getloadavg()[0]
        token, step_s = measure_cost(loaded, plan, outcome)
        measure_responses(loaded, plan, outcome, token, step_s)
        outcome.figures["load of the machine at the end"] = os.getloadavg()[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = InterruptsPlan()
    parser.add_argument("--model", choices=sorted(SHAPES), default=defaults.model)
    for name in ("tokens", "threads", "interrupts", "per-step", "repeats"):
        parser.add_argument(f"--{name}", type=int, default=getattr(defaults, name.replace("-", "_")))
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = vars(parser.parse_args())
    as_json = options.pop("json")
    plan = InterruptsPlan(**options)
    outcome = BenchmarkResult(f"a step of {plan.tokens} prompt tokens, model {plan.model}, {plan.threads} threads")
    measure(plan, outcome)
    return report.finish(outcome, as_json)


if __name__ == "__main__":
    sys.exit(main())
