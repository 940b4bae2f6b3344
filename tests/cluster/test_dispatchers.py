"""Two dispatchers as processes: killed, stopped, restarted and told to end while they serve streams and HTTP."""

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import aiohttp
import pytest

import dunlin
from benchmarks.harness.processes import gone
from cli.launch.cluster_process import ClusterProcess
from dunlin.client import Cancelled, DunlinError
from dunlin.messages.fleet import FleetStatus
from dunlin.messages.types import FinishReason

pytestmark = pytest.mark.cluster

TOKENS = 160
LONG = 600
"""Runs still when the signal arrives, where a test wants to see that it met the streams."""
WIDTH = 6
MAX_SILENCE_S = 15.0
"""Of a stream that changes its dispatcher, on a busy machine. A stuck dispatcher is found after 3 s of silence, and
requests without a dispatcher end after 30 s.
"""
PROMPTS = [[(31 * i + 7 * j) % 900 for j in range(24)] for i in range(WIDTH)]


@pytest.fixture(scope="module")
def pair() -> Iterator[ClusterProcess]:
    """Two dispatchers over two deterministic instances, to break; `dunlin up` starts the dead ones again."""
    with ClusterProcess("--instances", "2", "--dispatchers", "2", "--deterministic") as made:
        yield made


@pytest.fixture(scope="module")
def texts(long_texts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """What each prompt gives, undisturbed; every second one is sampled."""
    return [text[:TOKENS] for text in long_texts]


@pytest.fixture(scope="module")
def long_texts(pair: ClusterProcess) -> list[tuple[int, ...]]:
    """The same, and how they go on."""

    async def learn() -> list[tuple[int, ...]]:
        async with dunlin.AsyncClient(pair.grpc) as client:
            done = [client.generate(prompt, **options(i, LONG)) for i, prompt in enumerate(PROMPTS)]
            return [generation.tokens for generation in await asyncio.gather(*done)]

    return asyncio.run(learn())


def options(index: int, tokens: int = TOKENS) -> Any:
    sampling = {"temperature": 1.0, "seed": index} if index % 2 else {"temperature": 0.0}
    return {"max_tokens": tokens, "ignore_eos": True, **sampling}


async def whole(client: dunlin.AsyncClient, dispatchers: int = 2) -> FleetStatus:
    """When all dispatchers are there and trusted."""
    deadline_s = time.monotonic() + 300
    while time.monotonic() < deadline_s:
        with contextlib.suppress(DunlinError):
            status = await client.status()
            there = [m for m in status.members if m.address.role == "dispatcher" and m.connected and not m.suspect]
            ready = [m for m in status.members if m.instance is not None and m.instance.plan_version > 0]
            if len(there) == dispatchers and len(ready) == 2:
                return status
        await asyncio.sleep(0.1)
    raise AssertionError("the cluster is not whole again")


def running_at(status: FleetStatus) -> list[int]:
    """How many requests run at each dispatcher, by its last report."""
    return [m.dispatcher.running for m in status.members if m.dispatcher is not None]


def pid_at(status: FleetStatus, endpoint: str) -> int:
    """The dispatcher that listens there."""
    port = endpoint.rpartition(":")[2]
    return next(m.pid for m in status.members if m.address.role == "dispatcher" and m.endpoint.endswith(f":{port}"))


class Singers:
    """Streams of all prompts through one client, with the times of their tokens."""

    def __init__(self, client: dunlin.AsyncClient, length: int = TOKENS) -> None:
        self.tokens: list[list[int]] = [[] for _ in PROMPTS]
        self.times_s: list[list[float]] = [[] for _ in PROMPTS]
        self.names: list[set[str]] = [set() for _ in PROMPTS]
        self.ends: list[FinishReason] = [FinishReason.RUNNING for _ in PROMPTS]
        self._client = client
        self._length = length

    def start(self) -> "asyncio.Future[list[None]]":
        return asyncio.gather(*(self._sing(i) for i in range(WIDTH)))

    async def until(self, tokens: int) -> None:
        """All have so many."""
        while min(map(len, self.tokens)) < tokens:
            await asyncio.sleep(0.01)

    def longest_silence_s(self) -> float:
        return max(b - a for times in self.times_s for a, b in pairwise(times))

    async def _sing(self, index: int) -> None:
        async for event in self._client.stream(PROMPTS[index], **options(index, self._length)):
            assert self.ends[index] is FinishReason.RUNNING
            self.names[index].add(event.request)
            self.tokens[index] += event.tokens
            self.times_s[index] += [time.monotonic()] * len(event.tokens)
            self.ends[index] = event.finish


def test_a_dispatcher_killed_under_load_costs_no_stream_a_token(pair: ClusterProcess, long_texts: list[Any]) -> None:
    async def test() -> None:
        async with dunlin.AsyncClient(pair.grpc) as client:
            for _ in range(2):
                status = await whole(client)
                singers = Singers(client, LONG)
                singing = singers.start()
                await singers.until(TOKENS // 8)
                os.kill(pid_at(status, client.endpoint), signal.SIGKILL)
                await singing
                assert [tuple(tokens) for tokens in singers.tokens] == long_texts
                assert set(singers.ends) == {FinishReason.LENGTH}
                assert [len(names) for names in singers.names] == [1] * WIDTH
                assert singers.longest_silence_s() < MAX_SILENCE_S
                # Under load some may have begun at the other one.
                explained = [await client.explain(name) for names in singers.names for name in names]
                assert "Adopted" in [reason.kind for each in explained for reason in each.reasons]

    asyncio.run(test())


def test_a_dispatcher_that_hangs_is_left_and_changes_nothing_when_it_wakes(
    pair: ClusterProcess, texts: list[Any]
) -> None:
    async def test() -> None:
        async with dunlin.AsyncClient(pair.grpc) as client:
            status = await whole(client)
            singers = Singers(client)
            singing = singers.start()
            await singers.until(TOKENS // 8)
            pid = pid_at(status, client.endpoint)
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.sleep(1.0)
                again = Singers(client)  # new ones meet it as well
                others = again.start()
                await asyncio.gather(singing, others)
            finally:
                os.kill(pid, signal.SIGCONT)
            for one in (singers, again):
                assert [tuple(tokens) for tokens in one.tokens] == texts
            assert singers.longest_silence_s() < MAX_SILENCE_S
            await asyncio.sleep(1.0)
            assert not gone(pid)
            async with asyncio.timeout(300):
                while running_at(await whole(client)) != [0, 0]:
                    await asyncio.sleep(0.1)
            singers = Singers(client)
            await singers.start()
            assert [tuple(tokens) for tokens in singers.tokens] == texts

    asyncio.run(test())


def test_a_dispatcher_told_to_end_hands_its_streams_over(pair: ClusterProcess, texts: list[Any]) -> None:
    async def test() -> None:
        async with dunlin.AsyncClient(pair.grpc) as client:
            status = await whole(client)
            singers = Singers(client)
            singing = singers.start()
            await singers.until(TOKENS // 8)
            os.kill(pid_at(status, client.endpoint), signal.SIGTERM)
            await singing
            assert [tuple(tokens) for tokens in singers.tokens] == texts

    asyncio.run(test())


def test_the_blocking_client_goes_on_too(pair: ClusterProcess, texts: list[Any]) -> None:
    with dunlin.Client(pair.grpc) as client:
        status = asyncio.run(_status(pair))
        got: list[int] = []
        killed = False
        for event in client.stream(PROMPTS[1], **options(1)):
            got += event.tokens
            if len(got) > TOKENS // 8 and not killed:
                os.kill(pid_at(status, client.endpoint), signal.SIGKILL)
                killed = True
        assert tuple(got) == texts[1]
        status = asyncio.run(_status(pair))
        stopped = pid_at(status, client.endpoint)
        got.clear()
        try:
            for event in client.stream(PROMPTS[0], **options(0)):
                got += event.tokens
                if len(got) == TOKENS // 8:
                    os.kill(stopped, signal.SIGSTOP)
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert tuple(got) == texts[0]


async def _status(pair: ClusterProcess) -> FleetStatus:
    async with dunlin.AsyncClient(pair.grpc) as client:
        return await whole(client)


def test_a_request_is_cancelled_wherever_it_runs(pair: ClusterProcess) -> None:
    with dunlin.Client(pair.grpc.split(",")[::-1]) as client:
        asyncio.run(_status(pair))
        events = client.stream(PROMPTS[0], **{**options(0), "max_tokens": 1000})
        name = next(events).request
        with dunlin.Client(pair.grpc) as other:
            assert other.cancel(name)
            assert not other.cancel(name)
        with pytest.raises(Cancelled):
            list(events)


def test_a_client_waits_for_the_only_dispatcher_to_come_back(cluster: ClusterProcess) -> None:
    with dunlin.Client(cluster.grpc) as client:
        wanted = client.generate(PROMPTS[0], **options(0)).tokens
        (pid,) = [m.pid for m in client.status().members if m.address.role == "dispatcher"]
        got: list[int] = []
        for event in client.stream(PROMPTS[0], **options(0)):
            got += event.tokens
            if len(got) > TOKENS // 8 and not gone(pid):
                os.kill(pid, signal.SIGKILL)
        assert tuple(got) == wanted


def test_http_retries_join_the_running_request_at_another_dispatcher(pair: ClusterProcess) -> None:
    body = {"prompt": PROMPTS[2], "max_tokens": LONG, "ignore_eos": True, "temperature": 1.0}
    headers = {"Idempotency-Key": "night shift 7"}
    first, second = pair.http_doors

    async def post(session: aiohttp.ClientSession, url: str, name: str) -> Any:
        async with session.post(f"{url}/v1/completions", json=body, headers={"Idempotency-Key": name}) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()

    async def test() -> None:
        async with dunlin.AsyncClient(pair.grpc) as client, aiohttp.ClientSession() as session:
            status = await whole(client)
            by_port = {m.endpoint.rpartition(":")[2]: m.pid for m in status.members}
            pid = by_port[pair.grpc.split(",")[0].rpartition(":")[2]]
            cut = b""
            with contextlib.suppress(aiohttp.ClientError):
                async with session.post(
                    f"{first}/v1/completions", json={**body, "stream": True}, headers=headers
                ) as answer:
                    name = answer.headers["X-Request-Id"]
                    async for line in answer.content:
                        cut += line
                        if line.startswith(b"data:") and cut.count(b"data:") == TOKENS // 8:
                            os.kill(pid, signal.SIGKILL)
            assert b"[DONE]" not in cut
            whole_answer = await post(session, second, "night shift 7")
            assert whole_answer["usage"]["completion_tokens"] == LONG
            assert whole_answer["id"] == name
            again = await post(session, second, "night shift 7")
            assert again["choices"] == whole_answer["choices"]
            explained = await client.explain(name)
            kinds = [reason.kind for reason in explained.reasons]
            assert kinds.count("Place") == 1
            assert "Adopted" in kinds
            async with session.post(
                f"{second}/v1/completions", json={**body, "max_tokens": 3}, headers=headers
            ) as answer:
                assert answer.status == 422

    asyncio.run(test())


def test_threads_share_a_client_while_its_dispatcher_dies(pair: ClusterProcess, texts: list[Any]) -> None:
    status = asyncio.run(_status(pair))
    with dunlin.Client(pair.grpc) as client:
        results: dict[int, tuple[int, ...]] = {}

        def sing(index: int) -> None:
            results[index] = client.generate(PROMPTS[index], **options(index)).tokens

        threads = [threading.Thread(target=sing, args=(i,)) for i in range(WIDTH)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        os.kill(pid_at(status, client.endpoint), signal.SIGKILL)
        for thread in threads:
            thread.join(300)
        assert [results.get(i) for i in range(WIDTH)] == texts
