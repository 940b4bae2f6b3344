"""How near the simulator is to a live cluster: `python -m benchmarks.fidelity [--profile DB] [--duration S] [--json]`.

One instance has a core to itself, everything else shares another. The machine is profiled on the instance's core first
(unless `--profile` names a store). What the instance's own process adds to a step, on the same core, is measured by
requests that start together, 1 to 32 at once. Then three workloads run live and are simulated: steady, bursty and
overload. Exit code 1 if a median or a 99th percentile of TTFT or TPOT differs by more than `--limit`.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from benchmarks.processes import descendants
from dunlin.cost.fit import relative_line
from dunlin.cost.load import load_timing
from dunlin.cost.models import Batch, EngineTiming, StepModel
from dunlin.launch.process import ClusterProcess, dunlin
from dunlin.workload.runs import Run, read_run
from dunlin.workload.stats import report
from simulator.against import Difference, differences, simulate_again

INSTANCE_CPU, OTHERS_CPU = 1, 0
WIDTHS = (1, 2, 4, 8, 16, 32)
_PROMPT, _ANSWER = 64, 96
_LENGTHS = "lengths=lognormal(96,48,sigma=0.6)"
WORKLOADS = {
    "steady": "poisson:rate={steady},duration={duration}," + _LENGTHS,
    "bursty": "onoff:on={high},off={low},on_s=5,off_s=5,duration={duration}," + _LENGTHS,
    "overload": "poisson:rate={over},duration={half}," + _LENGTHS,
}


def main() -> int:
    """0: all within the limit."""
    options = _parser().parse_args()
    store = options.profile or _profiled()
    timing = load_timing(str(store), "builtin:tiny")
    found: dict[str, list[Difference]] = {}
    with ClusterProcess("--instances", "1") as cluster:
        pin(cluster.pid)
        timing = with_host(timing, cluster)
        for name, text in WORKLOADS.items():
            rates = {"steady": 6 * options.load, "high": 12 * options.load, "low": 2 * options.load}
            spec = text.format(**rates, over=40 * options.load, duration=options.duration, half=options.duration / 2)
            found[name] = compare(cluster, name, spec, timing)
    print(json.dumps({name: [asdict(each) for each in rows] for name, rows in found.items()})) if options.json else None
    worst = max(abs(each.relative) for rows in found.values() for each in rows)
    print(f"the largest difference is {worst:.1%}; the limit is {options.limit:.0%}")
    return 0 if worst <= options.limit else 1


def with_host(timing: EngineTiming, cluster: ClusterProcess) -> EngineTiming:
    """The timing, with the time that the instance's process takes of each step and each row."""
    assert isinstance(timing.step, StepModel)
    extra: list[tuple[int, float]] = []
    for width in WIDTHS:
        trace = cluster.data_dir / f"together-{width}.csv"
        trace.write_text("arrival_s,input_tokens,output_tokens\n" + f"0.0,{_PROMPT},{_ANSWER}\n" * width)
        period_s = report(replay(cluster, f"together-{width}", str(trace)).records).tpot_s.p50
        middle = Batch(decode_rows=width, decode_context=width * (_PROMPT + _ANSWER // 2))
        extra.append((width, max(0.0, period_s - timing.step_s(middle))))
        print(f"{width:3} at once: {period_s * 1e3:.2f} ms a step, {extra[-1][1] * 1e3:.2f} of them not the engine's")
    widths, seconds = np.array(extra).T
    fixed_s, row_s = relative_line(widths, np.maximum(seconds, 1e-5))
    step = timing.step
    step = replace(step, fixed_s=step.fixed_s + fixed_s, decode_row_s=step.decode_row_s + row_s)
    return replace(timing, step=replace(step, prefill_row_s=step.prefill_row_s + row_s))


def replay(cluster: ClusterProcess, name: str, spec: str) -> Run:
    """Run a workload live, from the other core."""
    record = cluster.data_dir / f"{name}.jsonl"
    command = dunlin("replay", spec, "--data-dir", str(cluster.data_dir), "--record", str(record))
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False, preexec_fn=lambda: _to(OTHERS_CPU))
    return read_run(record)


def compare(cluster: ClusterProcess, name: str, spec: str, timing: EngineTiming) -> list[Difference]:
    """Run a workload live, again in virtual time, and print both."""
    run = replay(cluster, name, spec)
    found = differences(run.records, simulate_again(run, timing))
    print(f"{name}: {len(run.records)} requests\n  {'':10}{'live ms':>10}{'simulated':>10}{'':>8}")
    for each in found:
        times = f"{each.live_s * 1e3:10.2f}{each.simulated_s * 1e3:10.2f}{each.relative:>+8.1%}"
        print(f"  {each.measure} {each.quantile:5}{times}")
    return found


def pin(supervisor: int) -> None:
    """Every process below the supervisor to a core: instances and their engines to one, all others to the other."""
    for pid in [supervisor, *descendants(supervisor)]:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
        cpu = INSTANCE_CPU if b"services.instance" in line or b"dunlin.engine" in line else OTHERS_CPU
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {cpu})


def _to(cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})


def _profiled() -> Path:
    store = Path("fidelity-profile.db").absolute()
    subprocess.run(dunlin("profile", "--cpu", str(INSTANCE_CPU), "--out", str(store)), check=True)
    return store


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", type=Path, help="a store that `dunlin profile` wrote on this machine")
    parser.add_argument("--duration", type=float, default=60.0, help="of a workload, seconds")
    parser.add_argument("--load", type=float, default=1.0, help="multiplies all rates")
    parser.add_argument("--limit", type=float, default=0.10)
    parser.add_argument("--json", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main())
