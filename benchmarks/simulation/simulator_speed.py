"""How fast the twin runs, and how large: `python -m benchmarks.simulation.simulator_speed [--instances N]
[--requests N] | --chat [N,N,…]`.

The cores of a whole cluster in one process, in virtual time: nothing is opened and nothing waits. Seconds are of
processor time, which other work on the machine does not take away; memory is the most that the process ever held.
"""

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from random import Random

from dunlin.workload.traffic.arrival_processes import poisson_arrivals
from dunlin.workload.traffic.lengths import FixedLengths, LengthSource, UniformLengths
from dunlin.workload.traffic.prompts import Job, iter_jobs
from dunlin.workload.traffic.trace import Arrival
from simulator.cluster.spec import ClusterSpec, spec_of
from simulator.study.run import SimSpec, simulate

CHAT_INSTANCES, CHAT_REQUESTS, CHAT_RATE = 4, 1000, 5.0
"""The rate is an instance's. Large fleets have four requests for each instance."""
CHAT_LENGTHS = UniformLengths((500, 1500), (40, 400))
"""About 1,000 tokens in and 220 out, as a question and its answer."""
SHORT_LENGTHS = FixedLengths(512, 16)
SLOTS, SLOTS_SMALL = 200_000, 13_616
"""Of an instance: that of a large device, and (in large fleets) of a 7B model on a device of 24 GB."""
REPORTS = {"reports.after_change_s": 1.0, "reports.interval_s": 1.0}


@dataclass(frozen=True, slots=True)
class SpeedRun:
    """What one run was, and what it took. `events` are deliveries; `failed` requests were refused or went wrong."""

    instances: int
    requests: int
    tokens: int
    failed: int
    is_complete: bool
    simulated_s: float
    events: int
    cpu_s: float
    peak_mib: int

    @property
    def requests_per_min(self) -> float:
        """Per minute of processor time, the start of the cluster included."""
        return 60.0 * self.requests / self.cpu_s


def cluster_of(instances: int, slots: int = SLOTS) -> ClusterSpec:
    """Instances in one node: a step takes 20 ms and 50 µs for each token that it computes. They report
    once a second, as a fleet of thousands should: the dispatcher counts what it has dispatched itself.
    """
    engine = {"slots": slots, "max_positions": 32_768, "step_s": 0.02, "token_s": 5e-5}
    return spec_of({**engine, "audit": False, "progress_s": None}, instances=instances, instance=REPORTS)


def arrivals(requests: int, rate: float, lengths: LengthSource, seed: int = 1) -> Iterator[Arrival]:
    """So many requests, at exponential intervals."""
    draw = Random(seed)
    for at_s in islice(poisson_arrivals(rate, seed), requests):
        yield Arrival(at_s, *lengths.draw(draw))


def one_run(spec: ClusterSpec, jobs: Iterator[Job], says: bool = False) -> SpeedRun:
    """The whole run: start, load and end."""
    began_s = time.process_time()

    def progress(ended: int, at_s: float) -> None:
        took_s = time.process_time() - began_s
        print(f"{at_s:8.1f} s simulated  {ended:9} ended  {took_s:8.1f} s  {_held_mib():6} MiB", file=sys.stderr)

    result = simulate(SimSpec(spec, jobs, sample_s=0), progress if says else None)
    cpu_s = time.process_time() - began_s
    tokens = failed = 0
    for record in result.records:
        tokens += len(record.token_s)
        failed += record.outcome != "ok"
    return SpeedRun(
        instances=spec.instances,
        requests=len(result.records),
        tokens=tokens,
        failed=failed,
        is_complete=result.is_complete,
        simulated_s=result.span_s,
        events=result.events,
        cpu_s=cpu_s,
        peak_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    )


def chat(instances: int, repeats: int) -> list[SpeedRun]:
    """The same run several times: only the time that it takes differs."""
    spec = cluster_of(instances)
    config = spec.engine.ready
    requests, rate = max(CHAT_REQUESTS, 4 * instances), instances * CHAT_RATE
    return [
        one_run(
            spec,
            iter_jobs(arrivals(requests, rate, CHAT_LENGTHS), config.max_positions, config.vocabulary, seed=1),
        )
        for _ in range(repeats)
    ]


def _show(runs: Sequence[SpeedRun]) -> None:
    for run in runs:
        print(
            f"{run.instances} instances, {run.requests} requests ({run.failed} failed, complete: {run.is_complete}), "
            f"{run.tokens} tokens, {run.simulated_s:.1f} s simulated: {run.events} events, {run.cpu_s:.1f} s CPU, "
            f"{run.peak_mib} MiB, {run.requests_per_min:,.0f} requests/min"
        )
    median = statistics.median(run.requests_per_min for run in runs)
    print(f"{runs[0].instances} instances: median {median:,.0f} requests/min of CPU", flush=True)


def _counts(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def large(instances: int, requests: int, over_s: float) -> SpeedRun:
    """Short requests, spread over so many simulated seconds."""
    spec = cluster_of(instances, SLOTS_SMALL)
    config = spec.engine.ready
    each = arrivals(requests, requests / over_s, SHORT_LENGTHS)
    return one_run(spec, iter_jobs(each, config.max_positions, config.vocabulary, seed=1), says=True)


def _held_mib() -> int:
    """What the process holds now."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() >> 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=8192)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--over", type=float, default=20.0, metavar="S", help="simulated seconds in which they come")
    parser.add_argument(
        "--chat",
        type=_counts,
        nargs="?",
        const=[CHAT_INSTANCES],
        metavar="N,N",
        help=f"instead: requests a minute of so many instances that chat (default: {CHAT_INSTANCES})",
    )
    parser.add_argument("--repeats", type=int, default=5, help="of --chat")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.chat:
        groups = [chat(instances, options.repeats) for instances in options.chat]
    else:
        groups = [[large(options.instances, options.requests, options.over)]]
    runs = [run for group in groups for run in group]
    if options.json:
        print(json.dumps([asdict(run) for run in runs]))
        return
    for group in groups:
        _show(group)
    raise SystemExit(not all(run.is_complete for run in runs))


if __name__ == "__main__":
    main()
