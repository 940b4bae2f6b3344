"""Measures what dunlin's own processes take of their cores: a live cluster under loads that tell their costs apart.

Works on a cluster of one instance that is running already, pinned and without other load. The loads are far from real
ones on purpose: nothing, requests one by one and all at once, long answers alone and many together.
"""

import os
import resource
import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cli.launch.cluster_process import ClusterProcess, dunlin_command
from cli.profiling.fitting.regression import Array, non_negative
from dunlin.cost.engine_timing import EngineTiming
from dunlin.cost.models import BatchCounts
from dunlin.cost.processes import MessageCosts, ProcessCosts
from dunlin.runtime.procfs import command_line, descendants, process_cpu_s
from dunlin.workload.loadgen.run_record import RecordedRun, read_run
from dunlin.workload.loadgen.stats import summarize

PROMPT = 32
_HOPS = 5
"""Between processes from a client's first word to its first token: two to connect and ask, one to place, two back."""
_IDLE_S = 3.0
_SEED = 90_000
_FILL_PROMPT = 500


@dataclass(frozen=True, slots=True)
class ProcessLoad:
    """`requests` of `prompt` tokens in and `answer` out each, `apart_s` from one to the next."""

    name: str
    requests: int
    output_tokens: int
    interval_s: float = 0.0
    prompt: int = PROMPT

    @property
    def steps(self) -> float:
        """The steps that the engine computes for the load, with prompts in steps of 512 tokens."""
        return (
            self.requests if self.interval_s else self.output_tokens - 1 + max(1.0, self.requests * self.prompt / 512)
        )


LOADS = (
    ProcessLoad("spaced", 60, 1, 0.05),
    ProcessLoad("crowd", 160, 1),
    ProcessLoad("one", 1, 600),
    ProcessLoad("few", 8, 300),
    ProcessLoad("many", 48, 200),
)


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """A load in counts, with the CPU seconds of the instance's process, the dispatcher's and the client's."""

    wall_s: float
    steps: float
    rows: float
    requests: float
    instance_s: float
    dispatcher_s: float
    client_s: float


def pin_and_settle(cluster: ClusterProcess, instance_cpu: int, others_cpu: int, quiet_s: float = 2.0) -> None:
    """Wait until the standby engine is loaded and idle, then pin every process to its core."""
    busy, since_s = -1.0, time.monotonic()
    while time.monotonic() - since_s < quiet_s:
        time.sleep(0.25)
        found = supervised_processes(cluster.pid)
        for pid, line in found:
            _pin(pid, instance_cpu if "services.instance " in line or "dunlin.engine" in line else others_cpu)
        standing_by = [pid for pid, line in found if "--standby" in line]
        now = sum(map(_used_s, standing_by))
        if not standing_by or now != busy:
            busy, since_s = now, time.monotonic()


def measure_process_costs(
    cluster: ClusterProcess, timing: EngineTiming, shares_core: bool, client_cpu: int
) -> ProcessCosts:
    """Measure the host costs of an idle cluster. Raises ValueError where a process is missing or a load failed."""
    _fill_slab(cluster, timing.slots, client_cpu)
    began = _looked(cluster)
    time.sleep(_IDLE_S)
    uses = [_use(began, _looked(cluster), ProcessLoad("idle", 0, 1))]
    first_s = 0.0
    for number, load in enumerate(LOADS):
        began = _looked(cluster)
        # A seed of its own, or prompts would be found in the host tier.
        run = run_workload(cluster, load.name, str(_trace(cluster, load)), client_cpu, _SEED + number)
        uses.append(_use(began, _looked(cluster), load))
        if load.interval_s:
            first_s = summarize(run.records).ttft_s.p50
    return fit_process_costs(uses, first_s, timing, shares_core)


def _fill_slab(cluster: ClusterProcess, slots: int, client_cpu: int) -> None:
    """Serve as many different tokens as the instance's slab holds: a page's first touch costs more than computing on
    it, and an instance that has served for some minutes has touched them all. Raises ValueError if that fails.
    """
    load = ProcessLoad("fill", -(-slots // _FILL_PROMPT), 1, prompt=_FILL_PROMPT)
    run_workload(cluster, load.name, str(_trace(cluster, load)), client_cpu, _SEED - 1)


def run_workload(cluster: ClusterProcess, name: str, spec: str, cpu: int, seed: int) -> RecordedRun:
    """Run a workload live, from that core. Raises ValueError unless all of its requests ended well."""
    run = record_workload(cluster, name, spec, {cpu}, "--seed", str(seed))
    if failed_requests(run):
        raise ValueError(f"{failed_requests(run)} requests of the load {name} failed: see {cluster.data_dir}")
    return run


def record_workload(cluster: ClusterProcess, name: str, spec: str, cpus: Collection[int], *flags: str) -> RecordedRun:
    """Run a workload live, from those cores. Raises ValueError if it left no record."""
    record = cluster.data_dir / f"{name}.jsonl"
    command = dunlin_command("replay", spec, "--data-dir", str(cluster.data_dir), "--record", str(record), *flags)
    pinned: Callable[[], None] = lambda: os.sched_setaffinity(0, cpus)  # noqa: E731
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=pinned)
    if not record.exists():
        raise ValueError(f"the load {name} failed: {done.stderr[-2000:]}")
    return read_run(record)


def failed_requests(run: RecordedRun) -> int:
    """The number of requests that did not complete."""
    return sum(each.outcome != "ok" for each in run.records)


def fit_process_costs(
    uses: Sequence[ProcessUsage], first_s: float, timing: EngineTiming, shares_core: bool
) -> ProcessCosts:
    """The costs that give these uses, by least squares, none below 0. `first_s`: to the first token of a prompt of
    `PROMPT` tokens on an idle cluster; what nothing else explains of it is the hops'.
    """
    instance = _costs(uses, [each.instance_s for each in uses])
    dispatcher = _costs(uses, [each.dispatcher_s for each in uses])
    client = _costs(uses[1:], [each.client_s for each in uses[1:]], starts=True)
    door = MessageCosts(
        dispatcher.step_s + client.step_s,
        dispatcher.row_s + client.row_s,
        dispatcher.request_s + client.request_s,
        dispatcher.idle_share,
    )
    batch = BatchCounts()
    batch.add_prefill(PROMPT)
    known_s = timing.step_s(batch)
    for costs in (instance, door):
        known_s += costs.request_s + costs.step_s + costs.row_s
    return ProcessCosts(instance, door, max(0.0, first_s - known_s) / _HOPS, shares_core)


def _costs(uses: Sequence[ProcessUsage], seconds: Sequence[float], starts: bool = False) -> MessageCosts:
    """`starts`: the process starts for each load, which takes the same every time; else it is there all the time."""
    columns = [[1.0 if starts else each.wall_s, each.steps, each.rows, each.requests] for each in uses]
    features: Array = np.array(columns)
    scale = np.maximum(features.max(axis=0), 1e-9)
    idle, step, row, request = map(float, non_negative(features / scale, np.array(seconds)) / scale)
    return MessageCosts(step, row, request, 0.0 if starts else idle)


def _trace(cluster: ClusterProcess, load: ProcessLoad) -> Path:
    path = cluster.data_dir / f"{load.name}.csv"
    rows = [f"{index * load.interval_s:.3f},{load.prompt},{load.output_tokens}" for index in range(load.requests)]
    path.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows, ""]))
    return path


@dataclass(frozen=True, slots=True)
class _Looked:
    at_s: float
    instance_s: float
    dispatcher_s: float
    client_s: float


def _looked(cluster: ClusterProcess) -> _Looked:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    children_s = used.ru_utime + used.ru_stime
    return _Looked(time.monotonic(), _cpu_s(cluster, "instance"), _cpu_s(cluster, "dispatcher"), children_s)


def _use(began: _Looked, ended: _Looked, load: ProcessLoad) -> ProcessUsage:
    return ProcessUsage(
        ended.at_s - began.at_s,
        load.steps if load.requests else 0.0,
        load.requests * load.output_tokens,
        load.requests,
        ended.instance_s - began.instance_s,
        ended.dispatcher_s - began.dispatcher_s,
        ended.client_s - began.client_s,
    )


def _cpu_s(cluster: ClusterProcess, role: str) -> float:
    """CPU seconds of the processes of a role so far, all their threads together."""
    found = [pid for pid, line in supervised_processes(cluster.pid) if f"services.{role} " in line]
    if not found:
        raise ValueError(f"the cluster has no process of the role {role}")
    return sum(map(_used_s, found))


def _used_s(pid: int) -> float:
    """CPU seconds of a process so far; 0 if it is gone."""
    with suppress(OSError):
        return process_cpu_s(pid)
    return 0.0


def _pin(pid: int, cpu: int) -> None:
    with suppress(OSError):  # it ended meanwhile
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {cpu})


def supervised_processes(supervisor: int) -> list[tuple[int, str]]:
    """All descendants of a process, with their command lines."""
    found = []
    for pid in descendants(supervisor):
        with suppress(OSError):  # it ended meanwhile
            found.append((pid, command_line(pid)))
    return found


def without_idle_cost(host: ProcessCosts) -> ProcessCosts:
    """The costs without the idle share, where step times contain it already."""
    return replace(host, instance=replace(host.instance, idle_share=0.0))
