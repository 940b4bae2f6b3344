"""What the core orders from its engine and the helper does: real helpers, and a core that only listens."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dunlin.effects import Address, Message
from dunlin.engine.remote.options import HelperOptions
from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.peer_page import PeerPageView
from dunlin.messages.agent import EngineAgent
from dunlin.messages.engine import (
    CancelTransfer,
    ClosePeerRoom,
    Forget,
    Meet,
    Met,
    OpenPeerRoom,
    Resume,
    StepDone,
    TransferDone,
)
from dunlin.messages.types import Header, TransferStatus, f32, i8, i32, i64
from dunlin.wire.codec import decode, encode
from services.instance.server_engine_peers import NO_HELPER, EnginePeers
from services.instance.server_transfer_helper import HelperStarter
from tests.engine.remote.nodes import SLOTS, Node, kv_transfer
from tests.fakes.forks import shared_forks

LIMIT_S = 120.0


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Node, Node]]:
    """The own engine's memory, whose helper is not used, and a node to send to, with the room 1 open."""
    with Node("a", 1) as own, Node("b", 2) as other:
        other.rooms.open(1, [0], [SLOTS])
        yield own, other


class Seat:
    """An engine's peers, and what the core heard."""

    def __init__(self, own: Node, has_helper: bool = True) -> None:
        self.heard: list[Any] = []
        options = HelperOptions(own.name, os.getpid(), -1)
        helpers = HelperStarter(options, shared_forks()) if has_helper else None
        self.own = own
        self.peers = EnginePeers(own.address, Header(Address("instance", "a")), own.rooms, helpers, self.heard.append)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Seat"]:
        """With a helper, which serves the engine."""
        task = asyncio.create_task(self.peers.run())
        try:
            self.peers.on_engine_event(Met(Address("engine", "x"), agent=self.own.access.agent))
            await self.until(lambda: any(isinstance(each, Met) and each.agent for each in self.heard))
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not holds():
                await asyncio.sleep(0.01)

    async def ordered(self, message: Message, kind: type[Any]) -> Any:
        """The next event of a kind, after this command."""
        before = len(self.of(kind))
        assert self.peers.takes(message)
        await self.until(lambda: len(self.of(kind)) > before)
        return self.of(kind)[-1]

    def of(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.heard if isinstance(each, kind)]


def in_loop(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


def test_an_engine_of_another_node_is_met_and_written_by_the_helper(nodes: tuple[Node, Node]) -> None:
    own, other = nodes

    async def story() -> None:
        async with Seat(own).running() as seat:
            agent = decode("EngineAgent", seat.of(Met)[-1].agent)
            assert isinstance(agent, EngineAgent)
            assert (bool(agent.endpoint), len(agent.token), agent.life) == (True, 32, own.access._page.life)
            assert await seat.ordered(Meet(other.address, other.agent), Met) == Met(other.address)
            done = await seat.ordered(kv_transfer(1, other), TransferDone)
            assert (done.ticket, done.status, other.memory.tobytes()) == (1, TransferStatus.OK, own.memory.tobytes())
            assert not seat.peers.takes(Forget(other.address)), "the own engine begins another life"
            assert not seat.peers.takes(kv_transfer(2, other)), "the engine refuses it"

    in_loop(story)


def test_what_is_for_the_engine_goes_to_the_engine(nodes: tuple[Node, Node]) -> None:
    own, other = nodes
    seat = Seat(own)
    seat.peers.on_engine_event(Met(Address("engine", "x"), agent=own.access.agent))
    same = decode("EngineAgent", own.agent)
    nowhere = decode("EngineAgent", other.access.agent)
    for agent in (encode(same), encode(nowhere), b"\xff\xff"):
        assert not seat.peers.takes(Meet(other.address, agent))
    assert not seat.peers.takes(kv_transfer(1, other))
    assert not seat.peers.takes(CancelTransfer(1))
    assert not Seat(own, has_helper=False).peers.takes(Meet(other.address, other.agent))
    assert seat.heard == []


def test_without_a_helper_every_order_is_answered_at_once(nodes: tuple[Node, Node]) -> None:
    own, other = nodes
    seat = Seat(own)
    seat.peers.on_engine_event(Met(Address("engine", "x"), agent=own.access.agent))
    assert seat.peers.takes(Meet(other.address, other.agent))
    assert seat.peers.takes(kv_transfer(1, other))
    met, done = seat.heard
    assert (met.detail, done.ticket, done.status, done.detail) == (NO_HELPER, 1, TransferStatus.FAILED, NO_HELPER)


def test_a_helper_that_is_killed_fails_its_transfers_once_and_the_next_one_meets_the_same_peers(
    nodes: tuple[Node, Node],
) -> None:
    own, other = nodes

    async def story() -> None:
        async with Seat(own).running() as seat:
            await seat.ordered(Meet(other.address, other.agent), Met)
            other.pause()
            helper = seat.peers._helper
            assert helper is not None
            for ticket in (1, 2):
                assert seat.peers.takes(kv_transfer(ticket, other))
            helper.end("killed by the test")
            await seat.until(lambda: len(seat.of(TransferDone)) == 2)
            other.go_on()
            void = seat.of(Met)[-1].agent
            assert void == own.access.agent, "peers are not told of the helper that is gone"
            await seat.until(lambda: seat.of(Met)[-1] == Met(other.address))
            assert [(done.ticket, done.status) for done in seat.of(TransferDone)] == [
                (1, TransferStatus.FAILED), (2, TransferStatus.FAILED),
            ]  # fmt: skip
            done = await seat.ordered(kv_transfer(3, other), TransferDone)
            assert done.status is TransferStatus.OK

    in_loop(story)


def test_a_transfer_behind_a_step_goes_when_the_step_has_answered(nodes: tuple[Node, Node]) -> None:
    own, other = nodes

    async def story() -> None:
        async with Seat(own).running() as seat:
            await seat.ordered(Meet(other.address, other.agent), Met)
            assert not seat.peers.takes(Resume(7))
            for ticket in (1, 2, 3):
                assert seat.peers.takes(kv_transfer(ticket, other, step=7))
            assert seat.peers.takes(CancelTransfer(2))
            assert seat.of(TransferDone)[0].status is TransferStatus.CANCELLED
            seat.peers.on_engine_event(StepDone(7, i64(), i32(), f32(), i8()))
            await seat.until(lambda: len(seat.of(TransferDone)) == 3)
            assert [done.status for done in seat.of(TransferDone)[1:]] == [TransferStatus.OK] * 2

    in_loop(story)


def test_rooms_are_opened_by_the_host_and_closed_before_the_engine_hears_of_it(nodes: tuple[Node, Node]) -> None:
    own, _ = nodes
    seat = Seat(own)
    view = PeerPageView(f"/proc/self/fd/{own.page_fd}", own.access._page.life)
    assert seat.peers.takes(OpenPeerRoom(9, i64([4]), i64([2])))
    assert view.room_extents(9) == ([4], [2])
    assert not seat.peers.takes(ClosePeerRoom(9)), "the engine waits for the last chunk"
    with pytest.raises(TransferError, match="the room 9 is closed"):
        view.room_extents(9)
    seat.peers.takes(OpenPeerRoom(10, i64([4]), i64([2])))
    seat.peers.close()
    with pytest.raises(TransferError, match="the room 10 is closed"):
        view.room_extents(10)
