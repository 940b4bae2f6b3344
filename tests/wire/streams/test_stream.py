"""Streams between two tiny cores over real gRPC on loopback."""

import grpc
import grpc.aio
import pytest

from dunlin.effects import Address, Gone, Joined
from dunlin.messages.dispatch import Accepted, Cancel, Ended, Place
from dunlin.messages.types import Header, i32
from dunlin.wire.envelopes import DISPATCH
from dunlin.wire.streams.stream import StreamLimits, identity_metadata, read_identities
from tests.wire.ends import (
    DISPATCHER,
    INSTANCE,
    accepting,
    dialing,
    eventually,
    raw_call,
    run,
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
