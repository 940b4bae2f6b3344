"""The steady streams of `benchmarks.doors.hostile_pauses`, in a process of their own: `-m
benchmarks.doors.pause_listener ORDER`.

Follows so many streams at each door, one after the other without end, and asks the HTTP door for its version all the
time. For each line on stdin it answers with one line: what the streams and the probe waited since the last.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp
import grpc
import uvloop

from dunlin.messages.public import GenerateEvent, GenerateRequest
from dunlin.wire.channels import open_channel
from dunlin.wire.codec import decode, encode
from dunlin.wire.rpc.methods import GENERATE

PROMPT = "Hello there"
TOKENS = 400
PROBE_EVERY_S = 0.005


@dataclass(frozen=True, slots=True)
class ListenOrder:
    """Where to listen, and with how many streams at each door."""

    http: str
    grpc: str
    streams: int


@dataclass(slots=True)
class StreamWaits:
    """Waits in seconds: between two events of one stream, for a stream's first token, and for the answer to a probe;
    streams that were cut."""

    grpc: list[float] = field(default_factory=list)
    sse: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    probe: list[float] = field(default_factory=list)
    cut: int = 0


class StreamListener:
    """Owns the streams and what they waited."""

    def __init__(self, order: ListenOrder) -> None:
        self._order = order
        self._heard = StreamWaits()
        self._waiting_since: dict[object, tuple[str, float]] = {}

    async def run(self) -> None:
        """Listen until stdin ends."""
        order = self._order
        web = aiohttp.ClientSession(order.http, connector=aiohttp.TCPConnector(limit=0))
        async with open_channel(order.grpc) as channel, web as session:
            works = [self._follow(lambda: _grpc_events(channel), "grpc") for _ in range(order.streams)]
            works += [self._follow(lambda: _sse_events(session), "sse") for _ in range(order.streams)]
            tasks = [asyncio.create_task(work) for work in (*works, self._probe(session))]
            while await asyncio.to_thread(sys.stdin.readline):
                print(json.dumps(asdict(self._take())), flush=True)
            for task in tasks:
                task.cancel()

    def _take(self) -> StreamWaits:
        """What was heard since the last time; a wait that goes on is counted as far as it is."""
        now_s, heard, self._heard = time.monotonic(), self._heard, StreamWaits()
        for name, since_s in self._waiting_since.values():
            getattr(heard, name).append(now_s - since_s)
        return heard

    async def _follow(self, events: Callable[[], AsyncIterator[bytes]], name: str) -> None:
        me = object()
        while True:
            self._waiting_since[me] = "first", time.monotonic()
            try:
                async for _ in events():
                    self._note(me, name)
            except (grpc.aio.AioRpcError, aiohttp.ClientError):
                self._heard.cut += 1
                await asyncio.sleep(0.1)

    def _note(self, me: object, name: str) -> None:
        now_s = time.monotonic()
        kind, since_s = self._waiting_since[me]
        getattr(self._heard, kind).append(now_s - since_s)
        self._waiting_since[me] = name, now_s

    async def _probe(self, session: aiohttp.ClientSession) -> None:
        me = object()
        while True:
            self._waiting_since[me] = "probe", time.monotonic()
            with suppress(aiohttp.ClientError):
                async with session.get("/version") as answer:
                    await answer.read()
            self._heard.probe.append(time.monotonic() - self._waiting_since[me][1])
            await asyncio.sleep(PROBE_EVERY_S)


async def _grpc_events(channel: grpc.aio.Channel) -> AsyncIterator[bytes]:
    call: Any = channel.unary_stream(GENERATE.path)
    async for data in call(encode(GenerateRequest(prompt=PROMPT, max_tokens=TOKENS, ignore_eos=True))):
        event = decode(GenerateEvent.__name__, data)
        if isinstance(event, GenerateEvent) and event.tokens:  # the first names the request, a keepalive nothing
            yield data


async def _sse_events(session: aiohttp.ClientSession) -> AsyncIterator[bytes]:
    body = {"prompt": PROMPT, "max_tokens": TOKENS, "ignore_eos": True, "stream": True, "logprobs": 0}
    async with session.post("/v1/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if line.strip():
                yield line


def run_before_others() -> bool:
    """Whether this process runs before every other from now on: it stands for a client on a machine of its own.

    Otherwise a thread of it that has data waits for a core behind what it listens to, up to 0.3 s, and that wait would
    be taken for the door's. It wants root.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return False
    return True


def main() -> None:
    """Listen as ordered on the command line (JSON)."""
    if not run_before_others():
        print("the listener shares the cores with the cluster: its own waits for a core count too", file=sys.stderr)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(StreamListener(ListenOrder(**json.loads(sys.argv[1]))).run())


if __name__ == "__main__":
    main()
