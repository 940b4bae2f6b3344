"""What tools ask with both clients: the model, the fleet, the story of a request, a drain."""

import asyncio
from typing import Any

import pytest

import dunlin
from dunlin.client import (
    AsyncClient,
    Cancelled,
    Client,
    DeadlineExceeded,
    Unavailable,
)
from dunlin.effects import Address
from dunlin.messages.fleet import (
    EXPLAIN,
    STATUS,
    ExplainQuery,
    Explanation,
    FleetStatus,
    ManagerReport,
    MemberStatus,
    Reason,
    StatusQuery,
)
from dunlin.messages.plan import DRAIN, DrainOutcome, DrainReply, DrainRequest
from dunlin.messages.public import InfoReply
from dunlin.wire.rpc.methods import INFO, Methods
from dunlin.wire.rpc.server import GrpcServer
from tests.client.hung_dispatcher import hung_dispatcher
from tests.services.dispatcher.factories import A
from tests.services.dispatcher.running_doors import doors


async def monitor() -> tuple[GrpcServer, str]:
    status = FleetStatus(3, (MemberStatus(Address("instance", "a", 7), pid=12),))

    async def tell(query: StatusQuery, context: Any) -> FleetStatus:
        return status

    async def explain(query: ExplainQuery, context: Any) -> Explanation:
        return Explanation((Reason(1.5, A, A, query.request, b"x"),))

    server = GrpcServer("127.0.0.1:0")
    await server.start([Methods({STATUS: tell, EXPLAIN: explain})], [])
    return server, f"127.0.0.1:{server.port}"


def test_info_status_and_explain() -> None:
    async def run() -> None:
        server, endpoint = await monitor()
        async with doors(monitor=endpoint) as cluster, AsyncClient(cluster.endpoint) as client:
            info = await client.info()
            model = cluster.gateway.model
            assert info == InfoReply(model.name, 1000, model.vocabulary, dunlin.__version__, endpoint)
            assert (await client.status()).members[0].pid == 12
            assert (await client.explain("req-2a-1")).reasons[0].kind == "req-2a-1"

            def use() -> tuple[int, str]:
                with Client(cluster.endpoint) as blocking:
                    return blocking.status().version, blocking.explain("req-7").reasons[0].kind

            assert await asyncio.to_thread(use) == (3, "req-7")
        await server.stop(0)

    asyncio.run(run())


def test_a_dispatcher_that_knows_no_monitor_yet_is_passed_over() -> None:
    async def run() -> None:
        server, endpoint = await monitor()
        async with doors() as fresh, doors(monitor=endpoint) as known:
            both = f"{fresh.endpoint},{known.endpoint}"
            async with AsyncClient(both) as client:
                assert (await client.status()).version == 3

            def use() -> int:
                with Client(both) as blocking:
                    return blocking.status().version

            assert await asyncio.to_thread(use) == 3
        await server.stop(0)

    asyncio.run(run())


def test_a_dispatcher_that_hangs_is_passed_over() -> None:
    async def run() -> None:
        async with hung_dispatcher(INFO) as at, doors() as cluster:
            both = f"{at},{cluster.endpoint}"
            async with AsyncClient(both) as client:
                assert (await client.info()).model == cluster.gateway.model.name
                assert client.endpoint == cluster.endpoint

            def use() -> tuple[str, str]:
                with Client(both) as blocking:
                    return blocking.info().model, blocking.endpoint

            assert await asyncio.to_thread(use) == (cluster.gateway.model.name, cluster.endpoint)
            async with AsyncClient(at) as client:
                with pytest.raises(DeadlineExceeded, match=at):
                    await client.info()

    asyncio.run(run())


class Manager:
    """A leading manager that answers an order to drain when it is told to, and a monitor that knows it."""

    def __init__(self) -> None:
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()
        self.servers = GrpcServer("127.0.0.1:0"), GrpcServer("127.0.0.1:0")

    async def start(self) -> str:
        manager, watching = self.servers
        await manager.start([Methods({DRAIN: self.drain})], [])
        await watching.start([Methods({STATUS: self.status})], [])
        return f"127.0.0.1:{watching.port}"

    async def stop(self) -> None:
        for server in self.servers:
            await server.stop(0)

    async def drain(self, request: DrainRequest, context: Any) -> DrainReply:
        self.asked.set()
        await self.may_answer.wait()
        return DrainReply(DrainOutcome.ORDERED)

    async def status(self, query: StatusQuery, context: Any) -> FleetStatus:
        where = f"127.0.0.1:{self.servers[0].port}"
        leads = MemberStatus(Address("global_manager", "m", 7), endpoint=where, manager=ManagerReport(epoch=1))
        return FleetStatus(3, (leads,))


def test_a_look_at_the_status_does_not_end_a_drain_that_waits_for_its_answer() -> None:
    async def run() -> None:
        manager = Manager()
        try:
            async with AsyncClient("127.0.0.1:1", monitor=await manager.start()) as client:
                drain = asyncio.create_task(client.drain("a"))
                await manager.asked.wait()
                assert (await client.status()).version == 3
                manager.may_answer.set()
                assert (await drain).outcome is DrainOutcome.ORDERED
        finally:
            await manager.stop()

    asyncio.run(run())


def test_closing_the_client_ends_what_is_open_with_an_error_of_ours() -> None:
    async def call() -> None:
        asked = asyncio.Event()

        async def never(query: StatusQuery, context: Any) -> FleetStatus:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

        server = GrpcServer("127.0.0.1:0")
        await server.start([Methods({STATUS: never})], [])
        client = AsyncClient("127.0.0.1:1", monitor=f"127.0.0.1:{server.port}")
        status = asyncio.create_task(client.status())
        await asked.wait()
        await client.close()
        try:
            with pytest.raises(Cancelled, match="its channel closed"):
                await status
        finally:
            await server.stop(0)

    async def stream() -> None:
        async with doors() as cluster, AsyncClient(cluster.endpoint) as client:
            cluster.instance.held = True
            task = asyncio.create_task(client.generate("x"))
            await cluster.instance.until(lambda: cluster.instance.placed)
            await client.close()
            with pytest.raises(Cancelled, match="its channel closed"):
                await task

    asyncio.run(call())
    asyncio.run(stream())


def test_without_a_monitor_status_says_so() -> None:
    async def run() -> None:
        async with doors() as cluster, AsyncClient(cluster.endpoint) as client:
            with pytest.raises(Unavailable, match="no monitor is registered"):
                await client.status()

    asyncio.run(run())
