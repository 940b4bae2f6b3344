"""Both clients over real gRPC, against a dispatcher's real doors and core with a fake instance."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import pytest

import dunlin
from dunlin.client import (
    AsyncClient,
    Cancelled,
    ChatMessage,
    Client,
    DeadlineExceeded,
    DunlinError,
    FinishReason,
    GenerationFailed,
    InvalidRequest,
    PromptTooLong,
    QueueFull,
    RequestClass,
    ServerError,
    Unavailable,
)
from dunlin.effects import Gone
from dunlin.wire.rpc.calls import CallFailed
from tests.services.dispatcher.factories import A
from tests.services.dispatcher.running_doors import Doors, doors


def with_client(test: Callable[[Doors, AsyncClient], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(400), doors(**options) as cluster, AsyncClient(cluster.endpoint) as client:
            await test(cluster, client)

    asyncio.run(run())


def in_thread(test: Callable[[Doors, Client], Any], **options: Any) -> Any:
    """Run a test of the blocking client in a thread, beside the loop that serves it."""

    async def run() -> Any:
        async with asyncio.timeout(400), doors(**options) as cluster:

            def use() -> Any:
                with Client(cluster.endpoint) as client:
                    return test(cluster, client)

            return await asyncio.to_thread(use)

    return asyncio.run(run())


def test_it_is_found_in_the_package() -> None:
    assert (dunlin.Client, dunlin.AsyncClient) == (Client, AsyncClient)


def test_generate() -> None:
    async def test(cluster: Doors, client: AsyncClient) -> None:
        done = await client.generate("Hello there", max_tokens=30)
        assert (done.request, done.text, done.finish) == ("req-2a-1", cluster.text(30), FinishReason.LENGTH)
        assert done.tokens == tuple((cluster.instance.text * 30)[:30])
        assert done.prompt_tokens == len(cluster.instance.placed[0].tokens)
        assert (done.logprobs, done.top_logprobs) == ((), ())

    with_client(test)


def test_generate_after_token_ids_with_everything_set() -> None:
    async def test(cluster: Doors, client: AsyncClient) -> None:
        done = await client.generate(
            [5, 6, 7],
            max_tokens=3,
            temperature=0.5,
            top_p=0.9,
            top_k=7,
            min_p=0.25,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            repetition_penalty=1.5,
            seed=-3,
            stop="never seen",
            stop_token_ids=[11],
            ignore_eos=True,
            logprobs=2,
            timeout_s=20.0,
            request_class=RequestClass.BATCH,
            tenant="ann",
        )
        place = cluster.instance.placed[0]
        sampling = place.sampling
        assert list(place.tokens) == [5, 6, 7]
        assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 7, 0.25)
        assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.5, -0.5, 1.5)
        assert (sampling.seed, sampling.logprobs) == (-3, 2)
        assert (list(place.stop_ids), place.request_class, place.tenant) == ([11], RequestClass.BATCH, "ann")
        assert done.logprobs == (-0.25,) * 3
        assert done.top_logprobs == tuple(((token, -0.25), (token + 1, -2.0)) for token in done.tokens)

    with_client(test)


def test_a_stream_names_its_request_first_and_ends_with_its_finish() -> None:
    async def test(cluster: Doors, client: AsyncClient) -> None:
        events = [event async for event in client.stream("x", max_tokens=50)]
        assert (events[0].request, events[0].text, len(events[0].tokens)) == ("req-2a-1", "", 0)
        assert "".join(event.text for event in events) == cluster.text(50)
        assert [event.finish for event in events[:-1]] == [FinishReason.RUNNING] * (len(events) - 1)
        assert events[-1].finish is FinishReason.LENGTH
        assert all(event.text.isprintable() and "\ufffd" not in event.text for event in events)

    with_client(test)


@pytest.mark.parametrize(
    "messages",
    [
        [("system", "Be brief"), ("user", "Hi")],
        [ChatMessage("system", "Be brief"), {"role": "user", "content": "Hi"}],
    ],
)
def test_a_chat_goes_through_the_models_template(messages: Sequence[Any]) -> None:
    async def test(cluster: Doors, client: AsyncClient) -> None:
        cluster.instance.end_after = 5
        done = await client.chat(messages)
        assert (done.text, done.finish) == (cluster.text(5), FinishReason.STOP)
        assert done.tokens[-1] == cluster.gateway.model.eos_ids[0]
        expected = cluster.gateway.model.render((ChatMessage("system", "Be brief"), ChatMessage("user", "Hi")))
        encoded = cluster.gateway.model.tokenizer.encode(expected, add_special_tokens=False)
        assert list(cluster.instance.placed[0].tokens) == encoded

    with_client(test)


def test_both_doors_say_the_same() -> None:
    async def test(cluster: Doors, client: AsyncClient) -> None:
        answer = await cluster.client().completions.create(
            model="builtin:tiny", prompt="x", max_tokens=200, stop=["🐦"]
        )
        done = await client.generate("x", max_tokens=200, stop=["🐦"])
        assert answer.choices[0].text == done.text != ""
        assert done.finish is FinishReason.STOP

    with_client(test)


def test_without_max_tokens_it_gets_what_the_context_leaves() -> None:
    async def test(cluster: Doors, client: AsyncClient) -> None:
        assert len((await client.generate([5] * 990)).tokens) == 10

    with_client(test)


def test_closing_a_stream_early_cancels_the_request() -> None:
    async def test(cluster: Doors, client: AsyncClient) -> None:
        cluster.instance.held = True
        async with aclosing(client.stream("x", max_tokens=900)) as events:
            assert (await anext(events)).request == "req-2a-1"
            cluster.instance.one()
            assert (await anext(events)).text == cluster.text(1)
        await cluster.instance.until(lambda: cluster.instance.cancelled)
        assert cluster.core.report().cancelled_total == 1
        assert cluster.instance.running == []

    with_client(test)


def test_cancelling_the_task_cancels_the_request() -> None:
    async def test(cluster: Doors, client: AsyncClient) -> None:
        cluster.instance.held = True
        task = asyncio.create_task(client.generate("x", max_tokens=900))
        await cluster.instance.until(lambda: cluster.instance.placed)
        task.cancel()
        await cluster.instance.until(lambda: cluster.instance.cancelled)
        assert cluster.core.report().cancelled_total == 1

    with_client(test)


def test_cancel_by_id() -> None:
    async def test(cluster: Doors, client: AsyncClient) -> None:
        cluster.instance.held = True
        task = asyncio.create_task(client.generate("x"))
        await cluster.instance.until(lambda: cluster.instance.placed)
        assert await client.cancel("req-2a-1")
        with pytest.raises(Cancelled, match="cancelled by its id") as caught:
            await task
        assert caught.value.request == "req-2a-1"
        assert not await client.cancel("req-2a-1")
        assert not await client.cancel("nonsense")

    with_client(test)


# --- errors ---


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_tokens": -1}, "max_tokens: must be between 1"),
        ({"max_tokens": 0}, "max_tokens: must be between 1"),
        ({"max_tokens": 2**70}, "max_tokens"),
        ({"temperature": float("nan")}, "temperature: must be at least 0"),
        ({"temperature": -1.0}, "temperature: must be at least 0"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0.0}, "top_p: must be above 0"),
        ({"top_k": -5}, "top_k"),
        ({"seed": 2**63}, "seed"),
        ({"logprobs": 21}, "logprobs: must be between 0 and 20"),
        ({"stop": [""]}, "stop: each stop string"),
        ({"timeout_s": float("inf")}, "timeout_s"),
        ({"tenant": "x" * 257}, "tenant"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"frobnicate": 1}, "frobnicate"),
    ],
)
def test_bad_options_are_refused_by_name(options: Any, text: str) -> None:
    async def test(cluster: Doors, client: AsyncClient) -> None:
        with pytest.raises(InvalidRequest, match=text):
            await client.generate("x", **options)
        assert cluster.instance.placed == []

    with_client(test)


@pytest.mark.parametrize(
    ("prompt", "messages", "text"),
    [
        ("", None, "the prompt is empty"),
        ([], None, "exactly one"),
        (None, [], "exactly one"),
        (None, None, "exactly one of prompt and messages"),
        ("x", [("user", "x")], "exactly one of prompt and messages"),
        ([999_999], None, "outside the vocabulary"),
        ([2**31], None, "prompt"),
        (["a"], None, "prompt"),
        (None, [("wizard", "x")], "chat template"),
        (None, ["hi"], "no \\(role, content\\)"),
        (None, [{"role": "user", "content": "x", "name": "y"}], "no \\(role, content\\)"),
    ],
)
def test_bad_prompts_are_refused(prompt: Any, messages: Any, text: str) -> None:
    async def test(cluster: Doors, client: AsyncClient) -> None:
        with pytest.raises(InvalidRequest, match=text):
            async for _ in client.stream(prompt, messages=messages):
                pass

    with_client(test)


def test_a_prompt_that_is_too_long() -> None:
    async def test(cluster: Doors, client: AsyncClient) -> None:
        with pytest.raises(PromptTooLong, match="maximum context length is 1000 tokens") as caught:
            await client.generate([5] * 1000)
        assert isinstance(caught.value.__cause__, CallFailed)
        with pytest.raises(PromptTooLong):
            await client.generate("x", max_tokens=1000)

    with_client(test)


def test_a_full_queue_says_when_to_come_back() -> None:
    async def test(cluster: Doors, client: AsyncClient) -> None:
        waiting = asyncio.create_task(client.generate("x"))
        while not cluster.core.journal.queued:
            await asyncio.sleep(0)
        with pytest.raises(QueueFull, match="1 requests wait already") as caught:
            await client.generate("x")
        assert caught.value.retry_after_s == 0.5
        waiting.cancel()

    with_client(test, serving=False, admission__max_queued=1)


def test_a_deadline() -> None:
    async def test(cluster: Doors, client: AsyncClient) -> None:
        with pytest.raises(DeadlineExceeded, match="0 of 5 tokens") as caught:
            await client.generate("x", max_tokens=5, timeout_s=0.01)
        assert caught.value.request == "req-2a-1"

    with_client(test, serving=False)


def test_no_serving_instance() -> None:
    async def test(cluster: Doors, client: AsyncClient) -> None:
        cluster.host.deliver(A, Gone())
        with pytest.raises(Unavailable, match="no instance has been able to serve") as caught:
            await client.generate("x")
        assert caught.value.retry_after_s == 1e-9

    with_client(test, serving=False, admission__unavailable_after_s=1e-9)


def test_a_request_that_cannot_be_finished() -> None:
    async def test(cluster: Doors, client: AsyncClient) -> None:
        cluster.instance.held = True
        task = asyncio.create_task(client.generate("x"))
        await cluster.instance.until(lambda: cluster.instance.placed)
        cluster.host.deliver(A, Gone("killed"))
        with pytest.raises(GenerationFailed, match="given up after 1 lost attempts; the last was lost: killed"):
            await task

    with_client(test, placement__max_lost_attempts=1)


def test_a_dispatcher_that_stops_in_mid_stream_says_so() -> None:
    async def test(cluster: Doors, client: AsyncClient) -> None:
        cluster.instance.held = True
        task = asyncio.create_task(client.generate("x"))
        await cluster.instance.until(lambda: cluster.instance.placed)
        cluster.host.close()
        with pytest.raises(GenerationFailed, match="the request was cut off: stopping"):
            await task

    with_client(test)


def test_no_dispatcher_at_all() -> None:
    async def ask() -> None:
        async with AsyncClient("127.0.0.1:1") as client:
            with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
                await client.generate("x")

    asyncio.run(ask())
    with Client("127.0.0.1:1") as client, pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        client.info()


def test_every_error_is_a_dunlin_error() -> None:
    for kind in (Cancelled, DeadlineExceeded, GenerationFailed, InvalidRequest, QueueFull, ServerError, Unavailable):
        assert issubclass(kind, DunlinError)


# --- the blocking client ---


def test_blocking_generate_chat_and_stream() -> None:
    def test(cluster: Doors, client: Client) -> tuple[str, str, str]:
        whole = client.generate("x", max_tokens=20).text
        chat = client.chat([("user", "x")], max_tokens=20).text
        return whole, chat, "".join(event.text for event in client.stream("x", max_tokens=20))

    async def expected() -> str:
        async with doors() as cluster:
            return cluster.text(20)

    assert in_thread(test) == (asyncio.run(expected()),) * 3


def test_blocking_errors() -> None:
    def test(cluster: Doors, client: Client) -> None:
        with pytest.raises(PromptTooLong):
            client.generate([5] * 1000)
        with pytest.raises(InvalidRequest, match="max_tokens"):
            client.generate("x", max_tokens=-1)
        assert client.cancel("req-2a-9") is False

    in_thread(test)


def test_leaving_a_blocking_stream_cancels_the_request() -> None:
    async def run() -> None:
        async with asyncio.timeout(400), doors() as cluster:
            cluster.instance.held = True

            def use() -> str:
                with Client(cluster.endpoint) as client:
                    for event in client.stream("x", max_tokens=900):
                        return event.request
                return ""

            assert await asyncio.to_thread(use) == "req-2a-1"
            await cluster.instance.until(lambda: cluster.instance.cancelled)
            assert cluster.core.report().cancelled_total == 1

    asyncio.run(run())
