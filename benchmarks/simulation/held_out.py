"""A live run that nothing was tuned on, and its simulation: `python -m benchmarks.simulation.held_out [--minutes N]`.

What the workloads of `fidelity` leave out, all at once: two instances, arrivals in gamma bursts (CV 1.5), prompts that
share beginnings, 2,048 slots an instance, so that sequences are preempted, moves between the instances (preset
`llumnix`), and another model shape than the built-in one. Compared are p50 and p99 of TTFT and TPOT, and how often
sequences were preempted, tokens found cached, sequences moved, and tokens computed again.

**The rule for speed, frozen before the run that it is judged by.** The machine is profiled with this model first
(`dunlin profile --cpu 1 --host`). The load comes in parts; before and after each part runs a reference load, of other
arrivals and prompts: answers as long and about as many rows and requests a second as the part has, because steps lose
to the other processes of the machine what those take for requests and tokens, and none of the rest (no bursts, no
shared prefixes, slots for all). One factor on the time of every step and one latency of a hop make the twin's reference
have the live one's medians of TPOT and TTFT; with these two numbers of the two references beside it a part is
simulated. Nothing else is fitted, and nothing of a part is. (An earlier rule had references of short answers and four
times as many requests: their steps were slowed 1.4 times as much as a part's.)

Parts take turns at `SEQUENCES` sequences of arrivals, so each is served many times over, at other moments of the
machine. Beside each difference stands its standard deviation when the parts of each sequence are drawn anew
(bootstrap): what the machine adds, for live and simulated requests arrive alike. (Eight parts that all differ told a
99th percentile to 37 %, mostly by which bursts were drawn.) Exit code 1 if a figure differs by more than
`--limit`. A figure whose deviation is above 5 % is marked: the run was too short to tell it.

Each instance shares a core with its engine; all else runs where the kernel puts it. With `--keep DIR` records stay;
`--again DIR` simulates them once more without a live run.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from subprocess import run as run_command
from typing import Any

from cli.launch.cluster_process import ClusterProcess, dunlin_command
from cli.profiling.live_fit import LiveStepModel
from cli.profiling.process_cost_probe import failed_requests, record_workload, supervised_processes, without_idle_cost
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.models import BatchCounts, PiecewiseCurve
from dunlin.cost.timing_loader import load_timing
from dunlin.workload.loadgen.run_record import RecordedRun, read_run
from dunlin.workload.loadgen.stats import RequestRecord, RunReport, summarize
from simulator.study.live_comparison import (
    CountDifference,
    Difference,
    Resimulation,
    count_differences,
    differences,
    resimulate_whole,
)
from simulator.study.run_counts import COUNTERS, recorded_counts

SLOTS = 2048
FLAGS = ("--instances", "2", "--slots", str(SLOTS), "--preset", "llumnix", "--threads", "1")
SHAPE: Mapping[str, Any] = {"layers": 6, "hidden": 192, "heads": 6, "kv_heads": 2, "head_dim": 32, "intermediate": 512}
PREFIXES, PREFIX, PROMPT, ANSWER = 4, 128, 96, 160
PART = (
    "gamma:rate={rate:.2f},cv=1.5,duration={seconds:g},"
    f"prefix=shared(count={PREFIXES},tokens={PREFIX}),lengths=lognormal({PREFIX + PROMPT},{ANSWER},sigma=0.6)"
)
REFERENCE = "poisson:rate={rate:.2f},duration={seconds:g},lengths=uniform(64..128,96..288)"
PART_S, REFERENCE_S = 16.0, 10.0
SEQUENCES = 4
PART_SHARE, REFERENCE_SHARE = 0.5, 0.5
"""Rates, of `capacity`, which counts answers of 160 tokens on engines alone. The answers of both have 192 (a
lognormal's mean is 1.2 medians), and beside their clients the engines are 1.2 to 1.5 times slower: so half of it is
0.7 to 0.9 of what can be borne. An earlier 0.9 was an overload, whose queue shows a hundredth of speed tenfold."""
HOPS = 5
"""Between processes, from a client's first word to its first token."""
ROUNDS = 3
"""Of finding the factor, and then the hop: each sets it by what is left of the medians' difference."""
SIMULATIONS = 4
"""Of each part, beginning at other places of the machine's course of events."""
DRAWS = 200
MOST_ERROR = 0.05
REST_S = 1.5
"""Before each load: instances report at least once a second, and counters are read between loads."""


@dataclass(frozen=True, slots=True)
class HeldOutPart:
    """A part between two references. `counts`: the live instances' counters, from its start to the next reference's."""

    before: RecordedRun
    live: RecordedRun
    after: RecordedRun
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Speed:
    """What two references tell of the moment: every step takes `factor` times its profiled time, a hop `hop_s`."""

    factor: float
    hop_s: float


@dataclass(frozen=True, slots=True)
class ComparedPart:
    """Requests and counts of one part, live and simulated (`SIMULATIONS` times over, counts divided by them), and the
    number of its sequence of arrivals.
    """

    sequence: int
    live: Sequence[RequestRecord]
    simulated: Sequence[RequestRecord]
    live_counts: Mapping[str, int]
    simulated_counts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Figure:
    """One compared figure: of a latency in seconds, or a count. `error`: standard deviation of its difference."""

    found: Difference | CountDifference
    error: float


# --- simulated -------------------------------------------------------------------------------------------------------


def at_speed(timing: EngineTiming, speed: Speed) -> EngineTiming:
    """The timing at the speed of a moment."""
    curve = PiecewiseCurve((0.0, 1.0), (0.0, speed.factor))
    assert timing.host is not None
    return replace(timing, step=LiveStepModel(timing.step, curve), host=replace(timing.host, hop_s=speed.hop_s))


def speed_of(references: Sequence[RecordedRun], timing: EngineTiming) -> Speed:
    """The speed at which the twin's references have the live ones' medians of TPOT and TTFT."""
    assert timing.host is not None
    live = summarize(_joined(each.records for each in references))
    speed = Speed(1.0, timing.host.hop_s)
    for _ in range(ROUNDS):  # steps first: hops change nothing between two tokens
        speed = replace(speed, factor=speed.factor * live.tpot_s.p50 / _again(references, timing, speed).tpot_s.p50)
    for _ in range(ROUNDS):
        late_s = live.ttft_s.p50 - _again(references, timing, speed).ttft_s.p50
        speed = replace(speed, hop_s=max(0.0, speed.hop_s + late_s / HOPS))
    return speed


def _again(references: Sequence[RecordedRun], timing: EngineTiming, speed: Speed) -> RunReport:
    at = at_speed(timing, speed)
    return summarize(_joined(resimulate_whole(each, at).records for each in references))


def compared(part: HeldOutPart, timing: EngineTiming) -> tuple[ComparedPart, Speed]:
    """The part, simulated at the speed of its references."""
    speed = speed_of((part.before, part.after), timing)
    at = at_speed(timing, speed)
    again = [resimulate_whole(part.live, at, number / SIMULATIONS) for number in range(SIMULATIONS)]
    records = _joined(each.records for each in again)
    sequence = int(part.live.facts["asked"]["seed"])
    return ComparedPart(sequence, part.live.records, records, part.counts, _mean_counts(again)), speed


def figures(parts: Sequence[ComparedPart]) -> list[Difference | CountDifference]:
    """All figures of these parts together."""
    latencies = differences(_joined(each.live for each in parts), _joined(each.simulated for each in parts))
    live = {name: sum(each.live_counts[name] for each in parts) for name in COUNTERS}
    simulated = {name: round(sum(each.simulated_counts[name] for each in parts)) for name in COUNTERS}
    return [*latencies, *count_differences(live, simulated)]


def with_errors(parts: Sequence[ComparedPart], seed: int = 0) -> list[Figure]:
    """The figures, each with the standard deviation of its difference when as many parts of each sequence are drawn
    anew.
    """
    draw = random.Random(seed)
    alike = [[each for each in parts if each.sequence == number] for number in sorted({one.sequence for one in parts})]
    drawn = [
        [each.relative for each in figures([one for some in alike for one in draw.choices(some, k=len(some))])]
        for _ in range(DRAWS)
    ]
    errors = [stdev(values) if max(values) < float("inf") else float("inf") for values in zip(*drawn, strict=True)]
    return [Figure(found, error) for found, error in zip(figures(parts), errors, strict=True)]


def _mean_counts(runs: Sequence[Resimulation]) -> dict[str, float]:
    return {name: fmean(each.counts[name] for each in runs) for name in COUNTERS}


def _joined(runs: Iterable[Sequence[RequestRecord]]) -> list[RequestRecord]:
    return [record for records in runs for record in records]


# --- live ------------------------------------------------------------------------------------------------------------


class LiveRun:
    """Parts and references on one live cluster, and their records in a folder."""

    def __init__(self, cluster: ClusterProcess, rate: float, folder: Path) -> None:
        self._cluster = cluster
        self._rate = rate
        self._folder = folder
        self._cpus = sorted(os.sched_getaffinity(0))

    def record(self, seconds: float) -> None:
        """Record references and parts in turns, for so long."""
        began_s, number = time.monotonic(), 0
        self._reference(number)
        while time.monotonic() - began_s < seconds:
            number += 1
            spec = PART.format(rate=PART_SHARE * self._rate, seconds=PART_S)
            self._load(f"part-{number}", spec, number % SEQUENCES)
            self._reference(number)

    def _reference(self, number: int) -> None:
        spec = REFERENCE.format(rate=REFERENCE_SHARE * self._rate, seconds=REFERENCE_S)
        self._load(f"reference-{number}", spec, 1000 + number)

    def _load(self, name: str, spec: str, seed: int) -> None:
        time.sleep(REST_S)
        run = record_workload(self._cluster, name, spec, self._cpus, "--seed", str(seed))
        failed = failed_requests(run)
        print(f"{name}: {len(run.records)} requests, {failed} failed", file=sys.stderr, flush=True)
        shutil.copy(self._cluster.data_dir / f"{name}.jsonl", self._folder / f"{name}.jsonl")


def read_parts(folder: Path) -> list[HeldOutPart]:
    """The parts that were recorded there; those in which a request failed, of the references too, are left out."""
    parts = []
    for number in range(1, len(list(folder.glob("part-*.jsonl"))) + 1):
        names = (f"reference-{number - 1}", f"part-{number}", f"reference-{number}")
        before, live, after = (read_run(folder / f"{name}.jsonl") for name in names)
        if any(map(failed_requests, (before, live, after))):
            print(f"part {number}: requests failed; left out", flush=True)
            continue
        counts = recorded_counts(_status(live), _status(after))
        parts.append(HeldOutPart(before, live, after, counts))
    return parts


def _status(run: RecordedRun) -> Mapping[str, Any]:
    """The fleet before the run. Its counters are those of the end of the run before: no request ran meanwhile."""
    return dict(run.facts["before"])


def capacity(timing: EngineTiming) -> float:
    """Requests per second of the parts' lengths that two instances of `SLOTS` slots can serve."""
    rows = (SLOTS - PREFIXES * PREFIX) // (PROMPT + ANSWER)
    decoding, prompt = BatchCounts(), BatchCounts()
    for _ in range(rows):
        decoding.add_decode(PREFIX + PROMPT + ANSWER // 2)
    prompt.add_prefill(PROMPT, PREFIX)
    assert timing.host is not None
    own = timing.host.instance
    step_s = timing.step_s(decoding) + own.step_s + rows * own.row_s
    return 2.0 / (ANSWER * step_s / rows + timing.step_s(prompt) + own.request_s)


def pin_instances(cluster: ClusterProcess) -> None:
    """Give each instance, its engines with it, a core of its own."""
    cpus = sorted(os.sched_getaffinity(0))
    found = [(pid, line) for pid, line in supervised_processes(cluster.pid) if " -m services.instance " in line]
    for pid, line in found:
        name = next((f"instance-{number}" for number in range(len(cpus)) if f"instance-{number}" in line), None)
        if name is None:
            continue
        for each in (pid, *(child for child, _ in supervised_processes(pid))):
            for thread in os.listdir(f"/proc/{each}/task"):
                os.sched_setaffinity(int(thread), {cpus[int(name[-1])]})


# --- the command -----------------------------------------------------------------------------------------------------


def main() -> int:
    """0: all within the limit."""
    options = _parser().parse_args()
    if options.again:
        return report(read_parts(options.again), _timing(options.again), options.limit)
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        _profile(folder, options.quick)
        timing = _timing(folder)
        rate = capacity(timing)
        print(f"two instances of {SLOTS} slots can bear {rate:.1f} requests/s", flush=True)
        with ClusterProcess("--model", str(folder / "model"), *FLAGS) as cluster:
            time.sleep(10.0)  # the engines that stand by load
            pin_instances(cluster)
            LiveRun(cluster, rate, folder).record(60.0 * options.minutes)
        return report(read_parts(folder), timing, options.limit)


def report(parts: Sequence[HeldOutPart], timing: EngineTiming, limit: float) -> int:
    """Simulate the parts and print all figures; 1 if one is over the limit."""
    found: list[ComparedPart] = []
    for part in parts:
        one, speed = compared(part, timing)
        print(f"part of {len(one.live)} requests: steps x {speed.factor:.2f}, a hop {speed.hop_s * 1e3:.2f} ms")
        found.append(one)
    rows = with_errors(found)
    print(f"{len(found)} parts, {sum(len(each.live) for each in found):,} requests")
    print(f"  {'':18}{'live':>12}{'simulated':>12}{'':>9}{'+-':>8}")
    for row in rows:
        print(_line(row))
    worst = max(abs(row.found.relative) for row in rows)
    print(f"the largest difference is {worst:.1%}; the limit is {limit:.0%}")
    return 0 if worst <= limit else 1


def _line(row: Figure) -> str:
    if isinstance(row.found, Difference):
        name, values = f"{row.found.measure} {row.found.quantile}, ms", (row.found.live_s, row.found.simulated_s)
        told = "".join(f"{1e3 * value:12.2f}" for value in values)
    else:
        name, told = row.found.name, f"{row.found.live:12,}{row.found.simulated:12,}"
    unsure = "  (error above 5 %)" if row.error > MOST_ERROR else ""
    return f"  {name:18}{told}{row.found.relative:>+9.1%}{row.error:>8.1%}{unsure}"


def _profile(folder: Path, quick: bool) -> None:
    """Write the model and this machine's profile of it into the folder, unless they are there."""
    from dunlin.engine.decoder.loading.random_checkpoint import CheckpointShape, write_random_checkpoint

    model, store, unfinished = folder / "model", folder / "profile.db", folder / "unfinished.db"
    if not model.exists():
        write_random_checkpoint(model, "llama", CheckpointShape(**SHAPE))
    if not store.exists():
        unfinished.unlink(missing_ok=True)
        more = ("--quick",) if quick else ("--passes", "2")
        flags = ("--model", str(model), "--cpu", "1", "--kv-mib", "64", "--host", "--out", str(unfinished), *more)
        run_command(dunlin_command("profile", *flags), check=True)
        unfinished.rename(store)


def _timing(folder: Path) -> EngineTiming:
    timing = load_timing(str(folder / "profile.db"), str(folder / "model"))
    assert timing.host is not None
    return replace(timing, host=without_idle_cost(timing.host))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="that parts and references take")
    parser.add_argument("--quick", action="store_true", help="a coarse profile: a try, not a result")
    parser.add_argument("--keep", type=Path, help="a folder for model, profile and records; what is there is used")
    parser.add_argument("--again", type=Path, help="simulate what was kept there, with no live run")
    parser.add_argument("--limit", type=float, default=0.10)
    return parser


if __name__ == "__main__":
    sys.exit(main())
