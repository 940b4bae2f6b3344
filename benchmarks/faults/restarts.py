"""How long a cluster takes to start and to get a killed process back, and what its processes take.

    python -m benchmarks.faults.restarts                      one instance, then four

Time to the ready line, with the core-seconds of all processes until then; their memory after `--settle` seconds, pages
that several share counted once; for an instance, an engine and a manager that leads the time from SIGKILL until the
next one takes requests, computes, or leads.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable

from benchmarks.harness import report
from benchmarks.harness.fault_targets import epoch_of, pid_of
from benchmarks.harness.fleet_status import instances, is_replaced, wait_until
from benchmarks.harness.processes import proportional_bytes
from benchmarks.harness.report import BenchmarkResult
from benchmarks.harness.session import CampaignSession
from cli.launch.cluster_process import ClusterProcess
from cli.launch.readiness import placeable
from dunlin.messages.fleet import FleetStatus
from dunlin.runtime.procfs import descendants, process_cpu_s

LIMIT_S = 120.0
MIB = 1 << 20


def measure(count: int, settle_s: float) -> BenchmarkResult:
    """A cluster of so many instances from its start."""
    outcome = BenchmarkResult(f"start and restarts with {count} instances")
    began_s = time.monotonic()
    with ClusterProcess("--instances", str(count), "--managers", "2") as cluster:
        outcome.figures["ready after (s)"] = time.monotonic() - began_s
        everything = (cluster.pid, *descendants(cluster.pid))
        outcome.figures["core-seconds until then"] = sum(map(process_cpu_s, everything))
        time.sleep(settle_s)
        everything = (cluster.pid, *descendants(cluster.pid))
        outcome.figures["memory (MiB)"] = sum(map(proportional_bytes, everything)) / MIB
        asyncio.run(_restarts(cluster, outcome))
    return outcome


async def _restarts(cluster: ClusterProcess, outcome: BenchmarkResult) -> None:
    async with CampaignSession(cluster) as session:
        status = await session.status()
        victim = instances(status)[0]
        assert victim.instance is not None
        engine, term = victim.instance.engine_pid, epoch_of(status)

        async def back(what: str, pid: int, is_back: Callable[[FleetStatus], bool]) -> None:
            os.kill(pid, signal.SIGKILL)
            killed_s = time.monotonic()
            await wait_until(session.status, is_back, f"another {what}", LIMIT_S)
            outcome.figures[f"{what} killed, the next one after (s)"] = time.monotonic() - killed_s

        await back("engine", engine, lambda now: _has_next_engine(now, victim.pid, engine))
        await back("instance", victim.pid, lambda now: is_replaced(now, victim))
        await back("manager", pid_of("leader", status, cluster), lambda now: epoch_of(now) > term)


def _has_next_engine(status: FleetStatus, instance: int, dead: int) -> bool:
    """Whether the instance of that pid takes requests with another engine than the dead one."""
    same = [one.instance for one in instances(status) if one.pid == instance and placeable(one)]
    return any(report is not None and report.engine_pid not in (0, dead) for report in same)


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--instances", type=int, nargs="+", default=[1, 4], metavar="N")
    arguments.add_argument("--settle", type=float, default=12.0, metavar="S")
    arguments.add_argument("--json", action="store_true", help="print JSON instead of a table")
    given = arguments.parse_args(argv)
    return max(report.finish(measure(count, given.settle), given.json) for count in given.instances)


if __name__ == "__main__":
    sys.exit(main())
