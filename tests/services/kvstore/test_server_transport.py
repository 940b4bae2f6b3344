"""Which of the two ways a region takes, and what happens when one-sided writes do not come."""

import asyncio
import socket
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import xxhash

from dunlin.effects import Address, Message
from dunlin.kv.region_identity import signed_digest
from dunlin.messages.exchange import TransferAgent
from dunlin.messages.types import HostRegion, Priority, Region
from dunlin.transport.one_sided.agent import AgentError
from dunlin.transport.one_sided.nixl_agent import has_fast_network
from dunlin.transport.one_sided.staging import StagingLayout
from dunlin.transport.payload import RegionHeader
from services.kvstore import server_transport
from services.kvstore.server_transport import RegionTransport, choose_agent
from services.kvstore.transfer.transport_commands import (
    CancelReceive,
    ExpectRegion,
    ForgetPeer,
    PushRegion,
    ReceiveReady,
    RegionPayload,
    RegionPushed,
    RegionReceived,
)
from tests.transport.fake_agent import FakeAgent, Hub

ROOM = 1 << 20
CUT = StagingLayout(lanes=2, depth=2, chunk_bytes=1 << 12)
LENGTH = 50_000


class Side:
    """A carrier with a tier, and what its core heard."""

    def __init__(self, hub: Hub, name: str, has_agent: bool = True, may_shun: bool = True) -> None:
        self.address = Address("kvstore", name, 1)
        self.room = bytearray(name.encode() * (ROOM // len(name)))
        self.agent = FakeAgent(hub, name, CUT) if has_agent else None
        self.about: TransferAgent | None = self.agent.descriptor if self.agent is not None else None
        self.heard: list[Message] = []
        host: Any = self
        view = memoryview(self.room)
        self.carrier = RegionTransport(
            host, view, "127.0.0.1", lambda port: f"127.0.0.1:{port}", None, self.agent, may_shun=may_shun
        )

    def deliver(self, sender: Address, message: Message) -> None:
        self.heard.append(message)

    def goods(self, handle: int, offset: int, checksum: int) -> RegionPayload:
        host = HostRegion(handle, 1, offset, LENGTH, checksum)
        return RegionPayload(host, Region(0, 2, 0, 9), "fp32", b"c")

    async def until(self, kind: type[Any]) -> Any:
        async with asyncio.timeout(300):
            while not (found := [message for message in self.heard if isinstance(message, kind)]):
                await asyncio.sleep(0.005)
        self.heard.remove(found[0])
        return found[0]


def expect(source: Side, target: Side, handle: int = 5) -> tuple[ReceiveReady, int]:
    plain = RegionHeader(b"", handle, 1, Region(0, 2, 0, 9), "fp32", b"c", LENGTH, 0)
    checksum = signed_digest(xxhash.xxh3_64_intdigest(plain.identity + bytes(source.room[:LENGTH])))
    target.carrier.send(ExpectRegion(target.goods(handle, 4096, checksum), source.address, source.about))
    ready = target.heard.pop()
    assert isinstance(ready, ReceiveReady)
    return ready, checksum


def push(source: Side, target: Side, ready: ReceiveReady, checksum: int) -> None:
    place = (ready.endpoint, ready.token, ready.handle, ready.generation)
    goods = source.goods(9, 0, checksum)
    source.carrier.send(PushRegion(7, target.address, *place, goods, Priority.KV, ready.agent))


async def between(source: Side, target: Side, do: Callable[[], Any]) -> None:
    try:
        await do()
    finally:
        for side in (source, target):
            await asyncio.to_thread(side.carrier.close, "the end")


@pytest.mark.parametrize("sender_has_one", [True, False])
@pytest.mark.parametrize("receiver_has_one", [True, False])
def test_writes_where_both_have_an_agent_and_sockets_otherwise(sender_has_one: bool, receiver_has_one: bool) -> None:
    async def run() -> None:
        hub = Hub()
        source, target = Side(hub, "a", sender_has_one), Side(hub, "b", receiver_has_one)

        async def do() -> None:
            ready, checksum = expect(source, target)
            assert (ready.agent is not None) == (sender_has_one and receiver_has_one)
            push(source, target, ready, checksum)
            assert await source.until(RegionPushed) == RegionPushed(7)
            assert await target.until(RegionReceived) == RegionReceived(5, 1)
            assert target.room[4096 : 4096 + LENGTH] == source.room[:LENGTH]
            assert bool(source.agent and source.agent.writes) == (sender_has_one and receiver_has_one)

        await between(source, target, do)

    asyncio.run(run())


def test_a_peer_that_takes_nothing_delays_none_of_what_goes_to_others() -> None:
    async def run() -> None:
        hub = Hub()
        source, target = Side(hub, "a", False), Side(hub, "b", False)
        dead = socket.create_server(("127.0.0.1", 0))

        async def do() -> None:
            ready, checksum = expect(source, target)
            goods, endpoint = source.goods(9, 0, checksum), f"127.0.0.1:{dead.getsockname()[1]}"
            gone = PushRegion(6, Address("kvstore", "c", 1), endpoint, bytes(16), 5, 1, goods, Priority.KV)
            source.carrier.send(gone)
            push(source, target, ready, checksum)
            assert await source.until(RegionPushed) == RegionPushed(7)
            dead.close()
            assert (await source.until(RegionPushed)).ticket == 6

        await between(source, target, do)

    asyncio.run(run())


@pytest.mark.parametrize("may_shun", [True, False])
def test_a_peer_whose_writes_do_not_come_is_asked_for_sockets_a_while(may_shun: bool) -> None:
    async def run() -> None:
        hub = Hub()
        source, target = Side(hub, "a"), Side(hub, "b", may_shun=may_shun)

        async def do() -> None:
            ready, _ = expect(source, target)
            assert ready.agent is not None
            target.carrier._received(5, 1, "nothing came")
            assert (await target.until(RegionReceived)).detail == "nothing came"
            assert (expect(source, target, 6)[0].agent is None) == may_shun
            target.carrier._banned = {
                name: until_s - server_transport.AGENT_BAN_S for name, until_s in target.carrier._banned.items()
            }
            assert expect(source, target, 7)[0].agent is not None

        await between(source, target, do)

    asyncio.run(run())


def test_damage_and_what_the_core_gave_up_shun_no_peer() -> None:
    async def run() -> None:
        hub = Hub()
        source, target = Side(hub, "a"), Side(hub, "b")

        async def do() -> None:
            for handle, detail in enumerate(("abandoned", "the bytes do not match their checksum", "a is gone")):
                expect(source, target, handle)
                target.carrier._received(handle, 1, detail)
                await target.until(RegionReceived)
            assert expect(source, target, 7)[0].agent is not None

        await between(source, target, do)

    asyncio.run(run())


@pytest.mark.parametrize("has_agent", [True, False])
def test_abandoned_is_told_whichever_way(has_agent: bool) -> None:
    async def run() -> None:
        hub = Hub()
        source, target = Side(hub, "a", has_agent), Side(hub, "b")

        async def do() -> None:
            expect(source, target)
            target.carrier.send(CancelReceive(5, 1))
            assert await target.until(RegionReceived) == RegionReceived(5, 1, "abandoned")

        await between(source, target, do)

    asyncio.run(run())


def test_a_peer_that_is_gone_is_left_and_what_it_was_to_send_is_told() -> None:
    async def run() -> None:
        hub = Hub()
        source, target = Side(hub, "a"), Side(hub, "b")

        async def do() -> None:
            ready, checksum = expect(source, target)
            push(source, target, ready, checksum)
            await target.until(RegionReceived)
            expect(source, target, 6)
            target.carrier.send(ForgetPeer(source.address))
            assert await target.until(RegionReceived) == RegionReceived(6, 1, "a is gone")
            assert target.agent is not None
            assert target.agent.left == ["a"]
            source.carrier.send(ForgetPeer(Address("kvstore", "unknown", 3)))

        await between(source, target, do)

    asyncio.run(run())


def test_a_fast_network_is_one_with_a_device(tmp_path: Path) -> None:
    assert not has_fast_network(tmp_path / "none")
    assert not has_fast_network(tmp_path)
    (tmp_path / "mlx5_0").mkdir()
    assert has_fast_network(tmp_path)


def test_auto_takes_what_pays_and_sockets_where_there_are_certificates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[str] = []

    def open_agent(name: str) -> Any:
        opened.append(name)
        if name == "broken":
            raise AgentError("no UCX")
        return name

    monkeypatch.setattr(server_transport, "open_nixl_agent", open_agent)
    for is_installed, is_fast in product((True, False), repeat=2):
        is_there = is_installed and is_fast
        monkeypatch.setattr(server_transport, "is_installed", lambda found=is_installed: found)
        monkeypatch.setattr(server_transport, "has_fast_network", lambda found=is_fast: found)
        assert choose_agent("sockets", "k", is_secured=False) is None
        assert choose_agent("auto", "k", is_secured=True) is None
        assert (choose_agent("auto", "k", is_secured=False) is not None) == is_there
        assert choose_agent("auto", "broken", is_secured=False) is None
        assert choose_agent("nixl", "k", is_secured=True) is not None
        with pytest.raises(AgentError, match="no UCX"):
            choose_agent("nixl", "broken", is_secured=False)
