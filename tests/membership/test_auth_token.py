"""How long a token is waited for, and by whom: etcd hashes a password for each one that is asked for."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
import pytest

from dunlin.membership.auth import HASH_TIMES, AuthToken, CallMetadata, EtcdUser
from dunlin.membership.errors import EtcdUnavailable
from dunlin.membership.registration import Registration
from dunlin.v1 import etcd_pb2 as pb
from tests.membership.scripted_etcd import REVISION, ScriptedEtcd

TOKEN: CallMetadata = (("token", "t"),)


class SlowChannel:
    """A channel whose etcd answers when it is told to, or with an error."""

    def __init__(self) -> None:
        self.timeouts_s: list[float] = []
        self.answer = asyncio.get_running_loop().create_future()

    def unary_unary(self, method: str, **codec: Any) -> Callable[..., Awaitable[pb.AuthenticateResponse]]:
        async def call(request: pb.AuthenticateRequest, timeout: float) -> pb.AuthenticateResponse:
            self.timeouts_s.append(timeout)
            response = await self.answer
            assert isinstance(response, pb.AuthenticateResponse)
            return response

        return call

    def ask(self, token: AuthToken) -> "asyncio.Task[CallMetadata]":
        return asyncio.ensure_future(token.metadata(self))  # type: ignore[arg-type]


def test_a_call_that_gives_up_leaves_its_question_to_the_others() -> None:
    async def scenario() -> None:
        channel, token = SlowChannel(), AuthToken(EtcdUser("dunlin", "hello"), 3.0)
        impatient, patient = channel.ask(token), channel.ask(token)
        await asyncio.sleep(0)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        channel.answer.set_result(pb.AuthenticateResponse(token="t"))
        assert await patient == await channel.ask(token) == TOKEN
        assert channel.timeouts_s == [HASH_TIMES * 3.0]

    asyncio.run(scenario())


def test_a_question_that_fails_fails_for_all_and_is_asked_anew() -> None:
    async def scenario() -> None:
        channel, token = SlowChannel(), AuthToken(EtcdUser("dunlin", "hello"), 3.0)
        waiting = [channel.ask(token), channel.ask(token)]
        await asyncio.sleep(0)
        away = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())
        channel.answer.set_exception(away)
        for each in waiting:
            with pytest.raises(grpc.aio.AioRpcError):
                await each
        better = SlowChannel()
        better.answer.set_result(pb.AuthenticateResponse(token="t"))
        assert await better.ask(token) == TOKEN

    asyncio.run(scenario())


class GuardedEtcd(ScriptedEtcd):
    """Gives a token after so long; with an error none."""

    def __init__(self, after_s: float, error: EtcdUnavailable | None = None) -> None:
        super().__init__()
        self.after_s, self.error = after_s, error

    async def authenticate(self) -> None:
        await asyncio.sleep(self.after_s)
        if self.error is not None:
            raise self.error

    async def put(self, key: str, value: bytes, lease_id: int = 0) -> int:
        return REVISION


async def register(etcd: ScriptedEtcd, within_s: float) -> int:
    registration = Registration(etcd, "/k", lambda incarnation: b"", lambda value: None)
    try:
        return await registration.start(within_s)
    finally:
        await registration.stop()


def test_what_a_token_takes_does_not_count_towards_the_time_in_which_a_process_registers() -> None:
    assert asyncio.run(register(GuardedEtcd(0.3), within_s=0.05)) == REVISION


def test_an_etcd_that_gives_no_token_is_not_waited_for_longer_than_that() -> None:
    etcd = GuardedEtcd(0.02, EtcdUnavailable("no connection"))
    with pytest.raises(EtcdUnavailable, match=r"could not register /k within 0\.05 s: no connection"):
        asyncio.run(register(etcd, within_s=0.05))


def test_an_etcd_that_gives_a_token_and_then_no_answer_is_not_waited_for_either() -> None:
    class Silent(GuardedEtcd):
        async def put(self, key: str, value: bytes, lease_id: int = 0) -> int:
            raise EtcdUnavailable("no answer")

    with pytest.raises(EtcdUnavailable, match="no answer"):
        asyncio.run(register(Silent(0.0), within_s=0.05))
