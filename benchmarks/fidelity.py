"""How near the simulator is to a live cluster: `python -m benchmarks.fidelity [--profile DB] [--only NAME] [--json]`.

One instance (core and engine) has a core to itself, everything else shares another. The machine is profiled on the
instance's core first (unless `--profile` names a store). Then, on the cluster itself, what dunlin's own processes take
is measured under loads that are none of those compared (`dunlin.cost.host_probe`).

Three workloads follow, each in several parts: steady at a quarter of the rate that the core can bear, bursty between
5 % and 50 % of it, overload at 250 % for some seconds. Near 100 % a queue depends on a hundredth more or less of speed,
which no machine keeps; overload is where the queue grows without end. This machine's speed drifts by a third within
minutes and more from step to step, so before and after each part reference loads of other requests run, with few rows
at a time, with some and with many. Their steps and first tokens are compared with what the profile says: that is what
the twin of this part has on top of the profile. Exit code 1 if a median or a 99th percentile of TTFT or TPOT, over all
parts of a workload, differs by more than `--limit`.

Beside it stands what the twin says when it is told the speed of each part's own steps (`own steps`), which separates
what the twin does wrong from how much the machine changed between a reference and the part; and how much every other
live part differs from the rest (`halves`).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dunlin.cost.course import in_service, steps_of
from dunlin.cost.host_probe import failed, measure_host, replay, served, settle, without_idle
from dunlin.cost.load import load_timing
from dunlin.cost.models import Batch, EngineTiming, MessageCosts
from dunlin.cost.profile import turn_s
from dunlin.cost.store import StepPoint
from dunlin.launch.process import ClusterProcess, dunlin
from dunlin.workload.runs import Run
from dunlin.workload.stats import Record, report
from services.instance.config import InstanceConfig
from simulator.against import Difference, differences, simulate_again

INSTANCE_CPU, OTHERS_CPU = 1, 0
MODEL = "builtin:tiny"
_PROMPT, _ANSWER = 96, 48
_LENGTHS = f"lengths=lognormal({_PROMPT},{_ANSWER},sigma=0.6)"
_MEAN = 1.2
"""A lognormal's mean over its median, for that sigma."""
APART_S = 0.15
"""A request that nobody came before for so long waits for no other's prompt."""
SIMULATIONS = 4
"""Of each part, beginning at other places of the machine's course of events: a tail needs many requests."""


@dataclass(frozen=True, slots=True)
class Load:
    """A workload: its specification, of which rates are shares of capacity, and how long a part of it takes."""

    text: str
    shares: tuple[float, ...]
    part_s: float


_OTHER_LENGTHS = "lengths=uniform(32..160,24..72)"
REFERENCES = {
    "few": Load("gamma:rate={0:.2f},cv=0.7,duration={duration}," + _OTHER_LENGTHS, (0.15,), 4.0),
    "some": Load("gamma:rate={0:.2f},cv=0.7,duration={duration}," + _OTHER_LENGTHS, (0.5,), 3.0),
    "many": Load("gamma:rate={0:.2f},cv=1,duration={duration}," + _OTHER_LENGTHS, (2.5,), 1.0),
}
"""What tells the speed of the moment, of steps of all lengths."""
WORKLOADS = {
    "steady": Load("poisson:rate={0:.2f},duration={duration}," + _LENGTHS, (0.25,), 10.0),
    "bursty": Load("onoff:on={0:.2f},off={1:.2f},on_s=5,off_s=5,duration={duration}," + _LENGTHS, (0.5, 0.05), 10.0),
    "overload": Load("poisson:rate={0:.2f},duration={duration}," + _LENGTHS, (2.5,), 4.0),
}


def main() -> int:
    """0: all within the limit."""
    options = _parser().parse_args()
    store = options.profile or _profiled()
    timing = load_timing(str(store), MODEL)
    found: dict[str, list[Difference]] = {}
    os.sched_setaffinity(0, {OTHERS_CPU})
    with ClusterProcess("--instances", "1") as cluster:
        settle(cluster, INSTANCE_CPU, OTHERS_CPU)
        comparison = Comparison(cluster, with_host(timing, cluster), options)
        for name in options.only or WORKLOADS:
            found[name] = comparison.run(name)
    print(json.dumps({name: [asdict(each) for each in rows] for name, rows in found.items()})) if options.json else None
    worst = max(abs(each.relative) for rows in found.values() for each in rows)
    print(f"the largest difference is {worst:.1%}; the limit is {options.limit:.0%}")
    return 0 if worst <= options.limit else 1


@dataclass(frozen=True, slots=True)
class Reference:
    """How the cluster was at a moment: the reference load with few rows, and the steps of all of them."""

    few: Run
    course: list[StepPoint]


class Comparison:
    """Workloads, live and simulated, in parts."""

    def __init__(self, cluster: ClusterProcess, timing: EngineTiming, options: argparse.Namespace) -> None:
        self._cluster = cluster
        self._timing = timing
        self._parts: int = options.parts
        self._keep: Path | None = options.keep
        self._references = 0
        if self._keep:
            self._keep.mkdir(parents=True, exist_ok=True)

    def run(self, name: str) -> list[Difference]:
        """Both, printed."""
        live: list[Run] = []
        around: list[list[StepPoint]] = []
        references = [self.reference()]
        for part in range(self._parts):
            # A seed of its own: prompts that were served before would be found in the host tier.
            seed = 1 + part + 1000 * list(WORKLOADS).index(name)
            run = replay(self._cluster, name, self._spec(WORKLOADS[name]), OTHERS_CPU, "--seed", str(seed))
            references.append(self.reference())
            if failed(run):
                print(f"{name}, part {part}: {failed(run)} requests failed; left out", flush=True)
                continue
            live.append(run)
            around.append(references[-2].course + references[-1].course)
            self._kept(name, f"{name}-{part}")
        timing = _with_hop(self._timing, hop_of(self._timing, references))
        found = self._differences(live, timing, around)
        print(_said(timing))
        speeds = ", ".join(f"{slowness(each.course, self._timing):.2f}" for each in references)
        print(f"{name}: {len(_joined(live))} requests; steps took {speeds} times what was profiled")
        _print(live, found, self._differences(live, timing, [self._steps(run) for run in live]))
        return found

    def _differences(
        self, live: Sequence[Run], timing: EngineTiming, courses: Sequence[Sequence[StepPoint]]
    ) -> list[Difference]:
        return differences(_joined(live), simulated(live, [in_service(timing, course) for course in courses]))

    def _steps(self, run: Run) -> list[StepPoint]:
        return steps_of(run.records, self._timing)

    def reference(self) -> Reference:
        """The reference loads, once the cluster has come to rest. Raises ValueError if they fail."""
        self._references += 1
        runs: list[Run] = []
        for number, (name, load) in enumerate(REFERENCES.items()):
            time.sleep(1.0)
            seed = 50_000 + 10_000 * number + self._references
            runs.append(served(self._cluster, name, self._spec(load), OTHERS_CPU, seed))
            self._kept(name, f"{name}-{self._references}")
        return Reference(runs[0], [point for run in runs for point in self._steps(run)])

    def _kept(self, name: str, as_name: str) -> None:
        if self._keep:
            shutil.copy(self._cluster.data_dir / f"{name}.jsonl", self._keep / f"{as_name}.jsonl")

    def _spec(self, load: Load) -> str:
        most = capacity(self._timing)
        return load.text.format(*(share * most for share in load.shares), duration=load.part_s)


def hop_of(timing: EngineTiming, references: Sequence[Reference]) -> float:
    """Seconds through a process's socket: what the steps leave of the first tokens' times, of requests before which
    nobody came for a while.
    """
    assert timing.host is not None
    tried_s = (timing.host.hop_s, timing.host.hop_s + 0.5e-3)
    live_s = _first_s([each.few.records for each in references])
    first_s = [_first_s([_again(each, _with_hop(timing, one_s)) for each in references]) for one_s in tried_s]
    slope = (first_s[1] - first_s[0]) / (tried_s[1] - tried_s[0])
    return max(0.0, tried_s[0] + (live_s - first_s[0]) / slope)


def _again(reference: Reference, timing: EngineTiming) -> list[Record]:
    return simulated([reference.few], [in_service(timing, reference.course)])


def _with_hop(timing: EngineTiming, hop_s: float) -> EngineTiming:
    assert timing.host is not None
    return replace(timing, host=replace(timing.host, hop_s=hop_s))


def _first_s(runs: Sequence[Sequence[Record]]) -> float:
    """The median time to the first token where no other request had arrived within `APART_S` before."""
    found: list[Record] = []
    for records in runs:
        earlier_s = {each.at_s for each in records}  # the same run several times over has the same arrivals
        found += [one for one in records if not any(one.at_s - APART_S < at_s < one.at_s for at_s in earlier_s)]
    return report(found).ttft_s.p50


def simulated(live: Sequence[Run], timings: Sequence[EngineTiming]) -> list[Record]:
    """Each run by its timing, `SIMULATIONS` times over, every time from another place of the course of events on."""
    records: list[Record] = []
    for run, timing in zip(live, timings, strict=True):
        for number in range(SIMULATIONS):
            records += simulate_again(run, timing, start=number / SIMULATIONS)
    return records


def with_host(timing: EngineTiming, cluster: ClusterProcess) -> EngineTiming:
    """The timing, with what dunlin's processes take. What they take when idle is in the reference's speed."""
    host = without_idle(measure_host(cluster, timing, shares_core=True, client_cpu=OTHERS_CPU))
    found = replace(timing, host=host)
    print(_said(found))
    print(f"the core can bear {capacity(found):.1f} requests/s", flush=True)
    return found


def slowness(course: Sequence[StepPoint], timing: EngineTiming) -> float:
    """How many times as long as predicted its steps took."""
    return sum(map(turn_s, course)) / sum(timing.step_s(point.batch) for point in course)


def capacity(timing: EngineTiming) -> float:
    """Requests of the workloads' lengths per second, in steps of as many rows as an instance runs."""
    rows, prompt, answer = InstanceConfig().max_running, int(_PROMPT * _MEAN), _ANSWER * _MEAN
    decoding, mixed = Batch(), Batch()
    for _ in range(rows):
        decoding.add_decode(prompt + _ANSWER // 2)
        mixed.add_decode(prompt + _ANSWER // 2)
    mixed.add_prefill(prompt)
    decode_s = timing.step_s(decoding)
    own = timing.host.instance if timing.host is not None else MessageCosts()
    prefill_s = timing.step_s(mixed) - decode_s
    return 1.0 / (answer * ((decode_s + own.step_s) / rows + own.row_s) + prefill_s + own.request_s)


def _joined(parts: Sequence[Run]) -> list[Record]:
    return [record for part in parts for record in part.records]


def _print(live: Sequence[Run], found: Sequence[Difference], own: Sequence[Difference]) -> None:
    print(f"  {'':10}{'live ms':>10}{'simulated':>10}{'':>8}{'own steps':>12}{'halves':>10}")
    halves = differences(_joined(live[::2]), _joined(live[1::2]))
    for each, alone, apart in zip(found, own, halves, strict=True):
        times = f"{each.live_s * 1e3:10.2f}{each.simulated_s * 1e3:10.2f}{each.relative:>+8.1%}"
        print(f"  {each.measure} {each.quantile:5}{times}{alone.relative:>+12.1%}{apart.relative:>+10.1%}", flush=True)


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
    subprocess.run(dunlin("profile", "--cpu", str(INSTANCE_CPU), "--out", str(store)), check=True)
    return store


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path, help="a store that `dunlin profile --cpu 1` wrote on this machine")
    parser.add_argument("--only", action="append", choices=list(WORKLOADS), help="this workload; may be repeated")
    parser.add_argument("--parts", type=int, default=12, help="of each workload")
    parser.add_argument("--keep", type=Path, help="a folder for the records of the live runs")
    parser.add_argument("--limit", type=float, default=0.10)
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
