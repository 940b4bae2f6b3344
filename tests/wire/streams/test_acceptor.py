"""The answering side of streams: what it accepts, what replaces what, and callers that it refuses."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from dunlin.effects import Address, Gone, Joined
from dunlin.messages.dispatch import Cancel, Ended
from dunlin.messages.types import Header
from dunlin.wire.channels import open_channel
from dunlin.wire.envelopes import DISPATCH
from dunlin.wire.streams.stream import StreamLimits
from tests.wire.ends import (
    DISPATCHER,
    INSTANCE,
    accepting,
    raw_call,
    run,
    without_end,
)


def test_a_second_stream_of_a_peer_replaces_the_first() -> None:
    async def scenario() -> None:
        async with accepting() as (instance, endpoint), raw_call(endpoint) as first:
            await first.initial_metadata()
            await instance.core.until(1)
            async with raw_call(endpoint) as second:
                await second.initial_metadata()
                heard = await instance.core.until(3)
                assert heard == [Joined(), Gone("replaced by a newer connection"), Joined()]
                with pytest.raises(grpc.aio.AioRpcError, match="replaced"):
                    await first.read()
                await second.write(DISPATCH.command.encode(Header(DISPATCHER), Cancel(1, 1)))
                assert (await instance.core.until(4))[3] == Cancel(1, 1)
                assert instance.host.send(DISPATCHER, Ended(1, 1))
                assert DISPATCH.event.decode(await second.read()) == (Header(INSTANCE), Ended(1, 1))
            assert isinstance((await instance.core.until(5))[4], Gone)
            assert len(instance.core.heard) == 5

    run(scenario)


def test_frames_of_a_replaced_stream_are_not_heard() -> None:
    async def scenario() -> None:
        async with accepting() as (instance, endpoint), raw_call(endpoint) as first:
            await first.initial_metadata()
            await instance.core.until(1)
            async with raw_call(endpoint) as second:
                await second.initial_metadata()
                await instance.core.until(3)
                frame = DISPATCH.command.encode(Header(DISPATCHER), Cancel(1, 1))
                with pytest.raises((grpc.aio.AioRpcError, asyncio.InvalidStateError)):
                    await without_end(first.write, frame)
                await second.write(DISPATCH.command.encode(Header(DISPATCHER), Cancel(2, 1)))
                assert (await instance.core.until(4))[3:] == [Cancel(2, 1)]

    run(scenario)


def test_a_call_without_identity_is_refused() -> None:
    async def scenario() -> None:
        async with accepting() as (instance, endpoint), open_channel(endpoint) as channel:
            attach: Any = channel.stream_stream(DISPATCH.method)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await attach().read()
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert "identity" in (caught.value.details() or "")
            assert instance.core.heard == []

    run(scenario)


@pytest.mark.parametrize("caller", [Address("etcd", ""), Address("engine", "i"), INSTANCE], ids=str)
def test_no_caller_may_have_the_address_of_this_process_or_its_own_parts(caller: Address) -> None:
    async def scenario() -> None:
        async with accepting() as (instance, endpoint), raw_call(endpoint, sender=caller) as call:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert instance.core.heard == []
            assert instance.acceptor.counters.misdirected == 1

    run(scenario)


def test_no_caller_may_have_an_incarnation_that_no_message_could_carry() -> None:
    """Else the next message that names it, such as the monitor's next FleetView, would end this process."""

    async def scenario() -> None:
        caller = Address("dispatcher", "d", 1 << 63)
        async with accepting() as (instance, endpoint), raw_call(endpoint, sender=caller) as call:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert instance.core.heard == []

    run(scenario)


def test_an_acceptor_with_a_full_queue_says_so() -> None:
    async def scenario() -> None:
        async with accepting(StreamLimits(messages=2)) as (instance, endpoint), raw_call(endpoint) as call:
            await call.initial_metadata()
            await instance.core.until(1)
            assert [instance.host.send(DISPATCHER, Ended(n, 1)) for n in range(4)] == [True, True, False, False]
            with pytest.raises(grpc.aio.AioRpcError, match="queue full"):
                await without_end(call.read)
            assert instance.core.messages == [Joined(), Gone("queue full")]

    run(scenario)


def test_a_role_that_does_not_dial_this_conversation_is_refused_and_counted() -> None:
    kvstore = Address("kvstore", "k", 1)

    async def scenario() -> None:
        async with accepting() as (instance, endpoint), raw_call(endpoint, sender=kvstore) as call:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert caught.value.details() == "a kvstore does not dial Dispatch: only dispatcher"
            assert instance.core.heard == []
            assert (instance.acceptor.counters.refused, instance.acceptor.counters.misdirected) == (1, 0)

    run(scenario)
