"""Two processes that dial each other at once: one of the two streams is refused, so that the other one holds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from dunlin.effects import Address, Joined
from dunlin.messages.group import DialPeer
from dunlin.messages.membership import Member, MemberUp
from dunlin.wire.channels import SERVER_OPTIONS, open_channel
from dunlin.wire.envelopes import GROUP
from dunlin.wire.streams.acceptor import StreamAcceptor
from dunlin.wire.streams.dialer import DialBackoff
from dunlin.wire.streams.peer_dialer import PeerDialer
from dunlin.wire.streams.stream import BROKEN, identity_metadata
from tests.wire.ends import PATIENCE_S, End, eventually, run

A = Address("instance", "a", 9)
B = Address("instance", "b", 3)


@asynccontextmanager
async def serving(handler: grpc.GenericRpcHandler) -> AsyncIterator[str]:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


class Hesitant(grpc.GenericRpcHandler):
    """A process that does not answer a dial before its `decided`."""

    def __init__(self) -> None:
        self.decided = asyncio.Event()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        async def attach(_: object, context: Any) -> None:
            await self.decided.wait()
            await context.abort(grpc.StatusCode.UNAVAILABLE, "no")

        return grpc.stream_stream_rpc_method_handler(attach)


@asynccontextmanager
async def answer_to(endpoint: str, caller: Address, meant: Address) -> AsyncIterator[Any]:
    """The metadata of an answer to a dial, None: it was refused. The stream ends with the block."""
    async with open_channel(endpoint) as channel:
        attach: Any = channel.stream_stream(GROUP.method)
        call = attach(metadata=identity_metadata(caller, meant))
        answer = await call.initial_metadata()
        if not len(answer):
            try:
                answer = await call.read()
            except BROKEN:
                answer = None
        yield answer
        call.cancel()


@pytest.mark.parametrize(("own", "caller"), [(A, B), (B, A)])
def test_of_two_that_dial_each_other_the_lower_address_refuses(own: Address, caller: Address) -> None:
    """Else each may take the other's stream in the place of its own one, and both streams end."""

    async def scenario() -> None:
        end, peer = End(own), Hesitant()
        dialing = PeerDialer(end.host, {}, on_demand={"instance": GROUP}, backoff=DialBackoff(connect_s=PATIENCE_S))
        acceptor = StreamAcceptor(end.host, [GROUP], is_dialing=dialing.is_dialing)
        async with serving(acceptor) as endpoint, serving(peer) as elsewhere:
            dialing.apply(MemberUp(Member(caller, elsewhere, "node", 1)))
            dialing.send(DialPeer(caller))
            async with answer_to(endpoint, caller, own) as first:
                assert (first is None) == (own < caller)
                expected = [] if own < caller else [Joined()]
                assert (await end.core.until(len(expected)))[:1] == expected
            peer.decided.set()
            await eventually(lambda: not dialing.is_dialing(caller))
            async with answer_to(endpoint, caller, own) as second:
                assert second is not None
            await dialing.stop()
        assert end.errors == []

    run(scenario)
