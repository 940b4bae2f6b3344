"""The responder: streamed and whole answers of several prompts and choices, with usage and log-probabilities."""

import asyncio
import json
from typing import Any

import openai
import pytest

from tests.services.dispatcher.door_requests import MODEL, with_doors
from tests.services.dispatcher.running_doors import Doors


@pytest.mark.parametrize("streams", [False, True])
def test_the_usage_tells_what_of_the_prompts_was_cached(streams: bool) -> None:
    async def test(cluster: Doors) -> None:
        cluster.instance.reuses = 2
        parameters: dict[str, Any] = {
            "model": MODEL,
            "prompt": ["Once upon a time", "there was a heron"],
            "n": 2,
            "max_tokens": 3,
        }
        if streams:
            options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
            stream = await cluster.client().completions.create(**parameters, **options)
            usage = [chunk async for chunk in stream][-1].usage
        else:
            usage = (await cluster.client().completions.create(**parameters)).usage
        assert usage.completion_tokens == 12
        assert usage.prompt_tokens_details.cached_tokens == 4

    with_doors(test)


def test_chat_logprobs() -> None:
    async def test(cluster: Doors) -> None:
        answer = await cluster.client().chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Hi"}], logprobs=True, top_logprobs=2, max_tokens=3
        )
        assert cluster.instance.placed[0].sampling.logprobs == 2
        assert answer.choices[0].logprobs is not None
        content = answer.choices[0].logprobs.content
        assert content is not None
        assert [entry.logprob for entry in content] == [-0.25] * 3
        assert b"".join(bytes(entry.bytes or ()) for entry in content).decode() == cluster.text(3)
        assert [len(entry.top_logprobs) for entry in content] == [2, 2, 2]
        assert content[0].top_logprobs[0].token == content[0].token

    with_doors(test)


def test_completions_of_several_prompts_and_choices() -> None:
    async def test(cluster: Doors) -> None:
        answer = await cluster.client().completions.create(
            model=MODEL, prompt=["one", "two words"], n=2, max_tokens=5, seed=3, temperature=0.5
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
        assert {choice.text for choice in answer.choices} == {cluster.text(5)}
        samplings = [place.sampling for place in cluster.instance.placed]
        assert [(one.seed, one.choice, one.temperature) for one in samplings] == [
            (3, 0, 0.5), (3, 1, 0.5), (3, 0, 0.5), (3, 1, 0.5),
        ]  # fmt: skip
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 20

    with_doors(test)


def test_choices_without_a_seed_share_a_drawn_one() -> None:
    async def test(cluster: Doors) -> None:
        for _ in range(2):
            await cluster.client().completions.create(model=MODEL, prompt="x", n=3, max_tokens=1)
        seeds = [place.sampling.seed for place in cluster.instance.placed]
        assert len({*seeds[:3]}) == len({*seeds[3:]}) == 1
        assert seeds[0] != seeds[3]

    with_doors(test)


def test_completion_logprobs_line_up_with_the_text() -> None:
    async def test(cluster: Doors) -> None:
        answer = await cluster.client().completions.create(model=MODEL, prompt="x", max_tokens=30, logprobs=2)
        shown = answer.choices[0].logprobs
        assert shown is not None
        assert shown.tokens is not None
        assert shown.text_offset is not None
        assert len(shown.tokens) == len(shown.token_logprobs or ()) == len(shown.top_logprobs or ()) == 30
        text = answer.choices[0].text
        for token, offset in zip(shown.tokens, shown.text_offset, strict=True):
            assert token.startswith("bytes:") or text[offset:].startswith(token)

    with_doors(test)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_stop_string_cuts_the_text_and_cancels_the_rest(streamed: bool) -> None:
    async def test(cluster: Doors) -> None:
        openai_client = cluster.client()
        arguments: Any = {"model": MODEL, "prompt": "x", "max_tokens": 900, "stop": ["heron, and", "zzz"]}
        if streamed:
            chunks = [c async for c in await openai_client.completions.create(**arguments, stream=True)]
            text = "".join(chunk.choices[0].text for chunk in chunks)
            reason = chunks[-1].choices[0].finish_reason
        else:
            answer = await openai_client.completions.create(**arguments)
            text, reason = answer.choices[0].text, answer.choices[0].finish_reason
        assert (text, reason) == ("Once upon a time there was a small ", "stop")
        await cluster.instance.until(lambda: cluster.instance.cancelled)
        assert cluster.core.report().finished_total == 1
        assert cluster.instance.running == []

    with_doors(test)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_client_that_leaves_cancels_its_request(streamed: bool) -> None:
    async def test(cluster: Doors) -> None:
        cluster.instance.held = True
        body = json.dumps({"prompt": "x", "max_tokens": 900, "n": 2, "stream": streamed}).encode()
        reader, writer = await asyncio.open_connection(*cluster.url.removeprefix("http://").split(":"))
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        await cluster.instance.until(lambda: len(cluster.instance.placed) == 2)
        if streamed:
            cluster.instance.one()
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
            assert b'"text": "' in await reader.readuntil(b"\n\n")
        writer.transport.abort()
        await cluster.instance.until(lambda: len(cluster.instance.cancelled) == 2)
        assert cluster.core.report().cancelled_total == 2
        assert cluster.instance.running == []

    with_doors(test)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_dispatcher_that_stops_ends_its_streams_with_a_clear_error(streamed: bool) -> None:
    async def test(cluster: Doors) -> None:
        cluster.instance.held = True
        call = asyncio.create_task(_all(cluster, streamed))
        await cluster.instance.until(lambda: cluster.instance.placed)
        cluster.gateway.shut_down()
        with pytest.raises(openai.APIError, match="cut off: the dispatcher is stopping"):
            await call
        assert len(cluster.instance.cancelled) == 1
        with pytest.raises(openai.InternalServerError, match="this dispatcher is stopping"):
            await cluster.client().completions.create(model=MODEL, prompt="x")

    with_doors(test)


async def _all(cluster: Doors, streamed: bool) -> None:
    made: Any = await cluster.client().completions.create(model=MODEL, prompt="x", stream=streamed)
    if streamed:
        async for _ in made:
            pass


@pytest.mark.parametrize("prompt", ["Once upon a time", list(range(200, 240))])
def test_echo_with_logprobs_streamed_and_whole(prompt: Any) -> None:
    async def test(cluster: Doors) -> None:
        asked: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": 3, "echo": True, "logprobs": 1, "n": 2}
        whole = await cluster.client().completions.create(**asked)
        assert cluster.instance.placed[0].sampling.prompt_logprobs == 1
        chunks = [chunk async for chunk in await cluster.client().completions.create(**asked, stream=True)]
        for choice in whole.choices:
            parts = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
            assert "".join(part.text for part in parts) == choice.text
            assert choice.logprobs is not None
            for name, values in choice.logprobs.model_dump().items():
                assert [one for part in parts for one in getattr(part.logprobs, name)] == values
            count = len(choice.logprobs.tokens or ()) - 3
            assert choice.logprobs.token_logprobs == [None, *(-float(n) for n in range(1, count)), *[-0.25] * 3]
            assert choice.text.endswith(cluster.text(3))
            assert count == cluster.instance.placed[0].prompt_tokens

    with_doors(test)


@pytest.mark.parametrize("streams", [False, True])
def test_echo_alone_generates_nothing_that_anyone_sees(streams: bool) -> None:
    async def test(cluster: Doors) -> None:
        asked: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 0, "echo": True}
        if streams:
            made = await cluster.client().completions.create(
                **asked, logprobs=0, stream=True, stream_options={"include_usage": True}
            )
            chunks = [chunk async for chunk in made]
            (choice,), usage = chunks[0].choices, chunks[-1].usage
            assert len(chunks) == 2
        else:
            answer = await cluster.client().completions.create(**asked, logprobs=0)
            (choice,), usage = answer.choices, answer.usage
        assert (choice.text, choice.finish_reason) == ("Once upon a time", "length")
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs == [None, -1.0, -2.0, -3.0]
        assert usage is not None
        assert (usage.completion_tokens, usage.prompt_tokens) == (0, 4)

    with_doors(test)


def test_prompt_logprobs_as_vllm_has_them() -> None:
    async def test(cluster: Doors) -> None:
        more: dict[str, Any] = {"extra_body": {"prompt_logprobs": 2}, "max_tokens": 1, "model": MODEL}
        text = await cluster.client().completions.create(prompt=["Once upon a time", "there"], **more)
        first, second = (choice.model_dump()["prompt_logprobs"] for choice in text.choices)
        assert (len(first), len(second)) == (4, 2)
        assert [entry and sorted(one["rank"] for one in entry.values()) for entry in first[:2]] == [None, [1, 1, 2]]
        messages: Any = [{"role": "user", "content": "Hi"}]
        chat = (await cluster.client().chat.completions.create(messages=messages, **more)).model_dump()
        assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]

    with_doors(test)
