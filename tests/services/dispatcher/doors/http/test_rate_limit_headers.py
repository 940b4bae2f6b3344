"""Rate-limit headers: how OpenAI spells them, and that they say what the core's quotas say."""

from typing import Any

import aiohttp
import pytest

from services.dispatcher.admission.quotas import QuotaUsage, RateLimitStatus
from services.dispatcher.doors.http.rate_limit_headers import format_duration, rate_limit_headers
from tests.services.dispatcher.door_requests import with_doors
from tests.services.dispatcher.doors.test_authentication import ACME, OTHER, tenants
from tests.services.dispatcher.running_doors import Doors


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.0004, "1ms"), (0.017, "17ms"), (0.9999, "999ms"), (8.64, "8.64s"), (60, "1m0s"), (361, "6m1s")],
)
def test_durations_as_openai_writes_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_only_quotas_that_there_are_have_headers() -> None:
    assert rate_limit_headers(QuotaUsage()) == {}
    assert rate_limit_headers(QuotaUsage(tokens=RateLimitStatus(100, 7, 55.8))) == {
        "x-ratelimit-limit-tokens": "100",
        "x-ratelimit-remaining-tokens": "7",
        "x-ratelimit-reset-tokens": "55.8s",
    }


async def ask(cluster: Doors, key: str, **fields: Any) -> tuple[int, dict[str, str]]:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session,
        session.post(f"{cluster.url}/v1/completions", json={"prompt": [5] * 10, **fields}) as answer,
    ):
        await answer.read()
        return answer.status, {name: value for name, value in answer.headers.items() if name.startswith("x-ratelimit")}


@pytest.mark.parametrize("streams", [False, True])
def test_answers_and_refusals_say_what_is_left(streams: bool) -> None:
    async def test(cluster: Doors) -> None:
        status, first = await ask(cluster, ACME, max_tokens=20, stream=streams)
        assert (status, first["x-ratelimit-limit-requests"], first["x-ratelimit-limit-tokens"]) == (200, "2", "600")
        assert first["x-ratelimit-remaining-requests"] == "1"
        assert 570 <= int(first["x-ratelimit-remaining-tokens"]) < 600
        status, second = await ask(cluster, ACME, max_tokens=20, stream=streams)
        assert (status, second["x-ratelimit-remaining-requests"]) == (200, "0")
        assert second["x-ratelimit-reset-requests"].endswith("s")
        status, third = await ask(cluster, ACME, max_tokens=20, stream=streams)
        assert (status, third["x-ratelimit-remaining-requests"]) == (429, "0")
        assert len(third) == 6
        status, invalid = await ask(cluster, ACME, frobnicate=1)
        assert (status, len(invalid)) == (400, 6)

    with_doors(test, tenants=tenants(requests_per_minute=2, tokens_per_minute=600))


def test_without_quotas_there_are_none() -> None:
    async def test(cluster: Doors) -> None:
        assert await ask(cluster, OTHER, max_tokens=2) == (200, {})
        assert await ask(cluster, "dk-wrong", max_tokens=2) == (401, {})

    with_doors(test, tenants=tenants(requests_per_minute=2))
