"""What befalls an etcd of three while a counter is written and watched: members die or hang, history is compacted."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

from benchmarks.faults.etcd_history import COUNTER, EtcdChaosPlan, WatchHistory, revision_of
from benchmarks.harness.etcd_cluster import EtcdCluster
from benchmarks.harness.processes import stopped
from benchmarks.harness.report import say
from dunlin.membership.client import EtcdClient
from dunlin.membership.errors import Compacted, EtcdUnavailable
from dunlin.membership.watch import PrefixWatch

_TRIES = 12
"""Of a compaction behind the watcher: a try fails where the watcher leaves the hung member before the compaction. On a
busy machine some in a row do: if that member led, nothing is compacted until it has a successor."""


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
        await until(lambda: tale.newest >= goal or tale.done)
        revision = await forget(scene.admin)
        await until(lambda: revision_of(tale.seen[-1][1]) >= revision)


async def _watched(scene: ChaosContext) -> str:
    """The member that the watcher listens to, once it listens to one; its client's next call may go to another."""
    await until(lambda: scene.watch.connected)
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


async def until(holds: Callable[[], bool], within_s: float = 20.0) -> None:
    """Wait until it holds. :raises TimeoutError: it did not within that time."""
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
