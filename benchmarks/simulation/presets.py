"""Presets against each other on shared traces, in virtual time: tune each, then compare, then raise the load.

Every preset is tuned by the same rule: what met the objective most often in a part of the trace that is not reported.
With `--defaults` no preset is tuned: all have the same budget, but for those that never cut a prompt. All are told what
was promised (`instance.objectives`). Each run is a line of the results file and is not simulated again, so a run that
was cut short goes on. Nothing here depends on the clock of the machine.

    python -m benchmarks.simulation.presets tune   --traces DIR --results FILE
    python -m benchmarks.simulation.presets matrix --traces DIR --results FILE --seeds 0,1,2 --seconds 90
    python -m benchmarks.simulation.presets sweep  --traces DIR --results FILE
    python -m benchmarks.simulation.presets batch  --traces DIR --results FILE
    python -m benchmarks.simulation.presets show   --results FILE --out DIR      tables on stdout, pictures into DIR
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.simulation.preset_tables import print_tables
from dunlin.policies.presets import PRESETS as POLICIES
from dunlin.workload.loadgen.slo import parse_slos
from dunlin.workload.traffic.workload_spec import read_workload
from simulator.study.report import PresetFigures, figures
from simulator.study.run_case import run_case
from simulator.study.sweep import Case

PRESETS = tuple(POLICIES)
INSTANCES = 4
HOST_BYTES = 128_000_000_000
TUNING_SEED = 7
SWEEP_RATES = (4.1, 5.0)
BATCH = " + poisson:rate=0.5,duration={duration},class=batch,lengths=lognormal(3000,300)"

Settings = tuple[tuple[str, Any], ...]
"""Names of settings to values, as `dunlin sim --set` takes them."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A trace, what serves it, and what was promised. `tuned` and `reported` are parts of the trace that do not
    overlap: the second at which each starts, for how many seconds, and how many requests a second are drawn from it.
    `long_tokens`: a twentieth of all prompts is longer (PecSched's rule for what is long). `prefill_share` is what a
    split without tuning has: more where nearly all work is prompts."""

    name: str
    file: str
    device: str
    shape: str
    slo: str
    tuned: tuple[float, float, float]
    reported: tuple[float, float, float]
    long_tokens: int
    prefill_share: float = 0.5

    def spec(self, traces: Path, stage: str, rate: float, duration_s: float) -> str:
        """What `dunlin sim --workload` takes."""
        start_s = (self.tuned if stage == "tune" else self.reported)[0]
        more = BATCH.format(duration=duration_s) if stage == "batch" else ""
        return f"trace:{traces / self.file}.csv.gz,from={start_s:g},duration={duration_s:g},rate={rate:g}{more}"


_A100_20B = ("a100", "internlm-20b")
WORKLOADS = {
    one.name: one
    for one in (
        Workload("conv", "azure2023_conv_0_1699s", *_A100_20B, "ttft=2,tpot=0.1", (200, 60, 6), (600, 300, 4.6), 4085),
        Workload(
            "code", "azure2023_code_0_1800s", *_A100_20B, "ttft=3,tpot=0.1", (180, 60, 2.5), (840, 300, 0.8), 7315, 0.75
        ),
        Workload("surge", "kunserve_analog_A", *_A100_20B, "ttft=2,tpot=0.1", (40, 60, 5), (100, 300, 4), 4085),
        Workload(
            "mooncake",
            "mooncake_conversation_0_1800s",
            "a100",
            "llama-3-8b",
            "ttft=8,tpot=0.1",
            (1200, 60, 1.2),
            (0, 300, 1.2),
            41_829,
            0.75,
        ),
    )
}

SWEPT = WORKLOADS["conv"]

GRID: dict[str, Sequence[Any]] = {"instance.scheduler.budget_tokens": (512, 256, 1024, 2048)}
"""What is tried with every preset; of equals the first."""
MORE: dict[str, dict[str, Sequence[Any]]] = {
    "distserve": {"manager.groups.prefill_share": (0.5, 0.25, 0.75)},
    "llumnix": {"manager.rebalance.min_load_gap": (0.25, 0.1, 0.5)},
}
"""What only one preset has: tried with the best of `GRID`."""
BY_LENGTH: dict[str, Settings] = {"priority": (), "reservation": (("dispatcher.placement.long_share", 0.25),)}
"""The presets that must be told what is long (`Workload.long_tokens`), and what else: one instance of four for it."""
WHOLE_PROMPTS: Settings = (("instance.scheduler.budget_tokens", 2048),)
"""Without tuning: whole prompts need a budget that holds some, as vLLM's own."""
DEFAULTS: dict[str, Settings] = dict.fromkeys(("vllm", "fifo", *BY_LENGTH), WHOLE_PROMPTS)


@dataclass(frozen=True, slots=True)
class PresetRun:
    """One simulation: `stage` says what it is for, `overhead` the engine's (empty: by the preset's own engine)."""

    stage: str
    workload: str
    preset: str
    settings: Settings
    rate: float
    seed: int
    seconds: float
    overhead: str = ""


class Results:
    """What was simulated, in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self._known = {_key(row["run"]): row for row in self.rows}

    def find(self, run: PresetRun) -> dict[str, Any] | None:
        """The row of a run that was made."""
        return self._known.get(_key(json.loads(json.dumps(asdict(run)))))

    def add(self, run: PresetRun, found: PresetFigures) -> dict[str, Any]:
        """Keep one more."""
        row = json.loads(json.dumps({"run": asdict(run), "figures": asdict(found)}))
        self.rows.append(row)
        self._known[_key(row["run"])] = row
        with self._path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        return dict(row)


class PresetBench:
    """Simulates what is not known yet."""

    def __init__(self, traces: Path, results: Results, options: argparse.Namespace) -> None:
        self._traces = traces
        self._results = results
        self._options = options

    def tune(self) -> None:
        """Find each preset's settings for each trace."""
        for workload in self._workloads():
            for preset in self._presets():
                print(f"{workload.name} {preset}: {dict(self._tuned(workload, preset))}")

    def matrix(self) -> None:
        """Each preset with its settings on each trace."""
        for workload in self._workloads():
            for preset in self._presets():
                self._report("matrix", workload, preset, workload.reported[2])

    def sweep(self) -> None:
        """One trace at several rates."""
        for rate in SWEEP_RATES:
            for preset in self._presets():
                self._report("sweep", SWEPT, preset, rate)

    def batch(self) -> None:
        """Interactive requests of one trace, and beside them a class without an objective."""
        workload = SWEPT
        for preset in ("online_only", "shortest_queue", "chunked", "vllm++", "conserve", "unified"):
            self._report("batch", workload, preset, workload.reported[2])

    def _report(self, stage: str, workload: Workload, preset: str, rate: float) -> None:
        # What waits nowhere for batch work is tuned as the preset that differs in admission alone.
        settings = self._tuned(workload, "shortest_queue" if preset == "online_only" else preset)
        seconds = min(self._options.seconds, workload.reported[1])
        for seed in self._options.seeds:
            self._run(workload, PresetRun(stage, workload.name, preset, settings, rate, seed, seconds))

    def _presets(self) -> Sequence[str]:
        return self._options.preset or PRESETS

    def _workloads(self) -> Iterator[Workload]:
        return (one for name, one in WORKLOADS.items() if name in (self._options.only or WORKLOADS))

    def _best(
        self, workload: Workload, preset: str, base: Mapping[str, Any], grid: Mapping[str, Sequence[Any]]
    ) -> dict[str, Any]:
        """The base with the value of the grid that meets the objective most often; then by the sooner end."""
        ((name, values),) = grid.items()
        tried = [{**base, name: value} for value in values]
        _, lasts, rate = workload.tuned
        seconds = min(self._options.tune_seconds, lasts)
        rows = [
            self._run(workload, PresetRun("tune", workload.name, preset, _settings(one), rate, TUNING_SEED, seconds))
            for one in tried
        ]
        shares = [row["figures"]["report"]["slo_attainment"] for row in rows]
        return tried[shares.index(max(shares))]

    def _tuned(self, workload: Workload, preset: str) -> Settings:
        """What tuning found, or the defaults. Runs that are in the results cost nothing."""
        if self._options.defaults:
            split = (("manager.groups.prefill_share", workload.prefill_share),)
            return split if preset == "distserve" else DEFAULTS.get(preset, ()) + _by_length(workload, preset)
        best = self._best(workload, preset, dict(_by_length(workload, preset)), GRID)
        if preset in MORE:
            best = self._best(workload, preset, best, MORE[preset])
        return _settings(best)

    def _run(self, workload: Workload, run: PresetRun) -> dict[str, Any]:
        run = replace(run, overhead=self._options.overhead)
        known = self._results.find(run)
        if known is not None:
            return known
        arrivals = read_workload(workload.spec(self._traces, run.stage, run.rate, run.seconds), run.seed, None)
        found = figures(run_case(_case(workload, run), arrivals), parse_slos(_slos(workload, run)))
        what = f"{run.stage} {run.workload} {run.preset} {run.rate:g}/s seed {run.seed} {dict(run.settings)}"
        print(f"{what}: {found.report.slo_attainment:.1%} in {found.wall_s:.0f} s", file=sys.stderr, flush=True)
        return self._results.add(run, found)


def _slos(workload: Workload, run: PresetRun) -> list[str]:
    return [workload.slo, "batch:jct=100000"] if run.stage == "batch" else [workload.slo]


def _case(workload: Workload, run: PresetRun) -> Case:
    return Case(
        run.preset,
        INSTANCES,
        workload.device,
        workload.shape,
        seed=run.seed,
        tier_bytes=HOST_BYTES,
        overhead=run.overhead,
        settings=run.settings + _promised(workload),
    )


def _promised(workload: Workload) -> Settings:
    """The objective, as instances are told it: the policies that hold steps to one read it there."""
    promised = parse_slos([workload.slo])[""]
    return (("instance.objectives.ttft_s", promised.ttft), ("instance.objectives.tpot_s", promised.tpot))


def _by_length(workload: Workload, preset: str) -> Settings:
    """What is long, for a preset that tells long prompts from others."""
    if preset not in BY_LENGTH:
        return ()
    return (*BY_LENGTH[preset], ("dispatcher.placement.long_tokens", workload.long_tokens))


def _settings(values: Mapping[str, Any]) -> Settings:
    return tuple(sorted(values.items()))


def _key(run: Mapping[str, Any]) -> str:
    return json.dumps(run, sort_keys=True)


def _seeds(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


def main() -> int:
    """What is asked for; exit code 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", nargs="+", choices=("tune", "matrix", "sweep", "batch", "show"))
    parser.add_argument("--traces", type=Path, default=Path(), help="where the traces are")
    parser.add_argument("--results", type=Path, required=True, help="what was simulated, a JSON line each")
    parser.add_argument("--only", action="append", default=[], choices=tuple(WORKLOADS), help="these workloads alone")
    parser.add_argument("--preset", action="append", default=[], choices=PRESETS, help="these presets alone")
    parser.add_argument("--seeds", type=_seeds, default=(0,), help="of what is drawn from the reported part: 0,1,2")
    parser.add_argument("--seconds", type=float, default=300.0, help="no more than so much of the reported part")
    parser.add_argument("--tune-seconds", type=float, default=60.0, help="no more than so much of what tuning sees")
    parser.add_argument("--defaults", action="store_true", help="tune no preset")
    parser.add_argument("--overhead", default="", help="of every preset's engine alike, as `dunlin sim` takes it")
    parser.add_argument("--out", type=Path, help="where `show` puts pictures")
    arguments = parser.parse_args()
    results = Results(arguments.results)
    bench = PresetBench(arguments.traces, results, arguments)
    for stage in arguments.stage:
        if stage == "show":
            print_tables(results.rows, arguments.out)
        else:
            getattr(bench, stage)()
    return 0


if __name__ == "__main__":
    sys.exit(main())
