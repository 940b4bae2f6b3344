"""How near the simulator is to a live cluster: `python -m benchmarks.simulation.fidelity [--profile DB] [--only
NAME] [--json]`.

One instance (core and engine) has a core to itself, everything else shares another. The machine is profiled on the
instance's core first (unless `--profile` names a store). Then, on the cluster itself, what dunlin's own processes take
is measured under loads that are none of those compared (`cli.profiling.process_cost_probe`).

Three workloads follow: steady at a quarter of the rate that the core can bear, bursty between 5 % and 50 % of it,
overload at 250 % for some seconds. Near 100 % a queue depends on a hundredth more or less of speed, which no machine
keeps; overload is where the queue grows without end. This machine's speed varies by a fifth from one second to the
next and drifts by a third within minutes, and it is slower where it has less to do. So each workload comes in many
short parts, and before and after each part runs a reference load: other requests, of other lengths and arrivals, at the
part's rates. Its steps and first tokens are compared with what the profile says: that is what the twin of this part has
on top of the profile. Exit code 1 if a median or a 99th percentile of TTFT or TPOT, over all parts of a workload,
differs by more than `--limit`.

Before them one live engine is interrupted in its steps and copies KV, and the modelled one beside it (`engine`, see
`engine_times`): the same limit holds for the median and the 99th percentile of responses and of moves.

Beside it stands by how much the difference would vary from one such run to the next (`+-`, by drawing parts anew), and
what the twin says when it is told the speed of each part's own steps (`own steps`), which separates what the twin does
wrong from how much the machine changed between a reference and the part.

All of this has one instance and slots for every request. What it leaves out is in `held_out`.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, stdev

from benchmarks.simulation.engine_times import engine_differences, measured, modelled
from cli.launch.cluster_process import ClusterProcess, dunlin_command
from cli.profiling.engine_probe import EngineProbe
from cli.profiling.engine_process import ProbeOptions
from cli.profiling.live_fit import fit_live_timing, steps_from_records
from cli.profiling.process_cost_probe import (
    failed_requests,
    measure_process_costs,
    pin_and_settle,
    record_workload,
    run_workload,
    without_idle_cost,
)
from cli.profiling.profiler import step_interval_s
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.models import BatchCounts
from dunlin.cost.processes import MessageCosts
from dunlin.cost.store import StepPoint
from dunlin.cost.timing_loader import load_timing
from dunlin.model.builtin import models_folder, resolve_model
from dunlin.workload.loadgen.run_record import RecordedRun
from dunlin.workload.loadgen.stats import RequestRecord, summarize
from services.instance.config import SchedulerConfig
from simulator.study.live_comparison import Difference, differences, resimulate

INSTANCE_CPU, OTHERS_CPU = 1, 0
MODEL = "builtin:tiny"
ENGINE = "engine"
KV_BYTES = 64 << 20
_PROMPT, _ANSWER = 96, 48
_LENGTHS = f"lengths=lognormal({_PROMPT},{_ANSWER},sigma=0.6)"
_MEAN = 1.2
"""A lognormal's mean over its median, for that sigma."""
APART = 2.0
"""First tokens' times, of the median: a request before which none came for so long waits for no other's prompt."""
ENOUGH_APART = 100
"""Such requests, to tell hops from; an overload has none."""
DRAWS = 100
"""Of parts, to tell how sure a figure is."""
SIMULATIONS = 4
"""Of each part, beginning at other places of the machine's course of events: a tail needs many requests."""


@dataclass(frozen=True, slots=True)
class FidelityWorkload:
    """A workload: its specification, of which rates are shares of capacity, and how long it takes."""

    text: str
    shares: tuple[float, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class ComparedParts:
    """A part of what is compared, and what tells the speed of the moment, before and after it."""

    part: FidelityWorkload
    reference: FidelityWorkload


_OTHERS = "lengths=uniform(32..160,24..72)"
WORKLOADS = {
    "steady": ComparedParts(
        FidelityWorkload("poisson:rate={0:.2f},duration={duration}," + _LENGTHS, (0.25,), 5.0),
        FidelityWorkload("gamma:rate={0:.2f},cv=0.7,duration={duration}," + _OTHERS, (0.25,), 5.0),
    ),
    "bursty": ComparedParts(
        FidelityWorkload(
            "onoff:on={0:.2f},off={1:.2f},on_s=3,off_s=3,duration={duration}," + _LENGTHS, (0.5, 0.05), 6.0
        ),
        FidelityWorkload(
            "onoff:on={0:.2f},off={1:.2f},on_s=2.5,off_s=2.5,duration={duration}," + _OTHERS, (0.5, 0.05), 5.0
        ),
    ),
    "overload": ComparedParts(
        FidelityWorkload("poisson:rate={0:.2f},duration={duration}," + _LENGTHS, (2.5,), 4.0),
        FidelityWorkload("gamma:rate={0:.2f},cv=0.7,duration={duration}," + _OTHERS, (2.5,), 2.0),
    ),
}


def main() -> int:
    """0: all within the limit."""
    options = _parser().parse_args()
    store = options.profile or _profiled()
    timing = load_timing(str(store), MODEL)
    found: dict[str, list[Difference]] = {}
    os.sched_setaffinity(0, {OTHERS_CPU})
    chosen = options.only or (ENGINE, *WORKLOADS)
    if ENGINE in chosen:
        found[ENGINE] = compare_engine(timing)
    if loads := [name for name in chosen if name != ENGINE]:
        found |= _compare_workloads(timing, loads, options)
    print(json.dumps({name: [asdict(each) for each in rows] for name, rows in found.items()})) if options.json else None
    worst = max(abs(each.relative) for rows in found.values() for each in rows)
    print(f"the largest difference is {worst:.1%}; the limit is {options.limit:.0%}")
    return 0 if worst <= options.limit else 1


def _compare_workloads(
    timing: EngineTiming, names: Sequence[str], options: argparse.Namespace
) -> dict[str, list[Difference]]:
    # A preset that predicts nothing: the twin knows from the start what steps take, a live instance learns it.
    with ClusterProcess("--instances", "1", "--preset", "chunked") as cluster:
        pin_and_settle(cluster, INSTANCE_CPU, OTHERS_CPU)
        comparison = Comparison(cluster, with_host(timing, cluster), options)
        return {name: comparison.run(name) for name in names}


def compare_engine(timing: EngineTiming) -> list[Difference]:
    """Interrupts and moves of one engine on the instance's core, live and modelled, printed."""
    os.sched_setaffinity(0, {INSTANCE_CPU})  # as it was profiled: see `EngineProbe` of its clock
    with tempfile.TemporaryDirectory() as folder:
        model = resolve_model(MODEL, models_folder(Path(folder)))
        with EngineProbe(ProbeOptions(model, KV_BYTES)) as probe:
            live, trials = measured(probe, timing)
            modelled_times = modelled(timing, trials, probe.ready.slots, probe.ready.max_positions)
    os.sched_setaffinity(0, {OTHERS_CPU})
    found = engine_differences(live, modelled_times)
    print(f"engine: {len(live.interrupt_s)} interrupts, {len(live.move_s)} moves")
    print(f"  {'':14}{'live ms':>10}{'simulated':>10}")
    for each in found:
        times = f"{each.live_s * 1e3:10.3f}{each.simulated_s * 1e3:10.3f}{each.relative:>+8.1%}"
        print(f"  {each.measure:9} {each.quantile:4}{times}", flush=True)
    return found


@dataclass(frozen=True, slots=True)
class ReferenceRun:
    """A reference load, run live, and its steps."""

    run: RecordedRun
    course: list[StepPoint]


@dataclass(frozen=True, slots=True)
class ReferencedRun:
    """A live run between two references."""

    before: ReferenceRun
    live: RecordedRun
    after: ReferenceRun


class Comparison:
    """Workloads, live and simulated, in parts."""

    def __init__(self, cluster: ClusterProcess, timing: EngineTiming, options: argparse.Namespace) -> None:
        self._cluster = cluster
        self._timing = timing
        self._seconds: float = 60.0 * options.minutes
        self._keep: Path | None = options.keep
        if self._keep:
            self._keep.mkdir(parents=True, exist_ok=True)

    def run(self, name: str) -> list[Difference]:
        """Both, printed."""
        parts, references = self._parts(name)
        timing = _with_hop(self._timing, hop_of(self._timing, references))
        courses = [each.before.course + each.after.course for each in parts]
        live = [each.live for each in parts]
        found = FidelityFigures(live, simulated(live, [fit_live_timing(timing, course) for course in courses]))
        own = simulated(live, [fit_live_timing(timing, self._steps(each)) for each in live])
        speeds = sorted(slowness(each.course, self._timing) for each in references)
        print(_said(timing))
        print(f"{name}: {len(_joined(found.live))} requests in {len(live)} parts")
        slow = f"{speeds[0]:.2f} to {speeds[-1]:.2f} (median {median(speeds):.2f})"
        print(f"  the references' steps took {slow} times as long as profiled")
        found.print(own)
        return found.differences()

    def _parts(self, name: str) -> tuple[list[ReferencedRun], list[ReferenceRun]]:
        """For as long as asked, and all of the references."""
        parts: list[ReferencedRun] = []
        references = [self._reference(name, 0)]
        began_s = time.monotonic()
        while time.monotonic() - began_s < self._seconds:
            count = len(references)
            spec = self._spec(WORKLOADS[name].part)
            run = record_workload(self._cluster, name, spec, {OTHERS_CPU}, "--seed", str(_seed(name, count)))
            self._kept(name, f"{name}-{count}")
            references.append(self._reference(name, count))
            if failed_requests(run):
                print(f"{name}, part {count}: {failed_requests(run)} requests failed; left out", flush=True)
            else:
                parts.append(ReferencedRun(references[-2], run, references[-1]))
        return parts, references

    def _steps(self, run: RecordedRun) -> list[StepPoint]:
        return steps_from_records(run.records, self._timing)

    def _reference(self, name: str, count: int) -> ReferenceRun:
        """The reference load, once the cluster has come to rest. Raises ValueError if it fails."""
        time.sleep(0.5)
        as_name = f"{name}-reference"
        spec = self._spec(WORKLOADS[name].reference)
        run = run_workload(self._cluster, as_name, spec, OTHERS_CPU, 50_000 + _seed(name, count))
        self._kept(as_name, f"{as_name}-{count}")
        return ReferenceRun(run, self._steps(run))

    def _kept(self, name: str, as_name: str) -> None:
        if self._keep:
            shutil.copy(self._cluster.data_dir / f"{name}.jsonl", self._keep / f"{as_name}.jsonl")

    def _spec(self, load: FidelityWorkload) -> str:
        most = capacity(self._timing)
        return load.text.format(*(share * most for share in load.shares), duration=load.seconds)


def _seed(name: str, count: int) -> int:
    """Every run's own: prompts that were served before would be found in the host tier."""
    return 1000 * list(WORKLOADS).index(name) + count


def hop_of(timing: EngineTiming, references: Sequence[ReferenceRun]) -> float:
    """Seconds through a process's socket: what the steps leave of the first tokens' times, of requests before which
    none came for a while; answers may be computed beside them, as in the part. What was measured on an idle cluster,
    where there are too few of them.
    """
    assert timing.host is not None
    runs = [each.run.records for each in references]
    apart_s = APART * summarize(_joined(runs)).ttft_s.p50
    live = _apart(runs, apart_s)
    if len(live) < ENOUGH_APART:
        return timing.host.hop_s
    tried_s = (timing.host.hop_s, timing.host.hop_s + 0.5e-3)
    first_s = [_first_s(_again(references, _with_hop(timing, one_s)), apart_s) for one_s in tried_s]
    slope = (first_s[1] - first_s[0]) / (tried_s[1] - tried_s[0])
    return max(0.0, tried_s[0] + (summarize(live).ttft_s.p50 - first_s[0]) / slope)


def _again(references: Sequence[ReferenceRun], timing: EngineTiming) -> list[list[RequestRecord]]:
    return simulated([each.run for each in references], [fit_live_timing(timing, each.course) for each in references])


def _with_hop(timing: EngineTiming, hop_s: float) -> EngineTiming:
    assert timing.host is not None
    return replace(timing, host=replace(timing.host, hop_s=hop_s))


def _first_s(runs: Sequence[Sequence[RequestRecord]], apart_s: float) -> float:
    return summarize(_apart(runs, apart_s)).ttft_s.p50


def _apart(runs: Sequence[Sequence[RequestRecord]], apart_s: float) -> list[RequestRecord]:
    """The requests of each run within `apart_s` before which no other had arrived."""
    found: list[RequestRecord] = []
    for records in runs:
        earlier_s = {each.at_s for each in records}  # the same run several times over has the same arrivals
        found += [one for one in records if not any(one.at_s - apart_s < at_s < one.at_s for at_s in earlier_s)]
    return found


def simulated(live: Sequence[RecordedRun], timings: Sequence[EngineTiming]) -> list[list[RequestRecord]]:
    """Each run by its timing, `SIMULATIONS` times over, every time from another place of the course of events on."""
    starts = [number / SIMULATIONS for number in range(SIMULATIONS)]
    return [
        _joined([resimulate(run, timing, start=start) for start in starts])
        for run, timing in zip(live, timings, strict=True)
    ]


class FidelityFigures:
    """What was measured live, part by part, beside what was simulated."""

    def __init__(self, live: Sequence[RecordedRun], simulated: Sequence[Sequence[RequestRecord]]) -> None:
        self.live = [each.records for each in live]
        self._simulated = simulated

    def differences(self) -> list[Difference]:
        """Of all parts together."""
        return differences(_joined(self.live), _joined(self._simulated))

    def print(self, own: Sequence[Sequence[RequestRecord]]) -> None:
        """A table, with what was simulated of the parts' own steps."""
        alone = differences(_joined(self.live), _joined(own))
        print(f"  {'':10}{'live ms':>10}{'simulated':>10}{'':>8}{'+-':>7}{'own steps':>12}")
        for each, told, by in zip(self.differences(), alone, self._spread(), strict=True):
            times = f"{each.live_s * 1e3:10.2f}{each.simulated_s * 1e3:10.2f}{each.relative:>+8.1%}{by:>7.1%}"
            print(f"  {each.measure} {each.quantile:5}{times}{told.relative:>+12.1%}", flush=True)

    def _spread(self) -> list[float]:
        """The standard deviation of each relative difference, when as many parts are drawn anew (bootstrap)."""
        draw = random.Random(0)
        found: list[list[float]] = []
        for _ in range(DRAWS):
            drawn = draw.choices(range(len(self.live)), k=len(self.live))
            live, again = (_joined([parts[one] for one in drawn]) for parts in (self.live, self._simulated))
            found.append([each.relative for each in differences(live, again)])
        return [stdev(figure) for figure in zip(*found, strict=True)]


def with_host(timing: EngineTiming, cluster: ClusterProcess) -> EngineTiming:
    """The timing, with what dunlin's processes take. What they take when idle is in the reference's speed."""
    host = without_idle_cost(measure_process_costs(cluster, timing, shares_core=True, client_cpu=OTHERS_CPU))
    found = replace(timing, host=host)
    print(_said(found))
    print(f"the core can bear {capacity(found):.1f} requests/s", flush=True)
    return found


def slowness(course: Sequence[StepPoint], timing: EngineTiming) -> float:
    """How many times as long as predicted its steps took."""
    return sum(map(step_interval_s, course)) / sum(timing.step_s(point.batch) for point in course)


def capacity(timing: EngineTiming) -> float:
    """Requests of the workloads' lengths per second, in steps of as many rows as an instance runs."""
    rows, prompt, answer = SchedulerConfig().max_running, int(_PROMPT * _MEAN), _ANSWER * _MEAN
    decoding, mixed = BatchCounts(), BatchCounts()
    for _ in range(rows):
        decoding.add_decode(prompt + _ANSWER // 2)
        mixed.add_decode(prompt + _ANSWER // 2)
    mixed.add_prefill(prompt)
    decode_s = timing.step_s(decoding)
    own = timing.host.instance if timing.host is not None else MessageCosts()
    prefill_s = timing.step_s(mixed) - decode_s
    return 1.0 / (answer * ((decode_s + own.step_s) / rows + own.row_s) + prefill_s + own.request_s)


def _joined(parts: Sequence[Sequence[RequestRecord]]) -> list[RequestRecord]:
    return [record for part in parts for record in part]


def _said(timing: EngineTiming) -> str:
    assert timing.host is not None
    host = timing.host
    parts = [f"{name}: {_in_ms(costs)}" for name, costs in (("instance", host.instance), ("door", host.door))]
    return "; ".join([*parts, f"a hop: {host.hop_s * 1e3:.2f} ms"])


def _in_ms(costs: MessageCosts) -> str:
    parts = (("step", costs.step_s), ("row", costs.row_s), ("request", costs.request_s))
    return ", ".join(f"{seconds * 1e3:.3f} ms a {what}" for what, seconds in parts)


def _profiled() -> Path:
    store = Path("fidelity-profile.db").absolute()
    subprocess.run(dunlin_command("profile", "--cpu", str(INSTANCE_CPU), "--out", str(store)), check=True)
    return store


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path, help="a store that `dunlin profile --cpu 1` wrote on this machine")
    parser.add_argument("--only", action="append", choices=[ENGINE, *WORKLOADS], help="this workload; may be repeated")
    parser.add_argument("--minutes", type=float, default=12.0, help="that each workload's parts and references take")
    parser.add_argument("--keep", type=Path, help="a folder for the records of the live runs")
    parser.add_argument("--limit", type=float, default=0.10)
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
