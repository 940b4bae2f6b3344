"""The campaign's plans against real processes: three nodes in network namespaces, every kind of fault, the same checks.

    python -m benchmarks.faults.live_chaos --minutes 3 --seed 1
    python -m benchmarks.faults.live_chaos --minutes 60 --seed 1
    python -m benchmarks.faults.live_chaos --instances 6         those of a node form groups for long prompts

Needs root and the package iproute2. Each node has a disk of its own in memory, an etcd member, a kvstore and an
instance or several; there are two dispatchers, two managers and a monitor. A round lasts 90 s: the faults of the
campaign's plan of a seed, and the requests of a plan, translated (benchmarks/faults/chaos/rounds.py). Every text is
compared with that of an undisturbed run, every epoch with etcd, every job's lines with its input; at the end all must
be at rest.
"""

import asyncio
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.faults.chaos.cluster import LiveCluster, live_cluster
from benchmarks.faults.chaos.kinds import LIVE_KINDS, REFUSED_KINDS
from benchmarks.faults.chaos.rounds import NODES, live_plan
from benchmarks.faults.chaos.run import JOBS_S, READY_S, REST_S, LiveChaosPlan, LiveChaosRun
from benchmarks.faults.chaos.streams import StreamEnd, excuses
from benchmarks.harness import report
from benchmarks.harness.namespaces import NoNamespaces
from benchmarks.harness.node_network import node_network
from benchmarks.harness.report import BenchmarkResult, say
from dunlin.membership.client import EtcdClient
from dunlin.workload.loadgen.stats import percentiles


def figures(run: LiveChaosRun) -> dict[str, object]:
    """What a run did, as far as it came."""
    streams, injector = run.clients.streams, run.injector
    long = [one for one in streams if len(one.request.prompt) + one.request.max_tokens > run.rounds.slots]
    gaps = percentiles(stream.longest_gap_s for stream in streams if stream.pieces)
    return {
        "faults struck, void": (sum(injector.struck.values()), sum(injector.void.values())),
        "faults by kind": ", ".join(f"{kind} {count}" for kind, count in sorted(injector.struck.items())),
        "kinds never struck": [kind for kind in LIVE_KINDS if not injector.struck[kind]],
        "kinds refused": sorted(REFUSED_KINDS),
        "streams, of these whole": (len(streams), sum(stream.end is StreamEnd.FINISHED for stream in streams)),
        "of these too long for one instance, whole": (len(long), sum(one.end is StreamEnd.FINISHED for one in long)),
        "other ends": ", ".join(f"{end} {count}" for end, count in excuses(streams).items()),
        "tokens": sum(len(stream.tokens) for stream in streams),
        "calls repeated before admission": sum(max(0, stream.tries - 1) for stream in streams),
        "longest silence of a stream, p50 / p99 / max (s)": (gaps.p50, gaps.p99, gaps.max),
        "jobs, lines answered": (len(run.jobs.created), run.jobs.answered) if run.jobs is not None else (0, 0),
        "epochs, restarts of etcd's watch": (len(run.terms.led), max(0, run.terms.gaps)),
        "looks at the status": run.looks,
        "requests whose reasons were read, dispatched more than once": (run.looked_back, run.dispatched_again),
    }


async def play(plan: LiveChaosPlan, cluster: LiveCluster, folder: Path) -> BenchmarkResult:
    """Start the cluster and run the plan on it."""
    outcome = BenchmarkResult(f"live chaos: {plan.minutes:g} minutes from seed {plan.seed}, preset {plan.preset}")
    await cluster.start()
    etcd = EtcdClient(cluster.etcd.endpoints)
    run = LiveChaosRun(plan, cluster, etcd, folder)
    try:
        async with asyncio.timeout(60.0 * plan.minutes + 2 * READY_S + REST_S + JOBS_S + 300.0):
            await run.run()
    except (TimeoutError, asyncio.CancelledError):
        outcome.failures.append("I12: the run was cut off before its end")
    finally:
        await etcd.close()
    outcome.failures += run.violations
    outcome.figures |= figures(run)
    return outcome


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    usual = LiveChaosPlan()
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--minutes", type=float, default=usual.minutes, help="of rounds")
    arguments.add_argument("--seed", type=int, default=usual.seed, help="of the first round's plan")
    arguments.add_argument("--preset", default=usual.preset, help="of the cluster")
    arguments.add_argument("--waves", type=int, default=usual.waves, help="times that a round sends each request")
    given = arguments.parse_args(argv)
    if given.instances < NODES or given.instances % NODES:
        arguments.error(f"--instances {given.instances}: each of the {NODES} nodes has as many")
    plan = LiveChaosPlan(given.minutes, given.seed, given.preset, waves=given.waves, per_node=given.instances // NODES)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="dunlin-chaos-"))
    (folder / "batches").mkdir()
    skews = live_plan(plan.seed, plan.preset).shape.skews
    try:
        with (
            node_network(NODES) as network,
            live_cluster(network, folder, plan.words(folder / "batches"), skews, plan.per_node) as cluster,
        ):
            outcome = asyncio.run(play(plan, cluster, folder))
    except NoNamespaces as error:
        shutil.rmtree(folder, ignore_errors=True)
        print(f"live_chaos: {error}", file=sys.stderr)
        return 2
    if outcome.failures:
        say(f"logs are kept in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
