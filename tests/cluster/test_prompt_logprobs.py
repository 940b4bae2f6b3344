"""Log-probabilities of prompts with real engines and real clients: the same ones whatever is killed meanwhile."""

import asyncio
import os
import signal
from typing import Any

import openai
import pytest

from cli.launch.cluster_process import ClusterProcess
from dunlin.client import Client
from dunlin.client.async_client import AsyncClient
from dunlin.client.results import Generation
from dunlin.messages.fleet import MemberStatus

pytestmark = pytest.mark.cluster

PROMPT = [5 + 13 * token % 400 for token in range(260)]
WANTED: dict[str, Any] = {"max_tokens": 4, "temperature": 0.0, "prompt_logprobs": 2}
REQUESTS = 24


def said(answer: Generation) -> tuple[Any, ...]:
    return answer.prompt_logprobs, answer.prompt_ranks, answer.prompt_top_logprobs, answer.tokens


def test_the_doors_say_the_same_of_a_prompt_whoever_computed_its_beginning(cluster: ClusterProcess) -> None:
    asked: dict[str, Any] = {"model": "builtin:tiny", "prompt": PROMPT, "temperature": 0}
    with Client(cluster.grpc) as client, openai.OpenAI(base_url=f"{cluster.http}/v1", api_key="none") as http:
        first, again = client.generate(PROMPT, **WANTED), client.generate(PROMPT, **WANTED)
        own = http.completions.create(**asked, max_tokens=4, extra_body={"prompt_logprobs": 2}).choices[0]
        echoed = http.completions.create(**asked, max_tokens=0, echo=True, logprobs=2)
        text = http.completions.create(model="builtin:tiny", prompt="Once, naïve", max_tokens=0, echo=True)
        chunks = list(http.completions.create(**asked, max_tokens=4, echo=True, logprobs=0, stream=True))
    assert len(first.prompt_logprobs) == len(PROMPT) - 1
    assert said(again) == said(first)
    entries = own.prompt_logprobs  # vLLM's
    assert entries[0] is None
    found = [entry[str(token)] for entry, token in zip(entries[1:], PROMPT[1:], strict=True)]
    assert [entry["rank"] for entry in found] == list(first.prompt_ranks)
    assert [entry["logprob"] for entry in found] == list(first.prompt_logprobs), "bit by bit"
    assert text.choices[0].text == "Once, naïve"
    logprobs = echoed.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs == [None, *first.prompt_logprobs]
    assert (echoed.usage.completion_tokens if echoed.usage else None) == 0
    streamed = [value for chunk in chunks for value in (chunk.choices[0].logprobs.token_logprobs or ())]
    assert streamed[: len(PROMPT)] == [None, *first.prompt_logprobs]
    assert len(streamed) == len(PROMPT) + 4
    assert "".join(chunk.choices[0].text for chunk in chunks).startswith(echoed.choices[0].text)


class Listening:
    """Clients that ask for many prompts at once. `heard`: log-probabilities that came so far, of all of them."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._changed = asyncio.Event()
        self.heard = 0

    async def ask(self, number: int) -> tuple[list[float], list[int]]:
        logprobs, tokens = list[float](), list[int]()
        async for event in self._client.stream([number, *PROMPT], **WANTED):
            logprobs += event.prompt_logprobs
            tokens += event.tokens
            self.heard += len(event.prompt_logprobs)
            self._changed.set()
        return logprobs, tokens

    async def until(self, share: float) -> None:
        while self.heard < share * REQUESTS * len(PROMPT):
            self._changed.clear()
            await self._changed.wait()


async def kill(client: AsyncClient, role: str, killed: set[int]) -> None:
    """Kill a process of that role, of the dispatchers the one that the client talks to; none of those `killed`, which
    the status may show for a while.
    """
    found: list[MemberStatus] = []
    while not found:
        members = (await client.status()).members
        found = [one for one in members if one.address.role == role and one.pid not in killed]
        await asyncio.sleep(0.02)
    port = client.endpoint.rpartition(":")[2]
    talking = [one for one in found if one.endpoint.endswith(f":{port}")]
    pid = (talking or found)[0].pid
    os.kill(pid, signal.SIGKILL)
    killed.add(pid)


def test_they_are_what_they_were_after_kills_of_instances_and_of_a_dispatcher() -> None:
    flags = (
        "--instances",
        "2",
        "--dispatchers",
        "2",
        "--deterministic",
        "--set",
        "instance.scheduler.budget_tokens=16",
    )
    with ClusterProcess(*flags) as cluster:
        with Client(cluster.grpc) as client:
            alone = [client.generate([number, *PROMPT], **WANTED) for number in range(REQUESTS)]

        async def disturbed() -> list[tuple[list[float], list[int]]]:
            async with AsyncClient(cluster.grpc) as client:
                listening = Listening(client)
                asked = [asyncio.create_task(listening.ask(number)) for number in range(REQUESTS)]
                killed: set[int] = set()
                for share, role in ((0.2, "instance"), (0.4, "dispatcher"), (0.6, "instance")):
                    await listening.until(share)
                    await kill(client, role, killed)
                return list(await asyncio.gather(*asked))

        found = asyncio.run(disturbed())
    assert [logprobs for logprobs, _ in found] == [list(each.prompt_logprobs) for each in alone], "bit by bit"
    assert [tokens for _, tokens in found] == [list(each.tokens) for each in alone]
