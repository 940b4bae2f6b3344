"""Measures what dunlin's own processes take of their cores: a live cluster under loads that tell their costs apart.

Works on a cluster of one instance that is running already, pinned and without other load. The loads are far from real
ones on purpose: nothing, requests one by one and all at once, long answers alone and many together.
"""

import os
import resource
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dunlin.cost.fit import Array, non_negative
from dunlin.cost.models import Batch, EngineTiming, HostCosts, MessageCosts
from dunlin.launch.proc import command_line, cpu_s, descendants
from dunlin.launch.process import ClusterProcess, dunlin
from dunlin.workload.runs import Run, read_run
from dunlin.workload.stats import report

PROMPT = 32
_HOPS = 5
"""Between processes from a client's first word to its first token: two to connect and ask, one to place, two back."""
_IDLE_S = 3.0
_SEED = 90_000
_FILL_PROMPT = 500


@dataclass(frozen=True, slots=True)
class HostLoad:
    """`requests` of `prompt` tokens in and `answer` out each, `apart_s` from one to the next."""

    name: str
    requests: int
    answer: int
    apart_s: float = 0.0
    prompt: int = PROMPT

    @property
    def steps(self) -> float:
        """The steps that the engine computes for the load, with prompts in steps of 512 tokens."""
        return self.requests if self.apart_s else self.answer - 1 + max(1.0, self.requests * self.prompt / 512)


LOADS = (
    HostLoad("spaced", 60, 1, 0.05),
    HostLoad("crowd", 160, 1),
    HostLoad("one", 1, 600),
    HostLoad("few", 8, 300),
    HostLoad("many", 48, 200),
)


@dataclass(frozen=True, slots=True)
class HostUse:
    """A load in counts, with the CPU seconds of the instance's process, the dispatcher's and the client's."""

    wall_s: float
    steps: float
    rows: float
    requests: float
    instance_s: float
    dispatcher_s: float
    client_s: float


def settle(cluster: ClusterProcess, instance_cpu: int, others_cpu: int, quiet_s: float = 2.0) -> None:
    """Wait until the standby engine is loaded and idle, then pin every process to its core."""
    busy, since_s = -1.0, time.monotonic()
    while time.monotonic() - since_s < quiet_s:
        time.sleep(0.25)
        found = processes(cluster.pid)
        for pid, line in found:
            _pin(pid, instance_cpu if "services.instance " in line or "dunlin.engine" in line else others_cpu)
        standing_by = [pid for pid, line in found if "--standby" in line]
        now = sum(map(_used_s, standing_by))
        if not standing_by or now != busy:
            busy, since_s = now, time.monotonic()


def measure_host(cluster: ClusterProcess, timing: EngineTiming, shares_core: bool, client_cpu: int) -> HostCosts:
    """Measure the host costs of an idle cluster. Raises ValueError where a process is missing or a load failed."""
    _fill_slab(cluster, timing.slots, client_cpu)
    began = _looked(cluster)
    time.sleep(_IDLE_S)
    uses = [_use(began, _looked(cluster), HostLoad("idle", 0, 1))]
    first_s = 0.0
    for number, load in enumerate(LOADS):
        began = _looked(cluster)
        # A seed of its own, or prompts would be found in the host tier.
        run = served(cluster, load.name, str(_trace(cluster, load)), client_cpu, _SEED + number)
        uses.append(_use(began, _looked(cluster), load))
        if load.apart_s:
            first_s = report(run.records).ttft_s.p50
    return fitted(uses, first_s, timing, shares_core)


def _fill_slab(cluster: ClusterProcess, slots: int, client_cpu: int) -> None:
    """Serve as many different tokens as the instance's slab holds: a page's first touch costs more than computing on
    it, and an instance that has served for some minutes has touched them all. Raises ValueError if that fails.
    """
    load = HostLoad("fill", -(-slots // _FILL_PROMPT), 1, prompt=_FILL_PROMPT)
    served(cluster, load.name, str(_trace(cluster, load)), client_cpu, _SEED - 1)


def served(cluster: ClusterProcess, name: str, spec: str, cpu: int, seed: int) -> Run:
    """Run a workload live, from that core. Raises ValueError unless all of its requests ended well."""
    run = replay(cluster, name, spec, cpu, "--seed", str(seed))
    if failed(run):
        raise ValueError(f"{failed(run)} requests of the load {name} failed: see {cluster.data_dir}")
    return run


def replay(cluster: ClusterProcess, name: str, spec: str, cpu: int, *flags: str) -> Run:
    """Run a workload live, from that core. Raises ValueError if it left no record."""
    record = cluster.data_dir / f"{name}.jsonl"
    command = dunlin("replay", spec, "--data-dir", str(cluster.data_dir), "--record", str(record), *flags)
    pinned: Callable[[], None] = lambda: os.sched_setaffinity(0, {cpu})  # noqa: E731
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=pinned)
    if not record.exists():
        raise ValueError(f"the load {name} failed: {done.stderr[-2000:]}")
    return read_run(record)


def failed(run: Run) -> int:
    """The number of requests that did not complete."""
    return sum(each.outcome != "ok" for each in run.records)


def fitted(uses: Sequence[HostUse], first_s: float, timing: EngineTiming, shares_core: bool) -> HostCosts:
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
    batch = Batch()
    batch.add_prefill(PROMPT)
    known_s = timing.step_s(batch)
    for costs in (instance, door):
        known_s += costs.request_s + costs.step_s + costs.row_s
    return HostCosts(instance, door, max(0.0, first_s - known_s) / _HOPS, shares_core)


def _costs(uses: Sequence[HostUse], seconds: Sequence[float], starts: bool = False) -> MessageCosts:
    """`starts`: the process starts for each load, which takes the same every time; else it is there all the time."""
    columns = [[1.0 if starts else each.wall_s, each.steps, each.rows, each.requests] for each in uses]
    features: Array = np.array(columns)
    scale = np.maximum(features.max(axis=0), 1e-9)
    idle, step, row, request = map(float, non_negative(features / scale, np.array(seconds)) / scale)
    return MessageCosts(step, row, request, 0.0 if starts else idle)


def _trace(cluster: ClusterProcess, load: HostLoad) -> Path:
    path = cluster.data_dir / f"{load.name}.csv"
    rows = [f"{index * load.apart_s:.3f},{load.prompt},{load.answer}" for index in range(load.requests)]
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


def _use(began: _Looked, ended: _Looked, load: HostLoad) -> HostUse:
    return HostUse(
        ended.at_s - began.at_s,
        load.steps if load.requests else 0.0,
        load.requests * load.answer,
        load.requests,
        ended.instance_s - began.instance_s,
        ended.dispatcher_s - began.dispatcher_s,
        ended.client_s - began.client_s,
    )


def _cpu_s(cluster: ClusterProcess, role: str) -> float:
    """CPU seconds of the processes of a role so far, all their threads together."""
    found = [pid for pid, line in processes(cluster.pid) if f"services.{role} " in line]
    if not found:
        raise ValueError(f"the cluster has no process of the role {role}")
    return sum(map(_used_s, found))


def _used_s(pid: int) -> float:
    """CPU seconds of a process so far; 0 if it is gone."""
    with suppress(OSError):
        return cpu_s(pid)
    return 0.0


def _pin(pid: int, cpu: int) -> None:
    with suppress(OSError):  # it ended meanwhile
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), {cpu})


def processes(supervisor: int) -> list[tuple[int, str]]:
    """All descendants of a process, with their command lines."""
    found = []
    for pid in descendants(supervisor):
        with suppress(OSError):  # it ended meanwhile
            found.append((pid, command_line(pid)))
    return found


def without_idle(host: HostCosts) -> HostCosts:
    """The costs without the idle share, where step times contain it already."""
    return replace(host, instance=replace(host.instance, idle_share=0.0))
