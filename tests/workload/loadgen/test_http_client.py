"""The load generator over HTTP, against a server that says exactly these bytes."""

import asyncio
import json
from typing import Any

import pytest

from dunlin.messages.types import i32
from dunlin.workload.loadgen.http_client import LINE_BYTES, HttpTarget
from dunlin.workload.loadgen.load_generator import RequestFailed, RequestRejected, StreamedTokens
from dunlin.workload.traffic.prompts import Job

JOB = Job(0.0, i32([5, 6]), 3)


def chunk(*tokens: str) -> bytes:
    body = {"id": "req-1-1", "choices": [{"text": "", "logprobs": {"tokens": list(tokens)}}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"
OK = b"HTTP/1.1 200 OK\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class Said:
    """One answer, said byte by byte or whole, and the requests that it was the answer to."""

    def __init__(self, answer: bytes, piece_bytes: int = 1 << 20) -> None:
        self.answer = answer
        self.piece_bytes = piece_bytes
        self.asked: list[dict[str, Any]] = []
        self.heads: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        self.heads.append(head)
        self.asked.append(json.loads(await reader.readexactly(length)))
        for start in range(0, len(self.answer), self.piece_bytes):
            writer.write(self.answer[start : start + self.piece_bytes])
            await asyncio.sleep(0)
        writer.close()

    async def to(self, *jobs: Job) -> list[StreamedTokens]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, HttpTarget(url, "m") as door:
            return [arrived for job in jobs for arrived in [one async for one in door.stream(job)]]


def over_http(answer: bytes, job: Job = JOB, piece_bytes: int = 1 << 20) -> tuple[list[StreamedTokens], dict[str, Any]]:
    """What comes of an answer, and what was asked."""
    said = Said(answer, piece_bytes)
    return asyncio.run(said.to(job)), said.asked[0]


def test_tokens_are_counted_chunk_by_chunk() -> None:
    got, asked = over_http(OK + chunk("a", "b") + chunk() + chunk("c") + DONE)
    assert [len(arrived.tokens) for arrived in got] == [2, 0, 1]
    assert {arrived.request for arrived in got} == {"req-1-1"}
    assert (asked["prompt"], asked["max_tokens"], asked["ignore_eos"], asked["temperature"]) == ([5, 6], 3, True, 0.0)
    assert "seed" not in asked


def test_a_seed_asks_for_samples() -> None:
    _, asked = over_http(OK + DONE, Job(0.0, i32([5]), 1, seed=9))
    assert (asked["seed"], asked["temperature"]) == (9, 1.0)


@pytest.mark.parametrize(("label", "asked_for"), [("batch", "batch"), ("chat", "interactive"), ("", "interactive")])
def test_the_class_is_asked_for_as_over_grpc(label: str, asked_for: str) -> None:
    _, asked = over_http(OK + DONE, Job(0.0, i32([5]), 1, label=label))
    assert asked["request_class"] == asked_for


def test_each_request_has_a_connection_of_its_own() -> None:
    said = Said(CHUNKED + b"e\r\n" + DONE + b"\r\n0\r\n\r\n")
    assert asyncio.run(said.to(JOB, JOB)) == []
    assert len(said.heads) == 2, "the server answers once a connection"
    assert said.heads[0].startswith(b"POST /v1/completions HTTP/1.1\r\n")


@pytest.mark.parametrize(
    "answer",
    [
        OK + b": hello\n\n" + chunk("a") + DONE,
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(chunk("a") + DONE) + chunk("a") + DONE,
        CHUNKED + b"%x;x=y\r\n" % len(chunk("a")) + chunk("a") + b"\r\ne\r\n" + DONE + b"\r\n0\r\n\r\n",
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 7, 1 << 20])
def test_events_are_put_together_from_pieces(answer: bytes, piece_bytes: int) -> None:
    got, _ = over_http(answer, piece_bytes=piece_bytes)
    assert [len(arrived.tokens) for arrived in got] == [1]


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (b"HTTP/1.1 429 Too Many\r\n\r\nfull", RequestRejected, "429: full"),
        (b"HTTP/1.1 400 Bad\r\n\r\nno", RequestFailed, "400: no"),
        (b"HTTP/1.1 503 Away\r\n\r\nno", RequestFailed, "503: no"),
        (OK + b'data: {"error": {"message": "boom"}}\n\n', RequestFailed, "boom"),
        (OK + b'data: {"error": "boom", "id": "a", "choices": []}\n\n', RequestFailed, "boom"),
        (OK + b'data: {"object": "error", "message": "boom"}\n\n', RequestFailed, "boom"),
        (OK + b'data: {"id": "a", "choices": [{"logprobs": {"content": []}}]}\n\n', RequestFailed, "content"),
        (OK + b"data: [1]\n\n", RequestFailed, r"said \[1\]"),
        (OK + chunk("a"), RequestFailed, r"without \[DONE\]"),
        (OK + b"data: {\n\n", RequestFailed, "Expecting"),
        (OK + b"data: " + b"x" * (3 * LINE_BYTES), RequestFailed, "more than"),
        (b"", RequestFailed, "127"),
        (b"SSH-2.0\r\n\r\n", RequestFailed, "127"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", RequestFailed, "127"),
        (CHUNKED + b"zz\r\n", RequestFailed, "127"),
        (CHUNKED + b"5\r\nhel", RequestFailed, "127"),
    ],
)
def test_a_failure_says_what_failed(answer: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        over_http(answer)


def test_no_server_is_a_failure() -> None:
    async def run() -> None:
        async with HttpTarget("http://127.0.0.1:1", "m") as door:
            await anext(door.stream(JOB))

    with pytest.raises(RequestFailed, match=r"127\.0\.0\.1:1"):
        asyncio.run(run())
