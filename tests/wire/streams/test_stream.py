"""Streams between two tiny cores over real gRPC on loopback."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from dunlin.effects import Address, Gone, Joined
from dunlin.messages.dispatch import Accepted, Cancel, Ended, Place
from dunlin.messages.types import Header, i32
from dunlin.wire.channels import open_channel
from dunlin.wire.envelopes import DISPATCH
from dunlin.wire.streams.stream import StreamLimits, identity_metadata, read_identities
from tests.wire.ends import (
    DISPATCHER,
    INSTANCE,
    Acceptance,
    accepting,
    dialing,
    eventually,
    raw_acceptor,
    raw_call,
    run,
    without_end,
)


def test_both_sides_join_speak_in_order_and_part() -> None:
    async def scenario() -> None:
        async with accepting() as (instance, endpoint), dialing(endpoint) as (dispatcher, dialer):
            await dispatcher.core.until(1)
            await instance.core.until(1)
            for number in range(500):
                assert dispatcher.host.send(INSTANCE, Cancel(number, 1))
                assert instance.host.send(DISPATCHER, Ended(number, 1))
            assert (await instance.core.until(501)) == [Joined(), *(Cancel(number, 1) for number in range(500))]
            assert (await dispatcher.core.until(501)) == [Joined(), *(Ended(number, 1) for number in range(500))]
            assert {sender for sender, _ in instance.core.heard} == {DISPATCHER}
            assert {sender for sender, _ in dispatcher.core.heard} == {INSTANCE}
            await dialer.stop()
            assert isinstance((await instance.core.until(502))[-1], Gone)
            assert isinstance((await dispatcher.core.until(502))[-1], Gone)

    run(scenario)


def test_a_large_message_passes_whole() -> None:
    async def scenario() -> None:
        async with accepting() as (instance, endpoint), dialing(endpoint) as (dispatcher, _):
            await instance.core.until(1)
            await dispatcher.core.until(1)
            place = Place(1, 1, i32(range(5_000_000)), 5_000_000, 1)
            assert dispatcher.host.send(INSTANCE, place)
            assert (await instance.core.until(2))[1] == place

    run(scenario)


def test_the_dialer_comes_back_after_the_server_restarted() -> None:
    async def scenario() -> None:
        first = Acceptance()
        endpoint = await first.start()
        async with dialing(endpoint) as (dispatcher, _):
            await dispatcher.core.until(1)
            await first.server.stop(None)
            assert isinstance((await dispatcher.core.until(2))[1], Gone)
            second = Acceptance()
            await second.start(first.port)
            assert (await dispatcher.core.until(3))[2] == Joined()
            assert await second.core.until(1) == [Joined()]
            await second.server.stop(None)

    run(scenario)


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


MALFORMED = {
    "no protobuf": b"\xff\xff\xff\xff",
    "empty": b"",
    "header only": DISPATCH.command.encode(Header(DISPATCHER), Cancel(1, 1))[:10],
    "an event where a command belongs": b"\x0a\x00\x7a\x02\x08\x01",
    "somebody else's frame": DISPATCH.command.encode(Header(Address("dispatcher", "d 1/ü", 8)), Cancel(1, 1)),
}


@pytest.mark.parametrize("frame", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_frame_ends_its_stream_and_nothing_else(frame: bytes) -> None:
    async def scenario() -> None:
        async with accepting() as (instance, endpoint), raw_call(endpoint) as call:
            await call.initial_metadata()
            await instance.core.until(1)
            await call.write(frame)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert isinstance((await instance.core.until(2))[1], Gone)
            assert len(instance.core.heard) == 2
            counters = instance.acceptor.counters
            assert (counters.malformed, counters.misdirected) in ((1, 0), (0, 1))
            async with dialing(endpoint) as (dispatcher, _):
                assert await dispatcher.core.until(1) == [Joined()]

    run(scenario)


def test_a_malformed_frame_from_the_acceptor_ends_the_dialers_stream_and_it_dials_again() -> None:
    async def attach(_: object, context: Any) -> None:
        await context.send_initial_metadata(identity_metadata(INSTANCE, DISPATCHER))
        await context.write(b"\xff\xff\xff\xff")
        await context.read()

    async def scenario() -> None:
        async with raw_acceptor(attach) as endpoint, dialing(endpoint) as (dispatcher, dialer):
            heard = await dispatcher.core.until(4)
            assert [type(message) for message in heard[:4]] == [Joined, Gone, Joined, Gone]
            assert dialer.counters.malformed >= 2

    run(scenario)


def test_a_dialer_that_means_another_incarnation_is_refused_and_joins_nobody() -> None:
    async def scenario() -> None:
        older = Address(INSTANCE.role, INSTANCE.name, 2)
        async with accepting() as (instance, endpoint), dialing(endpoint, peer=older) as (dispatcher, dialer):
            await eventually(lambda: instance.acceptor.counters.misdirected >= 2)
            assert dispatcher.core.heard == []
            assert instance.core.heard == []
            assert not dialer.connected

    run(scenario)


def test_a_dialer_checks_who_answers() -> None:
    async def attach(_: object, context: Any) -> None:
        await context.send_initial_metadata(identity_metadata(Address("instance", "i", 4), DISPATCHER))
        await context.read()

    async def scenario() -> None:
        async with raw_acceptor(attach) as endpoint, dialing(endpoint) as (dispatcher, dialer):
            await eventually(lambda: dialer.counters.misdirected >= 2)
            assert dispatcher.core.heard == []

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
def test_nobody_from_outside_speaks_as_this_process_or_its_own_parts(caller: Address) -> None:
    async def scenario() -> None:
        async with accepting() as (instance, endpoint), raw_call(endpoint, sender=caller) as call:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert instance.core.heard == []
            assert instance.acceptor.counters.misdirected == 1

    run(scenario)


@pytest.mark.parametrize("limits", [StreamLimits(messages=10), StreamLimits(size_bytes=400)])
def test_a_full_queue_ends_the_stream_for_both_and_they_join_again(limits: StreamLimits) -> None:
    async def scenario() -> None:
        async with accepting() as (instance, endpoint), dialing(endpoint, limits=limits) as (dispatcher, _):
            await dispatcher.core.until(1)
            await instance.core.until(1)
            # No await between the sends: nothing can leave the queue.
            taken = [dispatcher.host.send(INSTANCE, Cancel(number, 1)) for number in range(1, 40)]
            assert 5 < taken.count(True) <= 20
            assert taken == sorted(taken, reverse=True)
            assert dispatcher.core.messages == [Joined(), Gone("queue full")]
            assert dispatcher.host.overflowed == 1
            assert (await dispatcher.core.until(3))[2] == Joined()
            await eventually(lambda: instance.core.messages[-1] == Joined())
            kinds = [type(message) for message in instance.core.messages if not isinstance(message, Cancel)]
            assert kinds == [Joined, Gone, Joined]

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


def test_an_unwanted_dialer_keeps_an_open_stream_and_ends_with_it() -> None:
    async def scenario() -> None:
        async with accepting() as (instance, endpoint), dialing(endpoint) as (dispatcher, dialer):
            await dispatcher.core.until(1)
            await instance.core.until(1)
            dialer.set_wanted(False)
            assert dispatcher.host.send(INSTANCE, Cancel(1, 1))
            assert (await instance.core.until(2))[1] == Cancel(1, 1)
            assert not dialer.ended
            instance.host.detach(DISPATCHER, "told to")
            await eventually(lambda: dialer.ended)
            assert [type(message) for message in dispatcher.core.messages] == [Joined, Gone]

    run(scenario)


def test_an_unwanted_dialer_without_a_stream_ends_at_once() -> None:
    async def scenario() -> None:
        async with dialing("127.0.0.1:1") as (dispatcher, dialer):
            await asyncio.sleep(0.05)
            dialer.set_wanted(False)
            assert dialer.ended
            await dialer.stop()
            assert dispatcher.core.heard == []

    run(scenario)


def test_what_the_core_may_not_say_in_a_conversation_is_the_cores_crash() -> None:
    async def scenario() -> None:
        async with accepting() as (instance, endpoint), dialing(endpoint) as (dispatcher, _):
            await dispatcher.core.until(1)
            await instance.core.until(1)
            with pytest.raises(ValueError, match="carries no Accepted"):
                dispatcher.host.send(INSTANCE, Accepted(1, 1, 1))

    run(scenario)


def test_identities_survive_the_metadata() -> None:
    assert read_identities(identity_metadata(DISPATCHER, INSTANCE)) == (DISPATCHER, INSTANCE)


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        None,
        identity_metadata(DISPATCHER, INSTANCE)[:-1],
        (*identity_metadata(DISPATCHER, INSTANCE)[:-1], ("dunlin-to-incarnation", "seven")),
        (("dunlin-from-role-bin", b"\xff"), *identity_metadata(DISPATCHER, INSTANCE)[1:]),
    ],
)
def test_metadata_without_a_whole_identity_is_refused(metadata: object) -> None:
    with pytest.raises(ValueError, match="no identity"):
        read_identities(metadata)
