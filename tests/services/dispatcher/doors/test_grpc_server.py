"""The gRPC door as bare gRPC sees it: statuses, malformed bytes, clients that leave or lag."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from dunlin.messages.public import GenerateEvent, GenerateRequest
from dunlin.messages.types import FinishReason, i32
from dunlin.wire.channels import open_channel
from dunlin.wire.codec import decode, encode
from dunlin.wire.rpc.methods import GENERATE, RETRY_AFTER, stub
from services.dispatcher.doors import grpc_server
from services.dispatcher.doors.authentication import Authenticator
from services.dispatcher.doors.calls import DoorCall
from services.dispatcher.doors.generation.settings import RequestSettings
from services.dispatcher.doors.grpc_server import GrpcDoor, host_of
from tests.services.dispatcher.running_doors import Doors, doors


def with_channel(test: Callable[[Doors, grpc.aio.Channel], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(400), doors(**options) as cluster, open_channel(cluster.endpoint) as channel:
            await test(cluster, channel)

    asyncio.run(run())


def raw(channel: grpc.aio.Channel, data: bytes) -> Any:
    """A call without any codec on this side."""
    method: Any = channel.unary_stream(GENERATE.path)
    return method(data)


async def failure(channel: grpc.aio.Channel, request: GenerateRequest | bytes) -> grpc.aio.AioRpcError:
    call = raw(channel, request if isinstance(request, bytes) else encode(request))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    return caught.value


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"\xff\xff\xff", grpc.StatusCode.INVALID_ARGUMENT),
        (b"", grpc.StatusCode.INVALID_ARGUMENT),
        (GenerateRequest(prompt="x", prompt_tokens=i32([5])), grpc.StatusCode.INVALID_ARGUMENT),
        (GenerateRequest(prompt="x", max_tokens=0), grpc.StatusCode.INVALID_ARGUMENT),
        (GenerateRequest(prompt="x", temperature=float("nan")), grpc.StatusCode.INVALID_ARGUMENT),
        (GenerateRequest(prompt_tokens=i32([-5])), grpc.StatusCode.INVALID_ARGUMENT),
        (GenerateRequest(prompt="x", stop_token_ids=i32([999_999])), grpc.StatusCode.INVALID_ARGUMENT),
        (GenerateRequest(prompt="x", max_tokens=5_000), grpc.StatusCode.OUT_OF_RANGE),
    ],
)
def test_bad_requests_have_the_status_of_a_clients_fault(request_: Any, code: grpc.StatusCode) -> None:
    async def test(cluster: Doors, channel: grpc.aio.Channel) -> None:
        assert (await failure(channel, request_)).code() is code
        assert cluster.core.report().refused_total == 1, "the core counts what the door refuses"
        assert cluster.instance.placed == []

    with_channel(test)


def test_a_full_queue_is_resource_exhausted_with_the_time_to_come_back() -> None:
    async def test(cluster: Doors, channel: grpc.aio.Channel) -> None:
        first = stub(channel, GENERATE)(GenerateRequest(prompt="x"))
        assert (await first.read()).request == "req-2a-1"
        error = await failure(channel, GenerateRequest(prompt="x"))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(error.trailing_metadata())[RETRY_AFTER] == "0.5"
        first.cancel()

    with_channel(test, serving=False, admission__max_queued=1)


def test_a_slow_reader_gets_merged_pieces_and_nothing_is_lost() -> None:
    """The reader reads nothing until everything was generated: what waits in between is one piece, not hundreds."""

    async def test(cluster: Doors, channel: grpc.aio.Channel) -> None:
        cluster.instance.held = True
        client, stream = await cluster.gateway.submit(i32([5]), RequestSettings(max_tokens=900), "test")
        cluster.instance.release()
        while cluster.core.report().finished_total == 0:
            await asyncio.sleep(0)
        piece = await stream.next()
        assert (len(piece.tokens), piece.finish) == (900, FinishReason.LENGTH)
        assert piece.text == cluster.text(900)
        cluster.gateway.close(client)

    with_channel(test)


def test_a_call_that_is_cancelled_cancels_its_request() -> None:
    async def test(cluster: Doors, channel: grpc.aio.Channel) -> None:
        cluster.instance.held = True
        call = stub(channel, GENERATE)(GenerateRequest(prompt="x", max_tokens=900))
        await call.read()
        cluster.instance.one()
        assert (await call.read()).text == cluster.text(1)
        call.cancel()
        await cluster.instance.until(lambda: cluster.instance.cancelled)
        assert cluster.core.report().cancelled_total == 1
        assert cluster.host.peers("client") == []

    with_channel(test)


def test_many_that_leave_at_once_leave_nothing_behind() -> None:
    async def test(cluster: Doors, channel: grpc.aio.Channel) -> None:
        cluster.instance.held = True
        calls = [stub(channel, GENERATE)(GenerateRequest(prompt="x", max_tokens=900)) for _ in range(64)]
        await asyncio.gather(*(call.read() for call in calls))
        cluster.instance.one()
        await asyncio.gather(*(call.read() for call in calls))
        for call in calls:
            call.cancel()
        await cluster.instance.until(lambda: len(cluster.instance.cancelled) == 64)
        assert (cluster.core.report().cancelled_total, len(cluster.core.journal)) == (64, 0)
        assert cluster.host.peers("client") == []
        assert cluster.instance.running == []

    with_channel(test, placement__max_waiting_per_instance=100)


def test_events_on_the_wire() -> None:
    async def test(cluster: Doors, channel: grpc.aio.Channel) -> None:
        call = raw(channel, encode(GenerateRequest(prompt_tokens=i32([5, 6]), max_tokens=1)))
        events = [decode("GenerateEvent", data) async for data in call]
        seed = cluster.instance.placed[0].sampling.seed
        assert events[0] == GenerateEvent("req-2a-1", prompt_tokens=2, seed=seed)
        token = cluster.instance.text[0]
        assert events[1] == GenerateEvent(
            "req-2a-1", cluster.text(1), i32([token]), finish=FinishReason.LENGTH, prompt_tokens=2
        )

    with_channel(test)


@pytest.mark.parametrize(("peer", "host"), [("ipv4:10.0.0.1:99", "10.0.0.1"), ("ipv6:%5B::1%5D:99", "::1")])
def test_the_host_of_a_peer_is_an_address_of_either_kind(peer: str, host: str) -> None:
    assert host_of(peer) == host


async def events_of(channel: grpc.aio.Channel, request: GenerateRequest) -> list[GenerateEvent]:
    found: list[GenerateEvent] = []
    async for data in raw(channel, encode(request)):
        event = decode(GenerateEvent.__name__, data)
        assert isinstance(event, GenerateEvent)
        found.append(event)
    return found


def test_log_probabilities_of_a_prompt_come_in_events_of_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "PROMPT_LOGPROBS_AT_ONCE", 3)

    async def test(cluster: Doors, channel: grpc.aio.Channel) -> None:
        asked = GenerateRequest(prompt_tokens=i32(range(10)), max_tokens=2, prompt_logprobs=2)
        found = await events_of(channel, asked)
        assert [len(event.prompt_logprobs) for event in found if event.prompt_logprobs] == [3, 3, 3]
        assert [one for event in found for one in event.prompt_ranks] == list(range(1, 10))
        assert [one for event in found for one in event.prompt_top_token][:4] == [1, 2, 2, 3]
        assert not any(event.tokens for event in found[: found.index(_last_scored(found))])

    with_channel(test)


def _last_scored(found: list[GenerateEvent]) -> GenerateEvent:
    return [event for event in found if event.prompt_logprobs][-1]


def test_who_resumes_says_what_it_has_of_them() -> None:
    async def test(cluster: Doors, channel: grpc.aio.Channel) -> None:
        asked = GenerateRequest(
            prompt_tokens=i32(range(10)), max_tokens=2, prompt_logprobs=0, resume_request="req-1-1", resume_scored=4
        )
        found = await events_of(channel, asked)
        assert cluster.instance.placed[0].scored == 4
        assert [one for event in found for one in event.prompt_ranks] == list(range(5, 10))

    with_channel(test)


@pytest.mark.parametrize(
    "more", [{"resume_scored": 10}, {"resume_scored": -1}, {"resume_scored": 1, "prompt_logprobs": None}]
)
def test_who_says_that_it_has_what_there_is_not_is_refused(more: dict[str, Any]) -> None:
    async def test(cluster: Doors, channel: grpc.aio.Channel) -> None:
        asked = {"prompt_logprobs": 0, "resume_request": "req-1-1", **more}
        refused = await failure(channel, GenerateRequest(prompt_tokens=i32(range(10)), **asked))
        assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "resume_scored" in (refused.details() or "")

    with_channel(test)


class _LeavingClient:
    """The context of a call whose client leaves while its request is being admitted."""

    def __init__(self) -> None:
        self.waits, self.admitted = asyncio.Event(), asyncio.Event()

    async def write(self, event: GenerateEvent) -> None:
        self.waits.set()
        await self.admitted.wait()
        raise asyncio.CancelledError

    def peer(self) -> str:
        return "ipv4:10.0.0.1:99"

    def invocation_metadata(self) -> tuple[()]:
        return ()


def test_a_client_that_leaves_as_it_is_admitted_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    client = _LeavingClient()
    submit = GrpcDoor._submit

    async def then_tell(door: GrpcDoor, data: bytes, call: DoorCall) -> Any:
        await client.waits.wait()
        opened = await submit(door, data, call)
        client.admitted.set()
        return opened

    async def test(cluster: Doors, channel: grpc.aio.Channel) -> None:
        cluster.instance.held = True
        door = GrpcDoor(cluster.gateway, Authenticator(), str)
        with pytest.raises(asyncio.CancelledError):
            await door.generate(encode(GenerateRequest(prompt="x", max_tokens=900)), client)  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert cluster.core.report().cancelled_total == 1
        assert cluster.host.peers("client") == []

    monkeypatch.setattr(GrpcDoor, "_submit", then_tell)
    monkeypatch.setattr(grpc_server, "KEEPALIVE_S", 0.0)
    with_channel(test)
