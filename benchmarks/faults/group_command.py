"""The command of benchmarks of elastic groups: texts of one instance that holds every prompt alone, then a cluster of
several that must give the same.
"""

import argparse
import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from benchmarks.harness import report
from benchmarks.harness.report import BenchmarkResult
from benchmarks.harness.session import CampaignSession
from benchmarks.harness.verified_load import VerifiedLoad
from cli.launch.cluster_process import ClusterProcess
from dunlin.workload.traffic.prompts import Job

SLOTS = 512
"""Of an instance of the group; prompts are longer."""
ALONE = ("--instances", "1", "--slots", str(16 * SLOTS), "--deterministic")

References = dict[int, list[int]]
"""The text of each job, by its number."""

Jobs = Callable[[int, argparse.Namespace], list[Job]]
"""Maps (the model's vocabulary, what was asked for) to the load."""

Work = Callable[[ClusterProcess, References, argparse.Namespace], Coroutine[Any, Any, BenchmarkResult]]
"""The benchmark itself, against a running cluster."""


def run_command(
    arguments: argparse.ArgumentParser, argv: Sequence[str] | None, settings: Sequence[str], jobs: Jobs, work: Work
) -> int:
    """Run the benchmark with its `arguments` and those of all of them; returns the exit code.

    `settings`: what the cluster is started with, beside the number of its instances, their slots and the preset.
    """
    arguments.set_defaults(instances=4)
    arguments.add_argument("--preset", default="elastic", help="of the cluster (elastic)")
    arguments.add_argument("--seed", type=int, default=1, help="of prompts and faults")
    arguments.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of the cluster")
    given = arguments.parse_args(argv)
    known = asyncio.run(_references(jobs, given))
    shape = ("--instances", str(given.instances), "--slots", str(SLOTS), "--preset", given.preset)
    with ClusterProcess(*shape, *settings, *(f"--set={each}" for each in given.set)) as cluster:
        outcome = asyncio.run(work(cluster, known, given))
        cluster.keep = bool(outcome.failures)
    return report.finish(outcome, given.json)


async def _references(jobs: Jobs, given: argparse.Namespace) -> References:
    with ClusterProcess(*ALONE) as cluster:
        async with CampaignSession(cluster) as session:
            load = VerifiedLoad(session.door, jobs(session.vocabulary, given), width=4)
            await load.record_references()
            return load.references
