"""Bodies and requests that are long, compressed or too much at once, through both doors."""

import gzip
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import grpc
import grpc.aio
import pytest

from dunlin.limits import MOST_BODY_BYTES
from dunlin.messages.public import GenerateEvent, GenerateRequest
from dunlin.messages.types import i32
from dunlin.wire.codec import encode
from dunlin.wire.rpc.methods import GENERATE, stub
from services.dispatcher.doors.generation.output import OutputPiece
from services.dispatcher.doors.http.app import HttpConfig
from services.dispatcher.doors.openai.reply import CompletionReply, Json
from services.dispatcher.doors.preprocess.lanes import LaneLimits
from services.dispatcher.doors.preprocess.pool import PreprocessLimits
from tests.services.dispatcher.door_requests import MODEL, post, with_doors
from tests.services.dispatcher.running_doors import Doors

BODY = json.dumps({"prompt": "Once upon a time", "max_tokens": 2}).encode()
LONG = "heron " * 120
NO_LANE = PreprocessLimits(inline_bytes=100, lanes=(LaneLimits(1 << 20, 0, 1_000, 0, 1.0),))


async def send(cluster: Doors, data: Any, encoding: str = "") -> tuple[int, dict[str, Any], str]:
    headers = {"Content-Type": "application/json"} | ({"Content-Encoding": encoding} if encoding else {})
    async with aiohttp.ClientSession(cluster.url) as session:
        async with session.post("/v1/completions", data=data, headers=headers) as answer:
            return answer.status, json.loads(await answer.read()), answer.headers.get("Retry-After", "")


async def generate(cluster: Doors, request: GenerateRequest) -> list[GenerateEvent]:
    async with grpc.aio.insecure_channel(cluster.endpoint) as channel:
        return [event async for event in stub(channel, GENERATE)(request, timeout=300)]


def test_a_large_request_at_both_doors_has_the_tokens_of_a_small_one() -> None:
    async def test(cluster: Doors) -> None:
        encoded = cluster.gateway.model.tokenizer.encode(LONG, add_special_tokens=True)
        status, answer, _ = await post(
            cluster, "/v1/completions", {"prompt": LONG, "max_tokens": 1, "user": "x" * 9_000}
        )
        assert (status, answer["usage"]["prompt_tokens"]) == (200, len(encoded))
        padding = ("x" * 1_000,) * 9
        events = await generate(cluster, GenerateRequest(prompt=LONG, max_tokens=1, stop=padding))
        assert events[-1].prompt_tokens == len(encoded)
        assert [list(place.tokens) for place in cluster.instance.placed] == [encoded, encoded]
        assert cluster.gateway.preprocess_pool.calls_in_lanes == 0
        status, answer, _ = await post(cluster, "/v1/completions", {"prompt": "heron " * 5_000})
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        status, answer, _ = await post(cluster, "/v1/chat/completions", {"f" * 20_000: 1})
        assert (status, len(answer["error"]["param"]) < 200, len(answer["error"]["message"]) < 300) == (400, True, True)

    with_doors(test)


@pytest.mark.parametrize("chunked", [False, True])
def test_too_long_a_body_is_413(chunked: bool) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b" " * 100

    async def test(cluster: Doors) -> None:
        status, answer, _ = await send(cluster, parts() if chunked else b" " * 2_000)
        assert (status, answer["error"]["message"][:36]) == (413, "the body is longer than 1000 bytes, ")

    with_doors(test, http=HttpConfig(max_body_bytes=1_000))


def test_more_large_bodies_than_there_is_room_for_are_429() -> None:
    async def test(cluster: Doors) -> None:
        for body in (b" " * 101, b" " * 1_001):  # no call may wait; no room at all
            status, answer, after = await send(cluster, body)
            assert (status, answer["error"]["code"], after) == (429, "queue_full", "1")
        assert (await send(cluster, BODY))[0] == 200
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await generate(cluster, GenerateRequest(prompt="x" * 200))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    with_doors(test, limits=NO_LANE)


def test_what_a_compressed_body_becomes_needs_room_too() -> None:
    async def test(cluster: Doors) -> None:
        status, answer, _ = await send(cluster, gzip.compress(b" " * 5_000), "gzip")
        assert (status, answer["error"]["code"]) == (429, "queue_full")

    with_doors(test, limits=NO_LANE)


def test_grpc_says_how_long_a_request_may_be() -> None:
    async def test(cluster: Doors) -> None:
        request = encode(GenerateRequest(prompt="x" * MOST_BODY_BYTES))
        async with grpc.aio.insecure_channel(
            cluster.endpoint, options=[("grpc.max_send_message_length", -1)]
        ) as channel:
            call: Any = channel.unary_stream(GENERATE.path)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(request, timeout=300).read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert f"at most {MOST_BODY_BYTES} are taken" in str(refused.value.details())

    with_doors(test)


def test_more_received_tokens_than_the_model_holds_are_refused() -> None:
    async def test(cluster: Doors) -> None:
        def asking(count: int) -> GenerateRequest:
            received = i32((20,)) * count
            return GenerateRequest(prompt="x", resume_request="req-1-1", resume_tokens=received, max_tokens=995, seed=1)

        assert (await generate(cluster, asking(990)))[-1].request == "req-1-1"
        with pytest.raises(grpc.aio.AioRpcError, match="1000 after a prompt of 1 are more than the model's 1000") as no:
            await generate(cluster, asking(1_000))
        assert no.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    with_doors(test)


def test_a_long_answer_with_logprobs_is_the_same_as_in_parts() -> None:
    async def test(cluster: Doors) -> None:
        body = {"prompt": "x", "max_tokens": 120, "logprobs": 2, "seed": 1}
        _, long, _ = await post(cluster, "/v1/completions", body)
        _, short, _ = await post(cluster, "/v1/completions", body | {"max_tokens": 15})
        (whole,), (first,) = long["choices"], short["choices"]
        assert whole["text"].startswith(first["text"])
        assert len(whole["logprobs"]["tokens"]) == 120
        assert whole["logprobs"]["top_logprobs"][:15] == first["logprobs"]["top_logprobs"]

    with_doors(test)


def test_many_tokens_that_come_at_once_are_made_json_of_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, bool]] = []
    chunk = CompletionReply.chunk

    def recorded(self: CompletionReply, index: int, piece: OutputPiece) -> Json:
        made.append((len(piece.tokens), threading.current_thread() is threading.main_thread()))
        return chunk(self, index, piece)

    async def test(cluster: Doors) -> None:
        async def tokens() -> list[str]:
            stream = await cluster.client().completions.create(
                model=MODEL, prompt="x", max_tokens=120, logprobs=2, stream=True, extra_headers={"Idempotency-Key": "k"}
            )
            seen = [event.choices[0].logprobs async for event in stream]
            return [token for one in seen if one is not None for token in one.tokens or ()]

        first = await tokens()
        monkeypatch.setattr(CompletionReply, "chunk", recorded)
        assert await tokens() == first
        assert len(first) == 120
        assert made == [(120, False)]

    with_doors(test)
