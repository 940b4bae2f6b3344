"""The clients of `benchmarks.doors.token_cost`, in a process of their own: `python -m benchmarks.doors.cost_client`.

Reads one order a line (JSON) from stdin, opens so many streams at once, and answers with one line when all have ended.
It only keeps what comes and reads it afterwards, so that it is seldom the slower side. Knows no dispatcher.
"""

import asyncio
import base64
import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

import aiohttp
import uvloop

from dunlin.messages.public import GenerateEvent, GenerateRequest
from dunlin.wire.channels import open_channel
from dunlin.wire.codec import decode, encode
from dunlin.wire.rpc.methods import GENERATE

PROMPT = "Hello there"
DATA, DONE = b"data: ", b"[DONE]"


@dataclass(frozen=True, slots=True)
class StreamOrder:
    """An order: so many streams of so many tokens, over `grpc` from host:port or over `sse` from a URL."""

    kind: str
    source: str
    streams: int
    tokens: int


@dataclass(frozen=True, slots=True)
class ReceivedStreams:
    """What came: events of all streams, the different texts among them, and the first stream's events in base64."""

    events: int
    texts: list[str]
    first: list[str]


async def receive(wanted: StreamOrder) -> ReceivedStreams:
    """Open the streams, read them to their ends."""
    streams = await (_over_grpc(wanted) if wanted.kind == "grpc" else _over_sse(wanted))
    text_of = _text_of_message if wanted.kind == "grpc" else _text_of_line
    texts = {"".join(map(text_of, stream)) for stream in streams}
    first = [base64.b64encode(event).decode() for event in streams[0]]
    return ReceivedStreams(sum(map(len, streams)), sorted(texts), first)


async def _over_grpc(wanted: StreamOrder) -> list[list[bytes]]:
    request = encode(GenerateRequest(prompt=PROMPT, max_tokens=wanted.tokens, ignore_eos=True))
    async with open_channel(wanted.source) as channel:
        call: Any = channel.unary_stream(GENERATE.path)

        async def one() -> list[bytes]:
            return [event async for event in call(request)]

        return await asyncio.gather(*(one() for _ in range(wanted.streams)))


async def _over_sse(wanted: StreamOrder) -> list[list[bytes]]:
    body = {"prompt": PROMPT, "max_tokens": wanted.tokens, "stream": True}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one() -> list[bytes]:
            async with session.post(f"{wanted.source}/v1/completions", json=body) as answer:
                answer.raise_for_status()
                lines = b"".join([part async for part in answer.content.iter_any()]).splitlines()
            found = [line.removeprefix(DATA) for line in lines if line.startswith(DATA)]
            return [event for event in found if event != DONE]

        return await asyncio.gather(*(one() for _ in range(wanted.streams)))


def _text_of_message(data: bytes) -> str:
    event = decode(GenerateEvent.__name__, data)
    assert isinstance(event, GenerateEvent)
    return event.text


def _text_of_line(data: bytes) -> str:
    return "".join(choice["text"] for choice in json.loads(data)["choices"])


def main() -> None:
    """Serve orders until stdin ends."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for line in sys.stdin:
            print(json.dumps(asdict(runner.run(receive(StreamOrder(**json.loads(line)))))), flush=True)


if __name__ == "__main__":
    main()
