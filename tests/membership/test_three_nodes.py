"""An etcd of three that loses its leader, members and history; `benchmarks/faults/etcd_chaos.py` is the longer one."""

import asyncio
from pathlib import Path

import pytest

from benchmarks.faults.etcd_chaos import run
from benchmarks.faults.etcd_disruptions import forget
from benchmarks.faults.etcd_history import COUNTER, EtcdChaosPlan
from benchmarks.harness.etcd_cluster import EtcdCluster, etcd_cluster
from benchmarks.harness.processes import stopped
from dunlin.membership.client import EtcdClient
from dunlin.membership.connection import EtcdConnection, Timeouts
from dunlin.membership.errors import EtcdUnavailable
from dunlin.membership.watch import PrefixWatch, PutEvent, WatchEvent
from tests.membership.helpers import client_of, until

SHORT = Timeouts(connect_s=1.0, call_s=2.5)
"""An etcd of three that is busy answers within that."""


def test_history_that_was_forgotten_already_is_no_trouble(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(etcd_endpoint) as admin:
            written = await admin.put(COUNTER, b"1")
            assert await forget(admin) == await forget(admin) == written

    asyncio.run(scenario())


@pytest.mark.processes
def test_a_counter_is_seen_once_and_in_order_through_all_troubles(tmp_path: Path) -> None:
    """Each trouble once, however long it takes; numbers are written all the time."""
    plan = EtcdChaosPlan(
        values=1, pace_s=0.1, away_s=3.5, kinds=("kill leader", "compact behind", "stop leader", "compact")
    )
    outcome = asyncio.run(run(plan, tmp_path))
    assert outcome.failures == []
    assert outcome.figures["resets"] >= 1
    assert outcome.figures["covered by a snapshot"] >= 1


async def connect(client: EtcdClient, endpoint: str) -> None:
    """Until a call was answered there."""
    connection = client.connection
    async with asyncio.timeout(300.0):
        while await client.get("/a") is not None or connection.current != endpoint:
            while connection.current != endpoint:
                connection.rotate(connection.current)


@pytest.mark.processes
def test_a_member_that_hangs_is_left_after_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[tuple[EtcdConnection, str]] = []
    rotate = EtcdConnection.rotate

    def noted(connection: EtcdConnection, failed: str) -> None:
        left.append((connection, failed))
        rotate(connection, failed)

    monkeypatch.setattr(EtcdConnection, "rotate", noted)

    async def scenario(cluster: EtcdCluster) -> None:
        leader = await cluster.leader()  # which the others would have to replace first, so another one hangs
        hanging, *others = sorted(cluster.nodes, key=lambda node: node is leader)
        endpoints = [hanging.endpoint, *(node.endpoint for node in others)]
        async with (
            client_of(*endpoints, timeouts=SHORT) as watcher,
            client_of(*endpoints, timeouts=SHORT) as reader,
            client_of(*endpoints, timeouts=SHORT) as keeper,
            client_of(*endpoints, timeouts=SHORT) as writer,
        ):
            seen: list[WatchEvent] = []

            async def collect() -> None:
                async for event in PrefixWatch(watcher, "/hang/"):
                    seen.append(event)

            watching = asyncio.create_task(collect())
            await until(lambda: bool(seen))
            lease = await keeper.grant(30)
            for client in (reader, keeper, writer):  # on a busy machine one may have left already
                await connect(client, hanging.endpoint)
            left.clear()
            with stopped(hanging.pid):
                # First of all: once the connection is known to be dead, a write surely did not happen there.
                with pytest.raises(EtcdUnavailable):  # a write may have happened: that is for the caller to find out
                    await writer.put("/hang/a", b"1")
                assert await reader.get("/a") is None  # a read goes on to the next member by itself
                assert await keeper.keep_alive(lease.lease_id, 1.0) == 30
                await writer.put("/hang/a", b"2")
                await until(lambda: isinstance(seen[-1], PutEvent) and seen[-1].item.value == b"2")
                for client in (reader, keeper, writer):
                    assert left.count((client.connection, hanging.endpoint)) == 1
            watching.cancel()

    async def on_a_cluster() -> None:
        async with etcd_cluster(tmp_path) as cluster:
            await scenario(cluster)

    asyncio.run(on_a_cluster())
