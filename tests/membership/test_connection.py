"""Channels to etcd's endpoints: dead and silent ones are passed over, errors say what to do."""

import asyncio

import grpc
import grpc.aio
import pytest

from dunlin.membership.client import EtcdClient
from dunlin.membership.connection import EtcdConnection, Timeouts, answer, translate
from dunlin.membership.errors import Compacted, EtcdError, EtcdUnavailable, LeaseLost, TokenRefused
from tests.membership.helpers import QUICK, client_of
from tests.membership.relay import relay_to

DEAD = "127.0.0.1:1"
NEXT_AFTER_3_S = Timeouts(connect_s=3.0, call_s=60.0)
"""Patience with a dead endpoint, which a living one on a busy machine has to beat."""


def test_unreachable_names_every_endpoint() -> None:
    async def scenario() -> None:
        async with client_of(DEAD, "127.0.0.1:2", timeouts=Timeouts(0.2, 0.2)) as client:
            for call in (client.get("a"), client.put("a", b""), client.keep_alive(1)):
                with pytest.raises(EtcdUnavailable, match=r"127\.0\.0\.1:1.*127\.0\.0\.1:2"):
                    await call

    asyncio.run(scenario())


def test_reads_and_writes_pass_over_a_dead_endpoint(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with client_of(DEAD, etcd_endpoint, timeouts=NEXT_AFTER_3_S) as client:
            await client.put("/over/a", b"1")
            assert client.connection.current == etcd_endpoint
        async with client_of(DEAD, etcd_endpoint, timeouts=NEXT_AFTER_3_S) as client:
            assert await client.get("/over/a") is not None

    asyncio.run(scenario())


def test_an_endpoint_that_accepts_and_stays_silent_is_passed_over(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with await _listen_without_a_word() as server:
            silent = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with client_of(silent, etcd_endpoint, timeouts=NEXT_AFTER_3_S) as client:
                await client.put("/silent/a", b"1")
                assert client.connection.current == etcd_endpoint

    asyncio.run(scenario())


def test_the_client_comes_back_when_the_connection_does(etcd_endpoint: str) -> None:
    async def scenario() -> None:
        async with relay_to(etcd_endpoint) as relay, client_of(relay.endpoint, timeouts=QUICK) as client:
            await client.put("/back/a", b"1")
            relay.cut()
            with pytest.raises(EtcdUnavailable):
                await client.get("/back/a")
            relay.mend()
            async with asyncio.timeout(300):
                while not await _is_there(client, "/back/a"):
                    pass

    asyncio.run(scenario())


@pytest.mark.parametrize(("repeatable", "attempts"), [(True, 2), (False, 1)])
def test_a_read_whose_connection_was_lost_is_tried_again(etcd_endpoint: str, repeatable: bool, attempts: int) -> None:
    async def scenario() -> None:
        tried: list[str] = []

        async def lost(channel: grpc.aio.Channel, metadata: object) -> bytes:
            tried.append("once")
            raise EtcdUnavailable("the connection was lost")

        connection = EtcdConnection([etcd_endpoint], Timeouts(60.0, 60.0))
        with pytest.raises(EtcdUnavailable):
            await connection.call(lost, repeatable=repeatable)
        assert len(tried) == attempts
        await connection.close()

    asyncio.run(scenario())


def test_cancelling_a_call_cancels_the_task() -> None:
    async def scenario() -> None:
        async with client_of(DEAD, timeouts=Timeouts(30.0, 30.0)) as client:
            task = asyncio.create_task(client.put("a", b""))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(scenario())


async def _is_there(client: EtcdClient, key: str) -> bool:
    try:
        return await client.get(key) is not None
    except EtcdUnavailable:  # a busy machine takes longer than the client's patience
        return False


async def _listen_without_a_word() -> asyncio.Server:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()  # from Python 3.12 on the server's end waits for it

    return await asyncio.start_server(silent, "127.0.0.1", 0)


def rpc_error(code: grpc.StatusCode, details: str | None) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, "no leader", EtcdUnavailable),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "too late", EtcdUnavailable),
        (grpc.StatusCode.CANCELLED, None, EtcdUnavailable),
        (grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token", TokenRefused),
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: revision of auth store is old", TokenRefused),
        (grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty", TokenRefused),
        (grpc.StatusCode.NOT_FOUND, "etcdserver: requested lease not found", LeaseLost),
        (grpc.StatusCode.NOT_FOUND, "etcdserver: member not found", EtcdError),
        (grpc.StatusCode.OUT_OF_RANGE, "required revision has been compacted", Compacted),
        (grpc.StatusCode.OUT_OF_RANGE, "required revision is a future revision", EtcdError),
        (grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied", EtcdError),
    ],
)
def test_an_error_of_grpc_becomes_the_one_that_says_what_to_do(
    code: grpc.StatusCode, details: str | None, kind: type[EtcdError]
) -> None:
    found = translate(rpc_error(code, details), "h:1")
    assert type(found) is kind
    assert str(found).startswith("etcd at h:1: ")
    assert (details or code.name) in str(found)


def test_what_a_call_raises_names_its_endpoint() -> None:
    async def raising(error: BaseException) -> None:
        raise error

    async def scenario() -> None:
        with pytest.raises(LeaseLost, match="etcd at h:1: the lease is gone"):
            await answer(raising(rpc_error(grpc.StatusCode.NOT_FOUND, "the lease is gone")), "h:1")
        with pytest.raises(EtcdUnavailable, match="etcd at h:1 ended the stream"):
            await answer(raising(asyncio.InvalidStateError()), "h:1")
        # Cancelled by the server, not by this task.
        with pytest.raises(EtcdUnavailable, match="etcd at h:1 cancelled the call"):
            await answer(raising(asyncio.CancelledError()), "h:1")
        with pytest.raises(ZeroDivisionError):
            await answer(raising(ZeroDivisionError()), "h:1")

    asyncio.run(scenario())


def test_endpoints_are_taken_in_turn_and_one_failure_turns_once() -> None:
    connection = EtcdConnection(["a:1", "b:2", "c:3"], QUICK)
    connection.rotate("a:1")
    assert connection.current == "b:2"
    connection.rotate("a:1")  # another call that failed there at the same time
    assert connection.current == "b:2"
    connection.rotate("b:2")
    connection.rotate("c:3")
    assert connection.current == "a:1"


def test_a_connection_needs_an_endpoint() -> None:
    with pytest.raises(ValueError, match="no etcd endpoint given"):
        EtcdConnection([], QUICK)
