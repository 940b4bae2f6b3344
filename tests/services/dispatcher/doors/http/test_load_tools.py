"""The requests of load tools as they sent them (prompts shortened, JSON spelled anew), and what the tools read of the
answers.

Recorded with `python -m benchmarks.clients.compatibility --record`: guidellm 0.8.1, aiperf 0.13.0 (what genai-perf
became), and the request functions of `vllm bench serve` 0.33.0 (`benchmarks/lib/endpoint_request_func.py`).
"""

import asyncio
import json
from typing import Any

import pytest

from tests.services.dispatcher.door_requests import with_doors
from tests.services.dispatcher.running_doors import Doors

GUIDELLM = (
    "Accept: */*\r\nAccept-Encoding: gzip, deflate\r\nConnection: keep-alive\r\nUser-Agent: python-httpx/0.28.1\r\n"
)
AIPERF = (
    "User-Agent: aiperf/0.13.0\r\nX-Request-ID: 29a2a863-aa86-4770-9752-1cc361cd75b6\r\n"
    "X-Correlation-ID: 462fae3d-0ee5-48ba-b24c-6681a328c571\r\nAccept: text/event-stream\r\n"
    "X-Session-Affinity: 462fae3d-0ee5-48ba-b24c-6681a328c571\r\n"
)
VLLM = (
    "x-request-id: bench-1\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate, br\r\n"
    "User-Agent: Python/3.11 aiohttp/3.14.5\r\n"
)
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
GUIDELLM_CHAT = (
    '{"model":"builtin:tiny","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},'
    '"max_completion_tokens":16,"ignore_eos":true,"messages":[{"role":"user","content":[{"type":"text","text":'
    '"1 1 m0 Prove adult science people. Beautiful different plan common student thousand."}]}]}'
)
AIPERF_CHAT = (
    '{"messages":[{"role":"user","content":" FALSTAFF Quoit him down Bardolph like a shovegroat shilling Nay an he"}],'
    '"model":"builtin:tiny","stream":true,"max_completion_tokens":16,"stream_options":{"include_usage":true}}'
)
TOOLS = [
    pytest.param(GUIDELLM, CHAT, GUIDELLM_CHAT, id="guidellm-chat"),
    pytest.param(
        GUIDELLM,
        COMPLETIONS,
        '{"model":"builtin:tiny","stream":true,"stream_options":{"include_usage":true,"continuous_usage_stats":true},'
        '"max_tokens":16,"ignore_eos":true,"prompt":"1 0 m0 Finish medical want almost away until. Its culture song"}',
        id="guidellm-completions",
    ),
    pytest.param(AIPERF, CHAT, AIPERF_CHAT, id="aiperf-chat"),
    pytest.param(
        AIPERF,
        COMPLETIONS,
        '{"prompt":" picture Alas the day how loath you are to offend daylight","model":"builtin:tiny","stream":true,'
        '"max_tokens":16,"ignore_eos":true,"temperature":0,"stream_options":{"include_usage":true}}',
        id="aiperf-completions",
    ),
    pytest.param(
        VLLM,
        COMPLETIONS,
        '{"model": "builtin:tiny", "prompt": "Once upon a time", "repetition_penalty": 1.0, "max_tokens": 16, '
        '"logprobs": null, "stream": true, "stream_options": {"include_usage": true}, "ignore_eos": true, '
        '"temperature": 0.0}',
        id="vllm-completions",
    ),
    pytest.param(
        VLLM,
        CHAT,
        '{"model": "builtin:tiny", "messages": [{"role": "user", "content": [{"type": "text", "text": "Once upon a '
        'time"}]}], "max_completion_tokens": 16, "stream": true, "stream_options": {"include_usage": true}, '
        '"ignore_eos": true}',
        id="vllm-chat",
    ),
]


async def posted(
    cluster: Doors, headers: str, path: str, body: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = cluster.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{headers}Content-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body.encode())}\r\n\r\n{body}".encode())
    return reader, writer


async def chunks_of(reader: asyncio.StreamReader) -> str:
    text = b""
    while size := int(await reader.readline(), 16):
        text += (await reader.readexactly(size + 2))[:-2]
    return text.decode()


async def sent(cluster: Doors, headers: str, path: str, body: str) -> tuple[int, str]:
    """The status and the body of the answer."""
    reader, writer = await posted(cluster, headers, path, body)
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    if "chunked" in head:
        text = await chunks_of(reader)
    else:
        length = head.split("content-length: ")[1].split("\r\n")[0]
        text = (await reader.readexactly(int(length))).decode()
    writer.close()
    return int(head.split()[1]), text


def events(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize(("headers", "path", "body"), TOOLS)
def test_a_tools_request_is_served(headers: str, path: str, body: str) -> None:
    async def test(cluster: Doors) -> None:
        status, text = await sent(cluster, headers, path, body)
        assert status == 200, text
        *chunks, last = events(text)
        assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 16)
        assert last["usage"]["prompt_tokens"] == len(cluster.instance.placed[0].tokens)
        said = [chunk["choices"][0] for chunk in chunks]
        assert "".join(one["text"] if path == COMPLETIONS else one["delta"].get("content", "") for one in said)
        assert said[-1]["finish_reason"] == "length"
        request = json.loads(body)
        assert cluster.instance.placed[0].max_tokens == 16
        assert list(cluster.instance.placed[0].stop_ids) == (
            [] if "ignore_eos" in request else [*cluster.gateway.model.eos_ids]
        )
        running = "continuous_usage_stats" in request["stream_options"]
        assert all((chunk["usage"] is not None) == running for chunk in chunks)

    with_doors(test)


def test_min_tokens_of_aiperf_is_honoured() -> None:
    async def test(cluster: Doors) -> None:
        body = AIPERF_CHAT.replace('"stream":true', '"stream":true,"min_tokens":16')
        status, _ = await sent(cluster, AIPERF, CHAT, body)
        assert (status, cluster.instance.placed[-1].sampling.min_tokens) == (200, 16)

    with_doors(test)


def test_the_first_chunk_of_a_chat_comes_with_the_first_token() -> None:
    """`vllm bench serve` and others take its time for that of the first token."""

    async def test(cluster: Doors) -> None:
        cluster.instance.held = True
        reader, writer = await posted(cluster, GUIDELLM, CHAT, GUIDELLM_CHAT)
        await cluster.instance.until(lambda: cluster.instance.placed)
        await reader.readuntil(b"\r\n\r\n")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readline(), 0.05)
        cluster.instance.release()
        first, second = events(await chunks_of(reader))[:2]
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert first["usage"]["completion_tokens"] == 0
        assert second["usage"]["completion_tokens"] >= 1
        writer.close()

    with_doors(test)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_running_usage_is_that_of_a_chunks_own_choice_and_the_last_that_of_all(path: str) -> None:
    async def test(cluster: Doors) -> None:
        prompts = ["one", "two words more"] if path == COMPLETIONS else None
        own = {"prompt": prompts} if prompts else {"messages": [{"role": "user", "content": "x"}]}
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = {**own, "n": 2, "max_tokens": 20, "stream": True, "stream_options": options}
        _, text = await sent(cluster, VLLM, path, json.dumps(body))
        *chunks, last = events(text)
        lengths = [len(place.tokens) for place in cluster.instance.placed]
        counts: dict[int, list[int]] = {}
        for chunk in chunks:
            index, usage = chunk["choices"][0]["index"], chunk["usage"]
            assert usage["prompt_tokens"] == lengths[index]
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            counts.setdefault(index, []).append(usage["completion_tokens"])
        assert sorted(counts) == list(range(len(lengths)))
        for rising in counts.values():
            assert rising == sorted(rising)
            assert rising[-1] == 20
        assert last["usage"]["completion_tokens"] == 20 * len(lengths)
        assert last["usage"]["prompt_tokens"] == sum(lengths[::2])

    with_doors(test)
