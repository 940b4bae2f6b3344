"""Requests that come twice, at the doors: idempotency keys over HTTP, resuming over gRPC."""

import asyncio
import json
from typing import Any

import aiohttp
import grpc.aio
import pytest

from dunlin.limits import InvalidField
from dunlin.messages.dispatch import Cancel
from dunlin.messages.door import Delta
from dunlin.messages.public import GenerateEvent, GenerateRequest
from dunlin.messages.types import FinishReason, RequestClass, SamplingParams, f32, i32
from dunlin.wire.channels import open_channel
from dunlin.wire.rpc.calls import CallFailed, stream_async
from dunlin.wire.rpc.methods import GENERATE
from services.dispatcher.doors.generation.idempotency import derived_seed, parse_retry_identity, request_digest
from services.dispatcher.doors.generation.output import OutputProcessor
from services.dispatcher.doors.generation.settings import RequestSettings
from services.dispatcher.requests.timers import AbandonTimeout
from tests.services.dispatcher.door_requests import with_doors
from tests.services.dispatcher.running_doors import Doors, model

BODY = {"prompt": [5, 6, 7], "max_tokens": 30, "temperature": 1.0}
NAMED = {"Idempotency-Key": "order 66"}


async def ask(cluster: Doors, body: dict[str, Any], headers: dict[str, str]) -> tuple[int, Any, str]:
    url = f"{cluster.url}/v1/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as answer:
        return answer.status, await answer.json(), answer.headers.get("X-Request-Id", "")


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0.005)


def test_a_retry_joins_the_running_request_and_gets_all_of_it() -> None:
    async def test(cluster: Doors) -> None:
        instance = cluster.instance
        instance.held = True
        first = asyncio.create_task(ask(cluster, BODY, NAMED))
        await instance.until(lambda: len(instance.placed) == 1)
        for _ in range(7):
            instance.one()
        second = asyncio.create_task(ask(cluster, BODY, NAMED))
        streamed = asyncio.create_task(_streamed(cluster))
        await settle()
        instance.release()
        answers = [await first, await second]
        assert [status for status, _, _ in answers] == [200, 200]
        texts = [answer["choices"][0]["text"] for _, answer, _ in answers]
        assert [*texts, await streamed] == [cluster.text(30)] * 3
        assert {name for _, _, name in answers} == {"req-2a-1"}
        assert len(instance.placed) == 1

    with_doors(test)


async def _streamed(cluster: Doors) -> str:
    url = f"{cluster.url}/v1/completions"
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json={**BODY, "stream": True}, headers=NAMED) as answer,
    ):
        lines = [line async for line in answer.content if line.startswith(b"data: {")]
    return "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines)


def test_a_finished_answer_is_replayed_for_replay_s() -> None:
    async def test(cluster: Doors) -> None:
        first, second = [await ask(cluster, {**BODY, "logprobs": 2}, NAMED) for _ in range(2)]
        assert first[1]["choices"] == second[1]["choices"]
        assert first[2] == second[2]
        assert len(cluster.instance.placed) == 1
        other_tenantless = await ask(cluster, BODY, {"Idempotency-Key": "another"})
        assert other_tenantless[2] != first[2]

    with_doors(test)


def test_several_choices_are_joined_one_by_one() -> None:
    async def test(cluster: Doors) -> None:
        body = {**BODY, "n": 3}
        first, second = [await ask(cluster, body, NAMED) for _ in range(2)]
        assert first[1]["choices"] == second[1]["choices"]
        assert len(cluster.instance.placed) == 3

    with_doors(test)


@pytest.mark.parametrize("change", [{"prompt": [5, 6, 8]}, {"max_tokens": 31}, {"seed": 4}, {"stop": ["x"]}, {"n": 2}])
def test_the_same_key_for_something_else_is_refused(change: dict[str, Any]) -> None:
    async def test(cluster: Doors) -> None:
        assert (await ask(cluster, BODY, NAMED))[0] == 200
        status, answer, _ = await ask(cluster, {**BODY, **change}, NAMED)
        assert status == 422
        assert answer["error"]["code"] == "idempotency_key_reused"
        assert "'order 66'" in answer["error"]["message"]
        status, _, _ = await ask(cluster, BODY, {"Idempotency-Key": "a" * 256})
        assert status == 400

    with_doors(test)


def test_a_stop_string_ends_every_reader_at_the_same_place() -> None:
    async def test(cluster: Doors) -> None:
        body = {**BODY, "stop": ["time"]}
        first, second = [await ask(cluster, body, NAMED) for _ in range(2)]
        assert first[1]["choices"] == second[1]["choices"]
        assert first[1]["choices"][0]["text"] == "Once upon a "
        assert first[1]["usage"] == second[1]["usage"]
        assert len(cluster.instance.placed) == 1

    with_doors(test)


def test_a_request_with_a_key_outlives_its_connection_for_the_grace() -> None:
    async def test(cluster: Doors) -> None:
        instance = cluster.instance
        instance.held = True
        first = asyncio.create_task(ask(cluster, BODY, NAMED))
        await instance.until(lambda: len(instance.placed) == 1)
        first.cancel()
        await settle()
        assert instance.cancelled == []
        second = asyncio.create_task(ask(cluster, BODY, NAMED))
        await settle()
        second.cancel()
        await settle()
        cluster.host.deliver(cluster.host.address, AbandonTimeout(1, 1))  # of the first absence: a reader came since
        assert instance.cancelled == []
        cluster.host.deliver(cluster.host.address, AbandonTimeout(1, 2))
        assert [type(message) for message in instance.cancelled] == [Cancel]

    with_doors(test)


def test_a_cut_request_without_a_key_is_cancelled_at_once() -> None:
    async def test(cluster: Doors) -> None:
        instance = cluster.instance
        instance.held = True
        first = asyncio.create_task(ask(cluster, BODY, {}))
        await instance.until(lambda: len(instance.placed) == 1)
        first.cancel()
        await instance.until(lambda: bool(instance.cancelled))

    with_doors(test)


# --- gRPC ---


async def events_of(channel: grpc.aio.Channel, request: GenerateRequest) -> list[GenerateEvent]:
    return [event async for event in stream_async(channel, GENERATE, request)]


@pytest.mark.parametrize("received", [0, 1, 7, 29])
@pytest.mark.parametrize("stop", [(), ("hungry",)])
def test_a_resumed_stream_goes_on_in_the_middle_of_a_character(received: int, stop: tuple[str, ...]) -> None:
    async def test(cluster: Doors) -> None:
        async with open_channel(cluster.endpoint) as channel:
            request = GenerateRequest(prompt_tokens=i32([5, 6]), max_tokens=30, stop=stop, seed=3)
            whole = await events_of(channel, request)
            said = [token for event in whole for token in event.tokens]
            renewed = GenerateRequest(
                prompt_tokens=i32([5, 6]),
                max_tokens=30,
                stop=stop,
                seed=3,
                resume_request="req-99-1",
                resume_tokens=i32(said[:received]),
            )
            rest = await events_of(channel, renewed)
        assert {event.request for event in rest} == {"req-99-1"}
        assert [token for event in rest for token in event.tokens] == said[received:]
        text = "".join(event.text for event in whole)
        skipped = OutputProcessor(cluster.gateway.model.tokenizer.detokenizer(), stop)
        skipped.skip_received(i32(said[:received]))
        first = len(text) - len("".join(event.text for event in rest))
        assert text[first:] == "".join(event.text for event in rest)
        assert (rest[-1].finish, rest[0].seed) == (whole[-1].finish, 3)
        placed = cluster.instance.placed[1]
        assert (len(placed.tokens), placed.prompt_tokens, placed.key) == (2 + received, 2, "req-99-1")

    with_doors(test)


def test_a_dispatcher_that_stops_leaves_its_grpc_requests_to_another_one() -> None:
    async def test(cluster: Doors) -> None:
        cluster.instance.held = True
        async with open_channel(cluster.endpoint) as channel:
            task = asyncio.create_task(events_of(channel, GenerateRequest(prompt_tokens=i32([5]), max_tokens=9)))
            await cluster.instance.until(lambda: len(cluster.instance.placed) == 1)
            await settle()
            cluster.gateway.shut_down("grpc")
            with pytest.raises(CallFailed) as failed:
                await task
        assert failed.value.status == "UNAVAILABLE"
        assert cluster.instance.cancelled == []

    with_doors(test)


@pytest.mark.parametrize(
    "wrong",
    [
        {"resume_request": "nonsense"},
        {"resume_request": "req-1-1", "resume_tokens": i32([-1])},
        {"resume_request": "req-1-1", "resume_tokens": i32([10**9])},
        {"resume_tokens": i32([1])},
        {"idempotency_key": "né"},
        {"idempotency_key": "a\nb"},
    ],
)
def test_what_cannot_be_resumed_is_refused(wrong: dict[str, Any]) -> None:
    async def test(cluster: Doors) -> None:
        async with open_channel(cluster.endpoint) as channel:
            with pytest.raises(CallFailed) as failed:
                await events_of(channel, GenerateRequest(prompt_tokens=i32([5]), max_tokens=9, **wrong))
        assert failed.value.status == "INVALID_ARGUMENT"

    with_doors(test)


def test_a_running_request_of_other_tokens_cannot_be_joined() -> None:
    async def test(cluster: Doors) -> None:
        cluster.instance.held = True
        async with open_channel(cluster.endpoint) as channel:
            task = asyncio.create_task(events_of(channel, GenerateRequest(prompt_tokens=i32([5]), max_tokens=9)))
            await cluster.instance.until(lambda: len(cluster.instance.placed) == 1)
            with pytest.raises(CallFailed) as failed:
                await events_of(
                    channel, GenerateRequest(prompt_tokens=i32([6]), max_tokens=9, resume_request="req-2a-1")
                )
            cluster.instance.release()
            await task
        assert failed.value.status == "INVALID_ARGUMENT"

    with_doors(test)


def test_names_and_hashes() -> None:
    assert parse_retry_identity("a" * 255).idempotency_key == "a" * 255
    with pytest.raises(InvalidField):
        parse_retry_identity("a" * 256)
    assert derived_seed("t", "k") == derived_seed("t", "k")
    assert len({derived_seed("t", "k"), derived_seed("", "tk"), derived_seed("tk", ""), derived_seed("t", "l")}) == 4
    assert 0 <= derived_seed("t", "k") < 1 << 63
    tokens = i32([1, 2])
    assert request_digest(tokens, RequestSettings(timeout_s=1.0), 0) == request_digest(
        tokens, RequestSettings(timeout_s=2.0), 0
    )
    others = [(i32([2, 1]), RequestSettings(), 0), (tokens, RequestSettings(seed=1), 0), (tokens, RequestSettings(), 1)]
    assert request_digest(tokens, RequestSettings(), 0) not in [request_digest(*other) for other in others]


def test_the_digest_is_the_same_in_every_version() -> None:
    """Dispatchers of two versions must agree in a rolling upgrade: a new value needs a CHANGELOG line."""
    sampling = SamplingParams(0.5, 7, bias_tokens=i32([4]), bias_values=f32([0.25]))
    settings = RequestSettings(sampling, -9, 12, ("\n",), i32([6]), True, 1.5, RequestClass.BATCH, "acme")
    assert request_digest(i32([1, 2]), settings, 1, 2).hex() == "770d767253f2dc9d047ebfd0656c44fd"


def test_tokens_that_come_at_once_are_cut_where_the_text_ends() -> None:
    tokenizer = model().tokenizer
    tokens = tokenizer.encode("Once upon a time there was", add_special_tokens=False)
    single = OutputProcessor(tokenizer.detokenizer(), ["time"])
    for token in tokens:
        if single.push(Delta(i32([token]), f32([-1.0]), i32([1]), i32([token]), f32([-1.0]))):
            break
    together = OutputProcessor(tokenizer.detokenizer(), ["time"])
    ones = [1] * len(tokens)
    assert together.push(
        Delta(i32(tokens), f32([-1.0] * len(tokens)), i32(ones), i32(tokens), f32([-1.0] * len(tokens)))
    )
    assert together.drain() == single.drain()
    assert together.finish is FinishReason.STOP
