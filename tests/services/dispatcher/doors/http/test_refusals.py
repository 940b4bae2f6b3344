"""The HTTP door's refusals and failures: the status, OpenAI's shape, and the field that is wrong."""

import asyncio
from typing import Any

import openai
import pytest

from dunlin.effects import Gone
from services.dispatcher.doors.http.app import HttpConfig
from tests.services.dispatcher.door_requests import MODEL, post, with_doors
from tests.services.dispatcher.factories import A
from tests.services.dispatcher.running_doors import Doors

HI = {"messages": [{"role": "user", "content": "x"}]}
PART = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "prompt", "must be a string"),
        ({"prompt": []}, "prompt", "must be a string"),
        ({"prompt": ""}, "prompt", "empty"),
        ({"prompt": [[]]}, "prompt", "empty"),
        ({"prompt": ["a", 3]}, "prompt.1", "list of token ids"),
        ({"prompt": [1, "a"]}, "prompt", "must be a whole number"),
        ({"prompt": [-1]}, "prompt", "between 0"),
        ({"prompt": [2**31]}, "prompt", "between 0"),
        ({"prompt": [999_999]}, "prompt", "outside the vocabulary"),
        ({"prompt": "\ud800"}, "prompt", "not valid Unicode"),
        ({"prompt": "x", "frobnicate": 1}, "frobnicate", "not a field that is known here"),
        ({"prompt": "x", "echo": 1}, "echo", "must be true or false"),
        ({"prompt": "x", "echo": True, "max_tokens": -1}, "max_tokens", "between 1"),
        ({"prompt": "x", "echo": True, "max_tokens": False}, "max_tokens", "whole number"),
        ({"prompt": "x", "prompt_logprobs": -1}, "prompt_logprobs", "between 0"),
        ({"prompt": "x", "prompt_logprobs": 21}, "prompt_logprobs", "between 0"),
        ({"prompt": "x", "echo": True, "logprobs": 21}, "logprobs", "between 0"),
        ({"prompt": "x", "prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "whole answers alone"),
        ({"prompt": "x", "best_of": 2}, "best_of", "must be equal to n"),
        ({"prompt": "x", "best_of": 1, "n": 2}, "best_of", "must be equal to n"),
        ({"prompt": "x", "max_tokens": -1}, "max_tokens", "between 1"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens", "between 1"),
        ({"prompt": "x", "max_tokens": 2.5}, "max_tokens", "whole number"),
        ({"prompt": "x", "max_tokens": True}, "max_tokens", "whole number"),
        ({"prompt": "x", "max_tokens": 10**400}, "max_tokens", "between 1"),
        (
            {"prompt": "x", "max_tokens": 1000},
            None,
            "This model's maximum context length is 1000 tokens, but the prompt has 1 and ",
        ),
        ({"prompt": [5] * 1000}, None, "the prompt alone has 1000: shorten it"),
        ({"prompt": "x", "temperature": -0.1}, "temperature", "at least 0"),
        ({"prompt": "x", "temperature": "hot"}, "temperature", "must be a number"),
        ({"prompt": "x", "temperature": 1e999}, None, "Infinity is no JSON number"),
        ({"prompt": "x", "temperature": float("nan")}, None, "NaN is no JSON number"),
        ({"prompt": "x", "top_p": 0}, "top_p", "above 0"),
        ({"prompt": "x", "top_k": -2}, "top_k", "between -1"),
        ({"prompt": "x", "min_p": 1.5}, "min_p", "at most 1"),
        ({"prompt": "x", "repetition_penalty": 0}, "repetition_penalty", "above 0"),
        ({"prompt": "x", "repetition_penalty": 1e-300}, "repetition_penalty", "above 0.001"),
        ({"prompt": "x", "presence_penalty": 3}, "presence_penalty", "at most 2"),
        ({"prompt": "x", "seed": 2**63}, "seed", "more than 64 bits"),
        ({"prompt": "x", "n": 0}, "n", "between 1"),
        ({"prompt": ["x"] * 65, "n": 2}, "n", "more than 128"),
        ({"prompt": ["x"] * 129}, "prompt", "at most 128"),
        ({"prompt": "x", "stop": ""}, "stop", "1 to 1024"),
        ({"prompt": "x", "stop": 7}, "stop", "string or a list"),
        ({"prompt": "x", "stop": ["a"] * 17}, "stop", "at most 16"),
        ({"prompt": "x", "stop_token_ids": [1.5]}, "stop_token_ids", "whole number"),
        ({"prompt": "x", "stop_token_ids": [5, 999_999]}, "stop_token_ids", "999999 is outside the vocabulary"),
        ({"prompt": "x", "logit_bias": {"999999": 1}}, "logit_bias", "999999 is outside the vocabulary"),
        ({"prompt": "x", "logprobs": 21}, "logprobs", "between 0 and 20"),
        ({"prompt": "x", "logprobs": True}, "logprobs", "whole number"),
        ({"prompt": "x", "stream": "yes"}, "stream", "true or false"),
        ({"prompt": "x", "stream_options": {"include_usage": True}}, "stream_options", "stream: true only"),
        ({"prompt": "x", "stream": True, "stream_options": {"x": 1}}, "stream_options.x", "not a field"),
        ({"prompt": "x", "logit_bias": {"a": 1}}, "logit_bias", "not a token id"),
        ({"prompt": "x", "logit_bias": {"1": 101}}, "logit_bias.1", "at most 100"),
        ({"prompt": "x", "ignore_eos": 1}, "ignore_eos", "true or false"),
        ({"prompt": "x", "timeout_s": 0}, "timeout_s", "above 0"),
        ({"prompt": "x", "request_class": "vip"}, "request_class", "interactive, batch"),
        ({"prompt": "x", "model": 7}, "model", "must be a string"),
        ({"prompt": "x", "logit_bias": {"1": 1, "01": 2}}, "logit_bias", "twice"),
        ({"prompt": "x", "\ud800": 1}, "\\ud800", "not a field"),
        (b'{"prompt": "x", "seed": 1, "seed": 2}', None, "an object has 'seed' more than once"),
        (b'{"prompt": "x", "logit_bias": {"5": 1, "5": 2}}', None, "an object has '5' more than once"),
        (b'{"prompt": "x", "seed": ' + b"9" * 5_000 + b"}", None, "a whole number has thousands of digits"),
        (b'{"prompt": ' + b"[" * 5_000, None, "too many objects and lists inside each other"),
        ([], "body", "JSON object"),
        (b"{", None, "not valid JSON"),
        (b"", None, "not valid JSON"),
        (b"\xff\xfe", None, "not valid JSON"),
        (b"[" * 200_000, None, "not valid JSON"),
    ],
)
def test_bad_completions_are_refused_by_name(body: Any, param: str | None, message: str) -> None:
    async def test(cluster: Doors) -> None:
        status, answer, _ = await post(cluster, "/v1/completions", body)
        assert status == 400
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert (answer["error"]["type"], answer["error"]["param"]) == ("invalid_request_error", param)
        assert message in answer["error"]["message"]
        assert cluster.instance.placed == []

    with_doors(test)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages.0"),
        ({"messages": [{"content": "hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x", "audio": {}}]}, "messages.0.audio"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": -1}, "max_completion_tokens"),
        ({**HI, "max_completion_tokens": 5, "max_tokens": 6}, "max_completion_tokens"),
        ({**HI, "max_completion_tokens": 5, "max_tokens": "5"}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x"}], "logit_bias": {"999999": 1}}, "logit_bias"),
        ({"messages": [{"role": "user", "content": "x", "name": "Ann"}]}, "messages.0.name"),
        ({"messages": [{"role": "user", "content": "x", "name": ""}]}, "messages.0.name"),
        ({"messages": [{"role": "user", "content": [PART]}]}, "messages.0.content.cache_control"),
        ({"messages": [{"role": "user", "content": "x"}], "top_logprobs": 1}, "top_logprobs"),
        ({"messages": [{"role": "user", "content": "x"}], "logprobs": 1}, "logprobs"),
        ({"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, "tools.0.function"),
        ({"messages": [{"role": "user", "content": "x"}], "store": True}, "store"),
        ({"messages": [{"role": "user", "content": "x"}], "prompt": "x"}, "prompt"),
    ],
)  # fmt: skip
def test_bad_chats_are_refused_by_name(body: Any, param: str) -> None:
    async def test(cluster: Doors) -> None:
        status, answer, _ = await post(cluster, "/v1/chat/completions", body)
        assert (status, answer["error"]["param"]) == (400, param)

    with_doors(test)


def test_fields_without_effect_are_accepted() -> None:
    async def test(cluster: Doors) -> None:
        await cluster.client().chat.completions.create(
            model=MODEL,
            messages=[{"role": "developer", "content": "Be brief"}, {"role": "user", "content": "Hi"}],
            max_tokens=1,
            user="ann",
            store=False,
            tools=[],
            tool_choice="none",
            response_format={"type": "text"},
            metadata={"a": "b"},
            stop=None,
            n=1,
        )
        assert len(cluster.instance.placed) == 1

    with_doors(test)


def test_a_full_queue_is_429_with_retry_after() -> None:
    async def test(cluster: Doors) -> None:
        openai_client = cluster.client()
        waiting = asyncio.create_task(openai_client.completions.create(model=MODEL, prompt="x"))
        while not cluster.core.journal.queued:
            await asyncio.sleep(0)
        with pytest.raises(openai.RateLimitError) as caught:
            await openai_client.completions.create(model=MODEL, prompt="x")
        assert caught.value.response.headers["retry-after"] == "1"
        assert caught.value.code == "queue_full"
        waiting.cancel()

    with_doors(test, serving=False, admission__max_queued=1)


def test_a_refused_choice_cancels_the_others() -> None:
    async def test(cluster: Doors) -> None:
        with pytest.raises(openai.RateLimitError):
            await cluster.client().completions.create(model=MODEL, prompt="x", n=3)
        assert len(cluster.core.journal) == 0

    with_doors(test, serving=False, admission__max_queued=2)


def test_no_serving_instance_is_503() -> None:
    async def test(cluster: Doors) -> None:
        cluster.host.deliver(A, Gone())
        status, answer, headers = await post(cluster, "/v1/completions", {"prompt": "x"})
        assert (status, answer["error"]["code"]) == (503, "unavailable")
        assert headers["Retry-After"] == "1"

    with_doors(test, serving=False, admission__unavailable_after_s=1e-9)


def test_a_deadline_is_504() -> None:
    async def test(cluster: Doors) -> None:
        status, answer, headers = await post(cluster, "/v1/completions", {"prompt": "x", "timeout_s": 0.01})
        assert (status, answer["error"]["code"]) == (504, "deadline_exceeded")
        assert headers["x-should-retry"] == "false", "OpenAI's clients would wait for it three times"
        assert answer["error"]["message"] == "0.01 s are over: 0 of 16 tokens were generated"

    with_doors(test, serving=False)


def test_a_prompt_that_no_instance_that_came_can_hold_is_400() -> None:
    """Nothing was known of the fleet when it was admitted."""

    async def test(cluster: Doors) -> None:
        answering = asyncio.create_task(post(cluster, "/v1/completions", {"prompt": [5] * 9}))
        while not len(cluster.core.journal):
            await asyncio.sleep(0)
        cluster.serve(capacity_slots=20)
        status, answer, headers = await answering
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")
        assert (answer["error"]["type"], headers["x-should-retry"]) == ("invalid_request_error", "false")
        assert answer["error"]["message"] == "25 tokens are more than any instance can hold"
        assert cluster.core.report().failed_total == 1

    with_doors(test, serving=False)


def test_a_stream_that_fails_says_so_and_ends() -> None:
    async def test(cluster: Doors) -> None:
        cluster.instance.held = True
        stream = await cluster.client().completions.create(model=MODEL, prompt="x", stream=True)
        cluster.instance.one()
        iterator = aiter(stream)
        assert (await anext(iterator)).choices[0].text == cluster.text(1)
        assert await cluster.gateway.cancel("req-2a-1")
        with pytest.raises(openai.APIError, match="cancelled by its id"):
            await anext(iterator)

    with_doors(test)


def test_a_request_that_fails_after_its_admission_has_an_id_and_a_refused_one_has_none() -> None:
    async def test(cluster: Doors) -> None:
        cluster.instance.held = True
        call = asyncio.create_task(post(cluster, "/v1/completions", {"prompt": "x", "n": 2}))
        await cluster.instance.until(lambda: len(cluster.instance.placed) == 2)
        assert await cluster.gateway.cancel("req-2a-2")
        status, _, headers = await call
        names = {name.lower(): value for name, value in headers.items()}
        assert (status, names["x-request-id"]) == (499, "req-2a-1,req-2a-2")
        status, _, headers = await post(cluster, "/v1/completions", {"prompt": ""})
        assert (status, "x-request-id" in {name.lower() for name in headers}) == (400, False)

    with_doors(test)


def test_an_unknown_path_and_a_wrong_method_have_the_same_shape() -> None:
    async def test(cluster: Doors) -> None:
        for path, status in (("/v1/embeddings", 404), ("/v1/models", 405)):
            got, answer, _ = await post(cluster, path, {})
            assert (got, answer["error"]["type"]) == (status, "invalid_request_error")

    with_doors(test)


def test_a_body_that_is_too_long_is_413() -> None:
    async def test(cluster: Doors) -> None:
        status, answer, _ = await post(cluster, "/v1/completions", b"x" * 2_000)
        assert (status, answer["error"]["type"]) == (413, "invalid_request_error")

    with_doors(test, http=HttpConfig(max_body_bytes=1_000))


def test_an_unexpected_error_shows_nothing_of_the_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(cluster: Doors) -> None:
        def broken(prompt: object) -> None:
            raise RuntimeError("secret")

        monkeypatch.setattr(cluster.gateway.prompts, "encode", broken)
        status, answer, _ = await post(cluster, "/v1/completions", {"prompt": "x"})
        assert (status, answer["error"]["type"]) == (500, "server_error")
        assert "secret" not in str(answer)

    with_doors(test)
