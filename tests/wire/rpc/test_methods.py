import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from dunlin.effects import Address
from dunlin.messages.declare import Method
from dunlin.messages.fleet import STATUS, FleetStatus, MemberStatus, StatusQuery
from dunlin.messages.public import GenerateEvent, GenerateRequest, InfoReply, InfoRequest
from dunlin.messages.types import i32
from dunlin.wire.channels import open_blocking_channel, open_channel
from dunlin.wire.rpc.methods import GENERATE, INFO, stub
from tests.wire.rpc.answering import answering


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(300):
            await scenario()

    asyncio.run(bounded())


def test_a_question_gets_its_answer() -> None:
    status = FleetStatus(4, (MemberStatus(Address("instance", "i", 3), connected=True),))

    async def answer(request: StatusQuery, context: Any) -> FleetStatus:
        assert request == StatusQuery()
        return status

    async def scenario() -> None:
        async with answering({STATUS: answer}) as endpoint, open_channel(endpoint) as channel:
            assert await stub(channel, STATUS)(StatusQuery(), timeout=300) == status

    run(scenario)


def test_a_stream_of_answers_comes_in_order() -> None:
    async def answer(request: GenerateRequest, context: Any) -> None:
        for token in request.prompt_tokens:
            await context.write(GenerateEvent("req-1-1", tokens=i32([token])))

    async def scenario() -> None:
        async with answering({GENERATE: answer}) as endpoint, open_channel(endpoint) as channel:
            call = stub(channel, GENERATE)(GenerateRequest(prompt_tokens=i32([3, 1, 2])))
            assert [event.tokens[0] async for event in call] == [3, 1, 2]

    run(scenario)


def test_the_answer_is_cancelled_as_soon_as_the_client_is_gone() -> None:
    async def scenario() -> None:
        gone = asyncio.Event()

        async def answer(request: GenerateRequest, context: Any) -> None:
            try:
                await context.write(GenerateEvent("req-1-1"))
                await asyncio.sleep(3_600)
            finally:
                gone.set()

        async with answering({GENERATE: answer}) as endpoint, open_channel(endpoint) as channel:
            call = stub(channel, GENERATE)(GenerateRequest(prompt="a"))
            assert (await call.read()).request == "req-1-1"
            call.cancel()
            await gone.wait()

    run(scenario)


def test_a_blocking_channel_asks_the_same_methods() -> None:
    reply = InfoReply("tiny", 128, 512, "0")

    async def answer(request: InfoRequest, context: Any) -> InfoReply:
        return reply

    def ask(endpoint: str) -> object:
        with open_blocking_channel(endpoint) as channel:
            return stub(channel, INFO)(InfoRequest(), timeout=300)

    async def scenario() -> None:
        async with answering({INFO: answer}) as endpoint:
            assert await asyncio.to_thread(ask, endpoint) == reply

    run(scenario)


@pytest.mark.parametrize("method", [STATUS, GENERATE], ids=["single", "streaming"])
def test_a_malformed_request_is_the_clients_fault_and_reaches_no_answer(method: Method[Any, Any]) -> None:
    async def answer(request: object, context: Any) -> None:
        raise AssertionError("asked")

    async def scenario() -> None:
        async with answering({method: answer}) as endpoint, open_channel(endpoint) as channel:
            make: Any = channel.unary_stream if method.streams else channel.unary_unary
            call = make(method.path)(b"\xff\xff\xff")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await (call.read() if method.streams else call)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert f"malformed {method.request.__name__}" in (caught.value.details() or "")

    run(scenario)


def test_a_method_without_a_handler_is_unimplemented() -> None:
    async def scenario() -> None:
        async with answering({}) as endpoint, open_channel(endpoint) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub(channel, INFO)(InfoRequest())
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    run(scenario)
