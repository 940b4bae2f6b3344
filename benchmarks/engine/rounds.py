"""Runs the contestants of `benchmarks.engine.speed` in turns."""

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.engine.comparison import ENGINE, TRANSFORMERS, Column, ModelSpeed, in_turn
from benchmarks.engine.contestants.process import ContestantProcess
from benchmarks.engine.planning import make_plan
from benchmarks.engine.roofline import LIMITS, Limits, linears_s, roofline_s
from benchmarks.engine.workloads import WORKLOADS, Plan, Setup, Turn, Workload
from benchmarks.harness.model_shapes import SHAPES
from benchmarks.harness.processes import ROOT
from benchmarks.harness.report import say
from dunlin.engine.decoder.loading.random_checkpoint import write_random_checkpoint
from dunlin.engine.decoder.memory.layer_layout import GRANULE_BYTES
from dunlin.engine.process.compute_threads import read_cpu_times
from dunlin.model.config import ModelConfig

WARM_UP_STEPS_MAX = 64
_ITEM_BYTES = 2


@dataclass(frozen=True, slots=True)
class SpeedPlan:
    """`least_s`: so long a contestant computes in its turn, or longer to end a run; `limit_s` for a limit's turn."""

    models: tuple[str, ...] = ("A", "B")
    threads: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))
    rounds: int = 5
    tree: Path | None = None
    workloads: tuple[Workload, ...] = WORKLOADS
    least_s: float = 0.5
    limit_s: float = 0.1

    def contestants(self) -> dict[str, tuple[str, ...]]:
        """Module and arguments of each one's process, by name."""
        found: dict[str, tuple[str, ...]] = {ENGINE: ("engine", str(ROOT)), TRANSFORMERS: ("transformers_loop",)}
        if self.tree is not None:
            found[tree_name(self.tree)] = ("engine", str(self.tree))
        return found


class Rounds:
    """Rounds of turns over one model. `limits` is the contestant that measures the machine's limits."""

    def __init__(
        self,
        config: ModelConfig,
        plans: Sequence[Plan],
        contestants: Mapping[str, ContestantProcess],
        limits: ContestantProcess,
    ) -> None:
        self._config = config
        self._plans = plans
        self._contestants = contestants
        self._limits = limits
        self.found = ModelSpeed({plan.workload.name: Column() for plan in plans})

    def warm_up(self) -> None:
        """One run of each plan by each contestant; long ones need none."""
        for plan in self._plans:
            if len(plan.steps) <= WARM_UP_STEPS_MAX:
                for contestant in self._contestants.values():
                    contestant.take(Turn(plan.workload.name, 0.0))

    def run(self, turn: int, least_s: float, limit_s: float) -> None:
        """One round more."""
        limits = Limits.of({name: self._limits.take(Turn(name, limit_s)).run_s for name in LIMITS})
        self.found.limits.append(limits)
        for plan in self._plans:
            for name in in_turn(list(self._contestants), turn):
                self._take(name, plan, limits, least_s)

    def _take(self, name: str, plan: Plan, limits: Limits, least_s: float) -> None:
        column = self.found.columns[plan.workload.name]
        busy_s, began_s = _busy_s(), time.perf_counter()
        result = self._contestants[name].take(Turn(plan.workload.name, least_s))
        others_s = max(_busy_s() - busy_s - result.cpu_s, 0.0)
        column.others.setdefault(name, []).append(others_s / (time.perf_counter() - began_s))
        column.rates.setdefault(name, []).append(plan.workload.counted_tokens / result.run_s)
        column.cores.setdefault(name, []).append(result.cpu_s / result.seconds)
        column.first_tokens[name] = result.first_tokens
        if name == ENGINE:
            column.roofline.append(roofline_s(self._config, plan.steps, limits) / result.run_s)
            column.linears.append(linears_s(plan.steps, limits) / result.run_s)


def _busy_s() -> float:
    """Seconds that the cores were busy so far, with any process; 0 where the kernel does not say."""
    times = read_cpu_times(time.perf_counter(), os.sched_getaffinity(0))
    return times.busy_s if times is not None else 0.0


def run(plan: SpeedPlan) -> dict[str, ModelSpeed]:
    """The comparison, by model. :raises RuntimeError: a contestant could not compute something."""
    return {model: _compare(plan, model) for model in plan.models}


def _compare(plan: SpeedPlan, model: str) -> ModelSpeed:
    """All rounds of one model, after one for warming up."""
    say(f"model {model}")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        config = write_random_checkpoint(Path(folder) / "model", shape=SHAPES[model])
        plans, slots = _make_plans(plan.workloads, config.vocab)
        kv_bytes = config.layers * (slots * config.slot_bytes(_ITEM_BYTES) + GRANULE_BYTES)
        setup = Setup(str(Path(folder) / "model"), plan.threads, kv_bytes, plans)
        contestants = {
            name: stack.enter_context(ContestantProcess(name, *command))
            for name, command in {**plan.contestants(), "limits": ("machine_limits",)}.items()
        }
        for contestant in contestants.values():
            contestant.set_up(setup)
            say(f"{contestant.name} is ready")
        limits = contestants.pop("limits")
        rounds = Rounds(config, plans, contestants, limits)
        rounds.warm_up()
        for turn in range(plan.rounds):
            rounds.run(turn, plan.least_s, plan.limit_s)
            say(f"round {turn + 1} of {plan.rounds}; load {os.getloadavg()[0]:.1f}")
        return rounds.found


def _make_plans(workloads: Sequence[Workload], vocabulary: int) -> tuple[list[Plan], int]:
    """The plans of all workloads, and the slots that they need together."""
    plans, slots = [], 0
    for workload in workloads:
        plan, slots = make_plan(workload, slots, vocabulary, seed=1)
        plans.append(plan)
    return plans, slots


def tree_name(tree: Path) -> str:
    """The commit of a checkout, or its folder's name."""
    git = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    asked = subprocess.run(git, capture_output=True, text=True, check=False)
    return asked.stdout.strip() or tree.resolve().name
