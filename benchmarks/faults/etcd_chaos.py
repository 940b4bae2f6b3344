"""A three-node etcd loses its leader, members and history, again and again, while one counter is written and watched.

python -m benchmarks.faults.etcd_chaos --values 1000

Each number is written once, by a transaction that demands the one before it, so that a write whose answer was lost can
be tried again. The watcher must see each number once and in order; those it never saw must lie under a snapshot that it
was given because their history had been compacted. Two candidates stand for election all the while, and a registration
lives through it.
"""

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from benchmarks.faults.etcd_disruptions import ChaosContext, run_disruptions, until
from benchmarks.faults.etcd_history import (
    COUNTER,
    EtcdChaosPlan,
    WatchHistory,
    check_history,
    revision_of,
    watch_all,
    write_all,
)
from benchmarks.harness import report
from benchmarks.harness.etcd_cluster import etcd_cluster
from benchmarks.harness.report import BenchmarkResult, say
from dunlin.membership.client import EtcdClient
from dunlin.membership.connection import Timeouts
from dunlin.membership.election import Election
from dunlin.membership.registration import Registration
from dunlin.membership.watch import PrefixWatch, PutEvent
from dunlin.messages.membership import Deposed, Elected

_QUICK = Timeouts(connect_s=0.5, call_s=1.0)
TTL_S = 3


class CandidatePair:
    """Two candidates, and when each led.

    An etcd leader that wakes from a pause may end leases that were kept alive elsewhere (etcd issue 15247, mended
    after 3.5.1). Then the next candidate leads before the last one has heard of its end. Its followers tell them
    apart by the epoch; `overlaps_s` says for how long both led.
    """

    def __init__(self, clients: tuple[EtcdClient, EtcdClient]) -> None:
        self.epochs: list[int] = []
        self.overlaps_s: list[float] = []
        self._leads: list[float | None] = [None, None]
        self._elections = [
            Election(client, "/chaos-election", f"candidate-{number}", partial(self._changed, number), ttl_s=TTL_S)
            for number, client in enumerate(clients)
        ]

    async def __aenter__(self) -> "CandidatePair":
        for election in self._elections:
            election.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for election in self._elections:
            await election.stop()

    def _changed(self, number: int, change: Elected | Deposed) -> None:
        now_s, other_s = time.monotonic(), self._leads[1 - number]
        if isinstance(change, Elected):
            self.epochs.append(change.epoch)
            self._leads[number] = now_s
            return
        if other_s is not None:
            self.overlaps_s.append(now_s - other_s)
        self._leads[number] = None


@asynccontextmanager
async def client_of(endpoints: list[str], timeouts: Timeouts = _QUICK) -> AsyncIterator[EtcdClient]:
    """A client that is closed at the end."""
    client = EtcdClient(endpoints, timeouts=timeouts)
    try:
        yield client
    finally:
        await client.close()


async def run(plan: EtcdChaosPlan, folder: Path) -> BenchmarkResult:
    """The campaign."""
    outcome = BenchmarkResult(
        f"etcd of three: {plan.values} numbers written and watched through {', '.join(plan.kinds)}"
    )
    tale = WatchHistory()
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(etcd_cluster(folder))
        writer, admin, one, two = [await stack.enter_async_context(client_of(cluster.endpoints)) for _ in range(4)]
        reader = await stack.enter_async_context(client_of(cluster.endpoints, Timeouts()))  # as services have it
        await writer.put(COUNTER, b"0")
        rivals = await stack.enter_async_context(CandidatePair((one, two)))
        registration = Registration(admin, "/chaos-member", lambda incarnation: b"%d" % incarnation, int, ttl_s=TTL_S)
        await registration.start()
        stack.push_async_callback(registration.stop)
        incarnation = registration.incarnation
        began_s = time.monotonic()
        await _play(ChaosContext(cluster, admin, writer, PrefixWatch(reader, COUNTER), tale, plan))
        await cluster.ready()
        stored = await admin.get("/chaos-member")
        outcome.expect(stored is not None and stored.value == b"%d" % incarnation, "the registration did not come back")
        _judge(outcome, plan, tale, rivals, time.monotonic() - began_s)
        revisions = await cluster.revisions()
        outcome.figures["revisions of the members at the end"] = revisions
    return outcome


async def _play(scene: ChaosContext) -> None:
    """Everything at once, until the watcher has what was written last, or is late by half a minute."""
    watching = asyncio.create_task(watch_all(scene.watch, scene.tale))
    try:
        await until(lambda: bool(scene.tale.seen))
        async with asyncio.TaskGroup() as group:
            group.create_task(write_all(scene.writer, scene.plan, scene.tale))
            group.create_task(run_disruptions(scene))
        last, _ = scene.tale.written[scene.tale.newest]
        try:
            await until(lambda: revision_of(scene.tale.seen[-1][1]) >= last, 30.0)
        except TimeoutError:
            say("the watcher never saw the last number")
    finally:
        watching.cancel()
        await asyncio.wait([watching])


def _judge(
    outcome: BenchmarkResult, plan: EtcdChaosPlan, tale: WatchHistory, rivals: CandidatePair, took_s: float
) -> None:
    reading = check_history(tale)
    outcome.failures += reading.wrong
    outcome.expect(rivals.epochs == sorted(set(rivals.epochs)), f"epochs do not rise: {rivals.epochs}")
    outcome.expect(max(rivals.overlaps_s, default=0.0) < TTL_S, "two led for longer than a lease")
    missing = [kind for kind in plan.kinds if kind not in tale.troubles]
    outcome.expect(not missing, f"everything was written before these came: {', '.join(missing)}")
    outcome.expect(tale.resets > 0 or "compact behind" not in plan.kinds, "the watcher was never made to start over")
    outcome.expect(reading.as_changes + reading.under_snapshots == tale.newest, "numbers are missing or doubled")
    lags = sorted(
        at_s - tale.written[int(event.item.value)][1] for at_s, event in tale.seen if isinstance(event, PutEvent)
    )
    times = [at_s for _, at_s in tale.written.values()]
    outcome.figures |= {
        "numbers written": tale.newest,
        "writes without answer": tale.unknown,
        "seen as changes": reading.as_changes,
        "covered by a snapshot": reading.under_snapshots,
        "resets": tale.resets,
        "missed, doubled or out of order": len(reading.wrong),
        **{f"trouble: {kind}": tale.troubles.count(kind) for kind in dict.fromkeys(tale.troubles)},
        "longest time without a write (s)": max(later - earlier for earlier, later in itertools.pairwise(times)),
        "from write to watcher, median (ms)": 1e3 * max(0.0, lags[len(lags) // 2]),
        "from write to watcher, longest (s)": lags[-1],
        "terms of leaders": len(rivals.epochs),
        "terms that began before the last one knew of its end": len(rivals.overlaps_s),
        "longest of these overlaps (s)": max(rivals.overlaps_s, default=0.0),
        "seconds": took_s,
    }


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument(
        "--values", type=int, default=EtcdChaosPlan().values, metavar="N", help="how many numbers to write"
    )
    given = arguments.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="dunlin-etcd-") as folder:
        outcome = asyncio.run(run(EtcdChaosPlan(values=given.values), Path(folder)))
    return report.finish(outcome, given.json)


if __name__ == "__main__":
    sys.exit(main())
