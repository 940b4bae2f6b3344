"""Long prompts whose number of members changes again and again, beside short ones: every text that of one instance.

    python -m benchmarks.faults.group_changes                    100 short and 10 long requests
    python -m benchmarks.faults.group_changes --changes 200      the same load again until there were so many changes
    python -m benchmarks.faults.group_changes --preset loongserve --width 16 --set manager.groups.profile=STORE \
        --set dispatcher.placement.long_tokens=7 --set instance.groups.chunk_tokens=8 \
        --set instance.groups.ahead_tokens=8                     every request is the planner's, as in LoongServe

Four deterministic instances of 512 slots under the preset `elastic` or --preset. References come from one instance that
holds every prompt alone. What changes is the degree of parallelism: the members that compute a row of a sequence, or
answer for keys of it, counted by the leaders (`dop_changes_total`).
"""

import argparse
import asyncio
import contextlib
import random
import sys
from collections.abc import Sequence

from benchmarks.faults.group_command import SLOTS, References, run_command
from benchmarks.harness import report
from benchmarks.harness.fleet_status import instances
from benchmarks.harness.report import BenchmarkResult, say
from benchmarks.harness.session import CampaignSession
from benchmarks.harness.verified_load import VerifiedLoad
from cli.launch.cluster_process import ClusterProcess
from dunlin.client import DunlinError
from dunlin.messages.fleet import FleetStatus
from dunlin.messages.types import i32
from dunlin.workload.traffic.prompts import Job

LONG, SHORT = 10, 100
WIDTH = 6
LONG_ANSWER, SHORT_ANSWER = 160, 64
"""Tokens that are generated."""
REPORTED_S = 1.5
"""Seconds after which a change is in a report."""
SETTINGS = ("--deterministic",)


def jobs(vocabulary: int, given: argparse.Namespace) -> list[Job]:
    """The load, long prompts between the short ones."""
    draw = random.Random(given.seed)
    found = []
    for number in range(LONG + SHORT):
        is_long = number % (SHORT // LONG + 1) == 0
        length = int(SLOTS * draw.uniform(1.2, 2.8)) if is_long else draw.randint(8, 64)
        prompt = i32(draw.choices(range(vocabulary), k=length))
        answer = given.long_answer if is_long else given.short_answer
        found.append(Job(0.0, prompt, answer, seed=number if number % 2 else None))
    return found


async def changes(session: CampaignSession) -> int:
    """Changes of degree so far, at all instances."""
    while True:
        with contextlib.suppress(DunlinError):
            return _changes(await session.status())
        await asyncio.sleep(0.2)


def _changes(status: FleetStatus) -> int:
    return sum(one.instance.dop_changes_total for one in instances(status) if one.instance is not None)


async def run(cluster: ClusterProcess, known: References, given: argparse.Namespace) -> BenchmarkResult:
    """The load against a running cluster, once, or until there were so many changes."""
    outcome = BenchmarkResult("how many members compute a sequence changes")
    async with CampaignSession(cluster) as session:
        load = VerifiedLoad(session.door, jobs(session.vocabulary, given), width=given.width)
        load.references = known
        in_one, rounds = 0, 0
        async with load.running():
            while not load.failures and (rounds == 0 or await changes(session) < given.changes):
                rounds += 1
                await load.until_finished(rounds * (LONG + SHORT))
                in_one = in_one or await changes(session)
                say(f"{load.finished:5} requests: {await changes(session)} changes")
        await asyncio.sleep(REPORTED_S)
        outcome.figures["requests, of which long"] = (load.finished, load.finished * LONG // (LONG + SHORT))
        outcome.figures["requests failed or with another text"] = len(load.failures)
        outcome.figures["changes of degree in the first load, in all"] = (in_one, await changes(session))
        outcome.failures += load.failures
    return outcome


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--width", type=int, default=WIDTH, metavar="N", help="requests that are open at a time")
    arguments.add_argument("--long-answer", type=int, default=LONG_ANSWER, metavar="TOKENS", help="for a long prompt")
    arguments.add_argument("--short-answer", type=int, default=SHORT_ANSWER, metavar="TOKENS", help="for a short one")
    arguments.add_argument("--changes", type=int, default=0, metavar="N", help="go on until there were so many")
    return run_command(arguments, argv, SETTINGS, jobs, run)


if __name__ == "__main__":
    sys.exit(main())
