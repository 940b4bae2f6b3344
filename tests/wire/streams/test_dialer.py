"""The calling side of streams: it comes back, checks the answering process, and ends when it is not wanted."""

import asyncio
from typing import Any

import grpc
import grpc.aio
import pytest

from dunlin.effects import Address, Gone, Joined
from dunlin.messages.dispatch import Cancel
from dunlin.wire.envelopes import DISPATCH
from dunlin.wire.streams.dialer import StreamDialer
from dunlin.wire.streams.stream import identity_metadata
from tests.wire.ends import (
    DISPATCHER,
    INSTANCE,
    QUICK,
    Acceptance,
    End,
    accepting,
    dialing,
    eventually,
    raw_acceptor,
    run,
)


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


def test_a_dialer_that_means_another_incarnation_is_refused_and_joins_nothing() -> None:
    async def scenario() -> None:
        older = Address(INSTANCE.role, INSTANCE.name, 2)
        async with accepting() as (instance, endpoint), dialing(endpoint, peer=older) as (dispatcher, dialer):
            await eventually(lambda: instance.acceptor.counters.misdirected >= 2)
            assert dispatcher.core.heard == []
            assert instance.core.heard == []
            assert not dialer.connected

    run(scenario)


def test_a_dialer_checks_the_address_that_answers() -> None:
    async def attach(_: object, context: Any) -> None:
        await context.send_initial_metadata(identity_metadata(Address("instance", "i", 4), DISPATCHER))
        await context.read()

    async def scenario() -> None:
        async with raw_acceptor(attach) as endpoint, dialing(endpoint) as (dispatcher, dialer):
            await eventually(lambda: dialer.counters.misdirected >= 2)
            assert dispatcher.core.heard == []

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


def test_a_dialer_that_does_not_persist_makes_one_attempt() -> None:
    async def scenario() -> None:
        side, ended = End(DISPATCHER), asyncio.Event()
        dialer = StreamDialer(
            side.host, INSTANCE, "127.0.0.1:1", DISPATCH, backoff=QUICK, on_end=lambda _: ended.set(), persists=False
        )
        await ended.wait()
        assert dialer.ended
        assert not dialer.connected
        assert side.core.heard == []
        assert side.errors == []

    run(scenario)


def test_a_server_that_is_no_dunlin_process_is_named_with_its_endpoint(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        server = grpc.aio.server()
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with dialing(f"127.0.0.1:{port}"):
            await eventually(lambda: any("stream to" in said for said in caplog.messages))
        await server.stop(None)

    with caplog.at_level("INFO"):
        run(scenario)
    assert "UNIMPLEMENTED" in caplog.text


def test_a_dialer_that_is_cancelled_before_its_first_step_still_says_that_it_ended() -> None:
    async def scenario() -> None:
        ended: list[StreamDialer] = []
        side = End(DISPATCHER)
        dialer = StreamDialer(side.host, INSTANCE, "127.0.0.1:1", DISPATCH, on_end=ended.append)
        dialer.set_wanted(False)
        assert dialer.ended
        await dialer.stop()
        await eventually(lambda: ended == [dialer])

    run(scenario)
