"""Prefix reuse with real engines: a chat's next turn computes only what is new, and nobody can tell by its text."""

import asyncio
from typing import Any

import pytest

from cli.launch.cluster_process import ClusterProcess
from dunlin.client import Client
from dunlin.client.async_client import AsyncClient
from dunlin.client.results import Generation

pytestmark = pytest.mark.cluster

SYSTEM = [5 + 11 * token % 400 for token in range(150)]


def ask(client: Client, prompt: list[int], tenant: str, **options: Any) -> Generation:
    return client.generate(prompt, max_tokens=24, seed=7, temperature=0.8, logprobs=2, tenant=tenant, **options)


def test_the_next_turn_reuses_the_last_and_says_what_it_would_have_said(cluster: ClusterProcess) -> None:
    with Client(cluster.grpc) as client:
        first = ask(client, SYSTEM, "prefix-a")
        turn = [*SYSTEM, *first.tokens, 9, 8, 7]
        second = ask(client, turn, "prefix-a")
        computed = ask(client, turn, "prefix-b")
    assert (first.cached_tokens, computed.cached_tokens) == (0, 0), "a tenant finds nothing of another's"
    # 173 tokens of the first turn have KV, the last one that it said has none: ten blocks.
    assert second.cached_tokens == 160
    assert second.tokens == computed.tokens
    assert second.logprobs == computed.logprobs, "bit by bit"


def test_many_that_share_a_beginning_at_once_all_say_what_each_says_alone(cluster: ClusterProcess) -> None:
    async def run(tenant: str, at_once: bool) -> list[tuple[int, ...]]:
        async with AsyncClient(cluster.grpc) as client:
            asks = [
                client.generate([*SYSTEM[:100], number], max_tokens=12, seed=number, temperature=1.0, tenant=tenant)
                for number in range(12)
            ]
            found = list(await asyncio.gather(*asks)) if at_once else [await each for each in asks]
        return [each.tokens for each in found]

    assert asyncio.run(run("prefix-c", True)) == asyncio.run(run("prefix-d", False))
