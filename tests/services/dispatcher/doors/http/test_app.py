"""The HTTP door with the real `openai` package and with bare HTTP, over the real core."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from dunlin.auth.tenants import RequestObjectives, Tenant, hash_key
from dunlin.messages.door import Quota
from dunlin.messages.types import RequestClass
from dunlin.text.chat_template import ChatTemplate
from dunlin.wire.errors import StartError
from services.dispatcher.doors.http.app import bind
from tests.services.dispatcher.door_requests import MODEL, post, with_doors
from tests.services.dispatcher.running_doors import Doors, model

# --- the openai package ---


def test_a_chat() -> None:
    async def test(cluster: Doors) -> None:
        cluster.instance.end_after = 7
        answer = await cluster.client().chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Tell me a story"}]
        )
        choice = answer.choices[0]
        assert (choice.message.role, choice.message.content) == ("assistant", cluster.text(7))
        assert choice.finish_reason == "stop"
        assert answer.usage is not None
        prompt = len(cluster.instance.placed[0].tokens)
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, 8)
        assert (answer.id, answer._request_id) == ("req-2a-1", "req-2a-1")
        rendered = cluster.gateway.model.tokenizer.decode(list(cluster.instance.placed[0].tokens))
        assert "Tell me a story" in rendered

    with_doors(test)


def test_a_streamed_chat_says_the_same() -> None:
    async def test(cluster: Doors) -> None:
        stream = await cluster.client().chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
            max_completion_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == cluster.text(40)
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
        assert all(c.usage is None for c in chunks[:-1])
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 40

    with_doors(test)


def test_a_name_goes_to_a_template_that_reads_it() -> None:
    async def test(cluster: Doors) -> None:
        await cluster.client().chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi", "name": "Ann"}], max_tokens=1
        )
        prompt = list(cluster.instance.placed[0].tokens)
        assert cluster.gateway.model.tokenizer.decode(prompt) == "Ann says Hi"

    source = "{% for m in messages %}{{ m.name }} says {{ m.content }}{% endfor %}"
    with_doors(test, served=model(template=ChatTemplate(source, {}, Path("chat_template.jinja"))))


@pytest.mark.parametrize("prompt", [[5, 6, 7], [[5, 6, 7]]])
def test_completions_of_token_ids(prompt: Any) -> None:
    async def test(cluster: Doors) -> None:
        await cluster.client().completions.create(model=MODEL, prompt=prompt)
        place = cluster.instance.placed[0]
        assert (list(place.tokens), place.max_tokens) == ([5, 6, 7], 16)

    with_doors(test)


def test_extra_fields_reach_the_instance() -> None:
    async def test(cluster: Doors) -> None:
        extra: dict[str, Any] = {
            "ignore_eos": True, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2, "stop_token_ids": [9],
            "request_class": "batch", "timeout_s": 9.5,
        }  # fmt: skip
        await cluster.client().completions.create(
            model=MODEL, prompt="x", extra_body=extra, logit_bias={"7": 2}, presence_penalty=0.5, top_p=0.9
        )
        place = cluster.instance.placed[0]
        sampling = place.sampling
        assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (5, 0.1, 1.2)
        assert (sampling.presence_penalty, sampling.top_p) == (0.5, 0.9)
        assert (list(sampling.bias_tokens), list(sampling.bias_values)) == ([7], [2.0])
        assert list(place.stop_ids) == [9]
        assert place.request_class is RequestClass.BATCH

    with_doors(test)


def test_without_ignore_eos_the_models_ends_stop_it() -> None:
    async def test(cluster: Doors) -> None:
        await cluster.client().completions.create(model=MODEL, prompt="x", extra_body={"stop_token_ids": [9]})
        assert list(cluster.instance.placed[0].stop_ids) == [*cluster.gateway.model.eos_ids, 9]

    with_doors(test)


def test_the_synchronous_client_works_too() -> None:
    async def test(cluster: Doors) -> None:
        def use() -> tuple[str, str, list[str]]:
            sync = openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0, timeout=300)
            whole = sync.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "Hi"}], max_tokens=6
            )
            stream = sync.completions.create(model=MODEL, prompt="x", max_tokens=6, stream=True)
            text = "".join(chunk.choices[0].text for chunk in stream)
            return whole.choices[0].message.content or "", text, [one.id for one in sync.models.list()]

        assert await asyncio.to_thread(use) == (cluster.text(6), cluster.text(6), [MODEL])

    with_doors(test)


def test_the_model_is_listed_and_others_are_not_found() -> None:
    async def test(cluster: Doors) -> None:
        found = await cluster.client().models.retrieve(MODEL)
        assert (found.id, found.object, found.owned_by) == (MODEL, "model", "dunlin")
        with pytest.raises(openai.NotFoundError) as caught:
            await cluster.client().models.retrieve("gpt-0")
        assert caught.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError, match="'gpt-0' does not exist here"):
            await cluster.client().completions.create(model="gpt-0", prompt="x")

    with_doors(test)


# --- the rest ---


def test_health_metrics_and_version() -> None:
    async def test(cluster: Doors) -> None:
        await cluster.client().completions.create(model=MODEL, prompt="x", max_tokens=5)
        await post(cluster, "/v1/completions", {"prompt": "x", "max_tokens": 5000})
        async with aiohttp.ClientSession(cluster.url) as session:
            health = await session.get("/health")
            assert (health.status, await health.json()) == (200, {"status": "ok"})
            assert (await (await session.get("/version")).json())["version"]
            text = await (await session.get("/metrics")).text()
        for line in (
            'dunlin_requests_total{class="interactive",door="http",finish="length",tenant=""} 1.0',
            'dunlin_generated_tokens_total{class="interactive",door="http",tenant=""} 5.0',
            'dunlin_time_to_first_token_seconds_count{class="interactive",door="http",tenant=""} 1.0',
            'dunlin_time_per_output_token_seconds_count{class="interactive",door="http",tenant=""} 1.0',
            'dunlin_request_queue_time_seconds_count{class="interactive",door="http",tenant=""} 1.0',
            'dunlin_requests_refused_total{code="too_long",door="http",tenant=""} 1.0',
            'dunlin_calls_total{door="http",path="/v1/completions",status="200"} 1.0',
        ):
            assert line in text.splitlines()
        assert "dunlin_dispatcher_" not in text, "the monitor's page has these, and both are scraped"

    with_doors(test)


def test_health_is_503_while_no_instance_serves() -> None:
    async def test(cluster: Doors) -> None:
        async with aiohttp.ClientSession(cluster.url) as session:
            assert (await session.get("/health")).status == 503

    with_doors(test, serving=False)


def test_a_taken_port_is_a_clear_error() -> None:
    taken = bind("127.0.0.1", 0)
    port = taken.getsockname()[1]
    with pytest.raises(StartError, match=f"cannot listen for HTTP on 127.0.0.1:{port}: .*; choose another"):
        bind("127.0.0.1", port)
    taken.close()


def test_the_model_needs_no_weights() -> None:
    assert model().vocabulary > 256


@pytest.mark.parametrize(
    ("header", "body", "wanted"),
    [
        ("batch", {}, RequestClass.BATCH),
        ("Batch", {"request_class": "interactive"}, RequestClass.BATCH),
        ("interactive", {"service_tier": "flex"}, RequestClass.INTERACTIVE),
        (None, {"service_tier": "flex"}, RequestClass.BATCH),
        (None, {}, RequestClass.INTERACTIVE),
    ],
)
def test_a_header_sets_the_class(header: str | None, body: dict[str, str], wanted: RequestClass) -> None:
    async def test(cluster: Doors) -> None:
        headers = {"X-Request-Class": header} if header is not None else {}
        async with cluster.client() as ai:
            messages: Any = [{"role": "user", "content": "hi"}]
            await ai.chat.completions.create(
                model=MODEL, messages=messages, max_tokens=1, extra_body=body, extra_headers=headers
            )
            with pytest.raises(openai.BadRequestError, match="X-Request-Class"):
                await ai.completions.create(model=MODEL, prompt="x", extra_headers={"X-Request-Class": "urgent"})
        assert [place.request_class for place in cluster.instance.placed] == [wanted]

    with_doors(test)


def test_objectives_of_a_request_and_of_its_tenant() -> None:
    async def test(cluster: Doors) -> None:
        async with cluster.client("dk-a") as ai:
            messages: Any = [{"role": "user", "content": "hi"}]
            for body in ({}, {"ttft_objective_s": 3, "tpot_objective_s": 0.5}):
                await ai.chat.completions.create(model=MODEL, messages=messages, max_tokens=1, extra_body=body)
            with pytest.raises(
                openai.BadRequestError, match=r"tpot_objective_s: must be at least 0\.05 here"
            ) as caught:
                await ai.completions.create(model=MODEL, prompt="x", extra_body={"tpot_objective_s": 0.01})
            assert caught.value.param == "tpot_objective_s"
            with pytest.raises(openai.BadRequestError, match="ttft_objective_s: must be above 0") as caught:
                await ai.completions.create(model=MODEL, prompt="x", extra_body={"ttft_objective_s": 0})
            assert caught.value.param == "ttft_objective_s"
        asked = [(place.ttft_objective_s, place.tpot_objective_s) for place in cluster.instance.placed]
        assert asked == [(0.75, 0.0), (3.0, 0.5)]

    acme = Tenant("acme", (hash_key("dk-a"),), Quota("acme"), objectives=RequestObjectives(ttft_s=0.75))
    with_doors(test, tenants=(acme,))
