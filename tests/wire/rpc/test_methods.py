import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from dunlin.effects import Address
from dunlin.messages.declare import Method
from dunlin.messages.fleet import STATUS, FleetStatus, MemberStatus, StatusQuery
from dunlin.messages.public import GenerateEvent, GenerateRequest, InfoReply, InfoRequest
from dunlin.messages.types import i32
from dunlin.wire.channels import SERVER_OPTIONS, open_blocking_channel, open_channel
from dunlin.wire.rpc.methods import GENERATE, INFO, Methods, stub

ROOT = Path(__file__).resolve().parent.parent.parent

Answers = Mapping[Method[Any, Any], Callable[[Any, Any], Awaitable[Any]]]


@asynccontextmanager
async def answering(answers: Answers) -> AsyncIterator[str]:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    server.add_generic_rpc_handlers((Methods(answers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


def test_a_question_gets_its_answer() -> None:
    status = FleetStatus(4, (MemberStatus(Address("instance", "i", 3), connected=True),))

    async def answer(request: StatusQuery, context: Any) -> FleetStatus:
        assert request == StatusQuery()
        return status

    async def scenario() -> None:
        async with answering({STATUS: answer}) as endpoint, open_channel(endpoint) as channel:
            assert await stub(channel, STATUS)(StatusQuery(), timeout=60) == status

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
            return stub(channel, INFO)(InfoRequest(), timeout=60)

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


def test_a_method_that_nobody_answers_is_unimplemented() -> None:
    async def scenario() -> None:
        async with answering({}) as endpoint, open_channel(endpoint) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub(channel, INFO)(InfoRequest())
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    run(scenario)


def test_a_proxy_in_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(request: InfoRequest, context: Any) -> InfoReply:
        return InfoReply("tiny", 1, 1, "0")

    async def scenario() -> None:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
            monkeypatch.delenv(name, raising=False)
        async with answering({INFO: answer}) as endpoint, open_channel(endpoint) as channel:
            assert (await stub(channel, INFO)(InfoRequest(), timeout=60)).model == "tiny"

    run(scenario)


def test_what_the_sdk_imports_loads_no_server_and_no_etcd() -> None:
    program = "import dunlin.wire.channels, dunlin.wire.rpc.methods, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    loaded = done.stdout.split()
    assert "grpc.aio" in loaded, done.stderr
    heavy = ("grpc_health.", "grpc_reflection.", "uvloop", "torch", "dunlin.membership", "dunlin.wire.service.service")
    assert [name for name in loaded if name.startswith(heavy)] == []
