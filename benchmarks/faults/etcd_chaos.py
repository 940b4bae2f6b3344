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
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.harness import report
from benchmarks.harness.etcd_cluster import EtcdCluster, etcd_cluster
from benchmarks.harness.processes import stopped
from benchmarks.harness.report import BenchmarkResult, say
from dunlin.membership.client import EtcdClient
from dunlin.membership.connection import Timeouts
from dunlin.membership.election import Election
from dunlin.membership.errors import Compacted, EtcdError, EtcdUnavailable
from dunlin.membership.registration import Registration
from dunlin.membership.txn import PutOp as Write
from dunlin.membership.txn import ValueIs
from dunlin.membership.watch import PrefixWatch, PutEvent, ResetEvent, WatchEvent
from dunlin.messages.membership import Deposed, Elected

COUNTER = "/chaos/counter"
_QUICK = Timeouts(connect_s=0.5, call_s=1.0)
_TRIES = 12
"""Of a compaction behind the watcher: a try fails where the watcher leaves the hung member before the compaction. On a
busy machine some in a row do: if that member led, nothing is compacted until it has a successor."""
TTL_S = 3


@dataclass(frozen=True, slots=True)
class EtcdChaosPlan:
    """`values` numbers, one per `pace_s` at most, and more until each trouble has come; troubles come one after the
    other with `calm_s` between them.

    `kinds` are names of TROUBLES, again and again in this order.
    """

    values: int = 1_000
    pace_s: float = 0.1
    calm_s: float = 1.0
    away_s: float = 4.5
    kinds: tuple[str, ...] = ("kill leader", "stop leader", "compact", "compact behind", "kill watched", "stop watched")


@dataclass(slots=True)
class WatchHistory:
    """What was written (revision and time by number), what the watcher was told (with times), and the troubles."""

    written: dict[int, tuple[int, float]] = field(default_factory=dict)
    seen: list[tuple[float, WatchEvent]] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    unknown: int = 0
    done: bool = False

    @property
    def newest(self) -> int:
        """The highest number that is surely written."""
        return max(self.written, default=0)

    @property
    def resets(self) -> int:
        """How often the watcher was told to start over, the first time not counted."""
        return sum(isinstance(event, ResetEvent) for _, event in self.seen) - 1


@dataclass(slots=True)
class HistoryVerdict:
    """A tale judged: how many numbers came as changes, how many only a snapshot tells of, and what is wrong."""

    as_changes: int = 0
    under_snapshots: int = 0
    wrong: list[str] = field(default_factory=list)


def check_history(tale: WatchHistory) -> HistoryVerdict:
    """Every number once and in order, with the revision that its writer knows."""
    reading = HistoryVerdict()
    last = 0
    for _, event in tale.seen:
        if isinstance(event, ResetEvent):
            last = _read_snapshot(reading, last, event)
        elif isinstance(event, PutEvent):
            number = int(event.item.value)
            if number != last + 1:
                reading.wrong.append(f"{number} came after {last}")
            if event.item.mod_revision != tale.written.get(number, (0, 0.0))[0]:
                reading.wrong.append(f"{number} came with revision {event.item.mod_revision}, not its own")
            reading.as_changes += 1
            last = number
        else:
            reading.wrong.append(f"the counter was deleted after {last}")
    if last != tale.newest:
        reading.wrong.append(f"the last one seen is {last}, the last one written {tale.newest}")
    return reading


def _read_snapshot(reading: HistoryVerdict, last: int, reset: ResetEvent) -> int:
    """A snapshot may repeat the last number, or skip some whose history is gone; it never goes back."""
    number = int(reset.items[0].value) if reset.items else 0
    if number < last:
        reading.wrong.append(f"a snapshot with {number} came after {last}")
    reading.under_snapshots += max(0, number - last)
    return max(number, last)


async def write_all(client: EtcdClient, plan: EtcdChaosPlan, tale: WatchHistory) -> None:
    """Write 1, 2, 3 …, each exactly once whatever becomes of the answers. The key must hold 0."""
    for number in itertools.count(1):
        if number > plan.values and len(tale.troubles) >= len(plan.kinds):
            break
        began_s = time.monotonic()
        while number not in tale.written:
            try:
                await _write(client, number, tale)
            except EtcdUnavailable:
                tale.unknown += 1
                await asyncio.sleep(0.05)
        await asyncio.sleep(max(0.0, plan.pace_s - (time.monotonic() - began_s)))
    tale.done = True


async def _write(client: EtcdClient, number: int, tale: WatchHistory) -> None:
    before, after = b"%d" % (number - 1), b"%d" % number
    result = await client.txn([ValueIs(COUNTER, before)], [Write(COUNTER, after)])
    if result.succeeded:
        tale.written[number] = (result.revision, time.monotonic())
        return
    item = await client.get(COUNTER)  # an earlier try, whose answer was lost
    if item is None or item.value != after:
        raise EtcdError(f"the counter is {item and item.value!r} where {after!r} was written")
    tale.written[number] = (item.mod_revision, time.monotonic())


async def watch_all(watch: PrefixWatch, tale: WatchHistory) -> None:
    """Write down what the watcher is told, for ever."""
    async for event in watch:
        tale.seen.append((time.monotonic(), event))


@dataclass(frozen=True, slots=True)
class ChaosContext:
    """What a trouble may touch."""

    cluster: EtcdCluster
    admin: EtcdClient
    writer: EtcdClient
    watch: PrefixWatch
    tale: WatchHistory
    plan: EtcdChaosPlan


async def kill_leader(scene: ChaosContext) -> None:
    """The leader dies, and comes back with its data."""
    await _kill(scene, (await scene.cluster.leader()).endpoint)


async def kill_watched(scene: ChaosContext) -> None:
    """The member that the watcher listens to dies, and comes back."""
    await _kill(scene, await _watched(scene))


async def stop_leader(scene: ChaosContext) -> None:
    """The leader hangs: its connections stay open and nothing comes."""
    with stopped((await scene.cluster.leader()).pid):
        await asyncio.sleep(scene.plan.away_s)


async def stop_watched(scene: ChaosContext) -> None:
    """The member that the watcher listens to hangs."""
    with stopped(scene.cluster.at(await _watched(scene)).pid):
        await asyncio.sleep(scene.plan.away_s)


async def compact(scene: ChaosContext) -> None:
    """History is forgotten while the watcher is up to date: it must not notice."""
    await forget(scene.admin)


async def compact_behind(scene: ChaosContext) -> None:
    """History is forgotten that the watcher has not seen yet: it must be told to start over."""
    for _ in range(_TRIES):
        resets = scene.tale.resets
        await _compact_unseen(scene)
        if scene.tale.resets > resets:
            return


async def _compact_unseen(scene: ChaosContext) -> None:
    """Hang the watcher's member and compact beyond what it has told; the watcher may leave it before that is done."""
    endpoint, tale = await _watched(scene), scene.tale
    for busy in (scene.writer, scene.admin):
        busy.connection.rotate(endpoint)
    with stopped(scene.cluster.at(endpoint).pid):
        goal = tale.newest + 3
        await _until(lambda: tale.newest >= goal or tale.done)
        revision = await forget(scene.admin)
        await _until(lambda: _revision(tale.seen[-1][1]) >= revision)


async def _watched(scene: ChaosContext) -> str:
    """The member that the watcher listens to, once it listens to one; its client's next call may go to another."""
    await _until(lambda: scene.watch.connected)
    assert scene.watch.endpoint is not None
    return scene.watch.endpoint


async def _kill(scene: ChaosContext, endpoint: str) -> None:
    node = scene.cluster.at(endpoint)
    node.kill()
    await asyncio.sleep(scene.plan.away_s / 2)
    node.start()


async def forget(admin: EtcdClient) -> int:
    """Compact everything up to the newest number; returns its revision."""
    while True:
        try:
            counter = await admin.get(COUNTER)
            assert counter is not None
            with suppress(Compacted):  # an earlier try did it whose answer was lost, or nothing is new
                await admin.compact(counter.mod_revision)
            return counter.mod_revision
        except EtcdUnavailable:
            await asyncio.sleep(0.1)


async def _until(holds: Callable[[], bool], within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0.02)


DISRUPTIONS: dict[str, Callable[[ChaosContext], Awaitable[None]]] = {
    "kill leader": kill_leader,
    "stop leader": stop_leader,
    "compact": compact,
    "compact behind": compact_behind,
    "kill watched": kill_watched,
    "stop watched": stop_watched,
}


async def run_disruptions(scene: ChaosContext) -> None:
    """One trouble after the other until everything is written."""
    for kind in itertools.cycle(scene.plan.kinds):
        await asyncio.sleep(scene.plan.calm_s)
        if scene.tale.done:
            return
        say(f"{scene.tale.newest:5} written: {kind}")
        await DISRUPTIONS[kind](scene)
        scene.tale.troubles.append(kind)
        await scene.cluster.ready()


class CandidatePair:
    """Two candidates, and who led when.

    An etcd leader that wakes from a pause may end leases that were kept alive elsewhere (etcd issue 15247, mended
    after 3.5.1). Then the next candidate leads before the last one has heard of its end. Whoever is led tells them
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
        registration = Registration(admin, "/chaos-member", lambda incarnation: b"%d" % incarnation, ttl_s=TTL_S)
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
        await _until(lambda: bool(scene.tale.seen))
        async with asyncio.TaskGroup() as group:
            group.create_task(write_all(scene.writer, scene.plan, scene.tale))
            group.create_task(run_disruptions(scene))
        last, _ = scene.tale.written[scene.tale.newest]
        try:
            await _until(lambda: _revision(scene.tale.seen[-1][1]) >= last, 30.0)
        except TimeoutError:
            say("the watcher never saw the last number")
    finally:
        watching.cancel()
        await asyncio.wait([watching])


def _revision(event: WatchEvent) -> int:
    match event:
        case PutEvent():
            return event.item.mod_revision
        case ResetEvent():
            return event.revision
        case _:
            return event.mod_revision


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
