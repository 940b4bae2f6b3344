"""How near the simulator is to a live cluster: `python -m benchmarks.fidelity [--profile DB] [--only NAME] [--json]`.

One instance (core and engine) has a core to itself, everything else shares another. The machine is profiled on the
instance's core first (unless `--profile` names a store). Then, on the cluster itself, what dunlin's own processes take
is measured under loads that are none of those compared (`dunlin.cost.host_probe`).

Three workloads follow, each in several parts: steady at a quarter of the rate that the core can bear, bursty between
5 % and 50 % of it, overload at 250 % for some seconds. Near 100 % a queue depends on a hundredth more or less of speed,
which no machine keeps; overload is where the queue grows without end. This machine's speed drifts by a tenth within
minutes, so before and after each part another engine on the instance's core computes the same steps, and the part is
simulated at the mean of the two speeds. Exit code 1 if a median or a 99th percentile of TTFT or TPOT, over all parts of
a workload, differs by more than `--limit`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from dunlin.cost.host_probe import failed, measure_host, replay, settle, without_idle
from dunlin.cost.load import load_timing
from dunlin.cost.models import Batch, EngineTiming, MessageCosts
from dunlin.cost.probe import EngineChoice, Probe
from dunlin.cost.profile import serve, touch_slab, turn_s
from dunlin.engine.builtin import models_folder, resolve_model
from dunlin.launch.process import ClusterProcess, dunlin
from dunlin.workload.stats import Record
from simulator.against import Difference, differences, simulate_again

INSTANCE_CPU, OTHERS_CPU = 1, 0
MODEL = "builtin:tiny"
_PROMPT, _ANSWER = 96, 48
_LENGTHS = f"lengths=lognormal({_PROMPT},{_ANSWER},sigma=0.6)"
_MEAN = 1.2
"""A lognormal's mean over its median, for that sigma."""
BEATS = 500
SIMULATIONS = 4
"""Of each part, beginning at other places of the machine's course of events: a tail needs many requests."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A workload: its specification, of which rates are shares of capacity, and how long a part of it takes."""

    text: str
    shares: tuple[float, ...]
    part_s: float


WORKLOADS = {
    "steady": Compared("poisson:rate={0:.2f},duration={duration}," + _LENGTHS, (0.25,), 20.0),
    "bursty": Compared(
        "onoff:on={0:.2f},off={1:.2f},on_s=5,off_s=5,duration={duration}," + _LENGTHS, (0.5, 0.05), 20.0
    ),
    "overload": Compared("poisson:rate={0:.2f},duration={duration}," + _LENGTHS, (2.5,), 5.0),
}


def main() -> int:
    """0: all within the limit."""
    options = _parser().parse_args()
    store = options.profile or _profiled()
    timing = load_timing(str(store), MODEL)
    found: dict[str, list[Difference]] = {}
    os.sched_setaffinity(0, {INSTANCE_CPU})
    with Probe(EngineChoice(resolve_model(MODEL, models_folder(store.absolute().parent)), 256 << 20)) as probe:
        touch_slab(probe)
        os.sched_setaffinity(0, {OTHERS_CPU})
        with ClusterProcess("--instances", "1") as cluster:
            settle(cluster, INSTANCE_CPU, OTHERS_CPU)
            timing = with_host(timing, cluster, probe)
            for name in options.only or WORKLOADS:
                found[name] = Comparison(cluster, probe, timing, options).run(name)
    print(json.dumps({name: [asdict(each) for each in rows] for name, rows in found.items()})) if options.json else None
    worst = max(abs(each.relative) for rows in found.values() for each in rows)
    print(f"the largest difference is {worst:.1%}; the limit is {options.limit:.0%}")
    return 0 if worst <= options.limit else 1


class Comparison:
    """One workload, live and simulated, in parts."""

    def __init__(
        self, cluster: ClusterProcess, probe: Probe, timing: EngineTiming, options: argparse.Namespace
    ) -> None:
        self._cluster = cluster
        self._probe = probe
        self._timing = timing
        self._parts: int = options.parts
        self._keep: Path | None = options.keep
        self._numbers = 0

    def run(self, name: str) -> list[Difference]:
        """Both, printed."""
        live: list[Record] = []
        simulated: list[Record] = []
        slow = [self.slowness()]
        for part in range(self._parts):
            # A seed of its own: prompts that were served before would be found in the host tier.
            seed = 1 + part + 1000 * list(WORKLOADS).index(name)
            run = replay(self._cluster, name, self._spec(name), OTHERS_CPU, "--seed", str(seed))
            slow.append(self.slowness())
            if failed(run):
                print(f"{name}, part {part}: {failed(run)} requests failed; left out", flush=True)
                continue
            live += run.records
            if self._keep:
                self._keep.mkdir(parents=True, exist_ok=True)
                shutil.copy(self._cluster.data_dir / f"{name}.jsonl", self._keep / f"{name}-{part}.jsonl")
                (self._keep / f"{name}-{part}.slow").write_text(json.dumps(slow[-2:]))
            for number in range(SIMULATIONS):
                start = (part * SIMULATIONS + number) / (self._parts * SIMULATIONS)
                simulated += simulate_again(run, self._timing, (slow[-2] + slow[-1]) / 2, start)
        found = differences(live, simulated)
        _print(name, len(live), slow, found)
        return found

    def slowness(self) -> float:
        """How many times as long as profiled steps take now."""
        return slowness(self._probe, self._timing)

    def _spec(self, name: str) -> str:
        compared = WORKLOADS[name]
        most = capacity(self._timing)
        return compared.text.format(*(share * most for share in compared.shares), duration=compared.part_s)


def slowness(probe: Probe, timing: EngineTiming) -> float:
    """How many times as long as the timing says steps take now, on the instance's core."""
    os.sched_setaffinity(0, {INSTANCE_CPU})
    measured_s = predicted_s = 0.0
    for point in serve(probe, BEATS, seed=1):
        measured_s += turn_s(point)
        predicted_s += timing.step_s(point.batch)
    os.sched_setaffinity(0, {OTHERS_CPU})
    usual = sum(timing.unsteadiness) / len(timing.unsteadiness) if timing.unsteadiness else 1.0
    return measured_s / predicted_s / usual


def with_host(timing: EngineTiming, cluster: ClusterProcess, probe: Probe) -> EngineTiming:
    """The timing, with what dunlin's processes take. What they take when idle is in the probe's times, beside them."""
    host = without_idle(measure_host(cluster, timing, shares_core=True, client_cpu=OTHERS_CPU))
    for name, costs in (("instance", host.instance), ("dispatcher and client", host.door)):
        print(f"{name}: {_in_ms(costs)}")
    print(f"a hop: {host.hop_s * 1e3:.2f} ms")
    found = replace(timing, host=host)
    print(f"the core can bear {capacity(found):.1f} requests/s", flush=True)
    return found


def capacity(timing: EngineTiming) -> float:
    """Requests of the workloads' lengths per second, in steps of 32 rows."""
    rows, prompt, answer = 32, int(_PROMPT * _MEAN), _ANSWER * _MEAN
    decoding, mixed = Batch(), Batch()
    for _ in range(rows):
        decoding.add_decode(prompt + _ANSWER // 2)
        mixed.add_decode(prompt + _ANSWER // 2)
    mixed.add_prefill(prompt)
    decode_s = timing.step_s(decoding)
    own = timing.host.instance if timing.host is not None else MessageCosts()
    prefill_s = timing.step_s(mixed) - decode_s
    return 1.0 / (answer * ((decode_s + own.step_s) / rows + own.row_s) + prefill_s + own.request_s)


def _print(name: str, count: int, slow: list[float], found: list[Difference]) -> None:
    speeds = ", ".join(f"{each:.2f}" for each in slow)
    print(f"{name}: {count} requests; steps took {speeds} times what was profiled")
    print(f"  {'':10}{'live ms':>10}{'simulated':>10}{'':>8}")
    for each in found:
        times = f"{each.live_s * 1e3:10.2f}{each.simulated_s * 1e3:10.2f}{each.relative:>+8.1%}"
        print(f"  {each.measure} {each.quantile:5}{times}", flush=True)


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
    parser.add_argument("--parts", type=int, default=5, help="of each workload")
    parser.add_argument("--keep", type=Path, help="a folder for the records of the live runs")
    parser.add_argument("--limit", type=float, default=0.10)
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
