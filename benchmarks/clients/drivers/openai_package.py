"""The `openai` package: both clients, streams, choices, log-probabilities, usage, errors, raw answers, retries."""

import json
import socket
import sys
import threading
from typing import Any

import openai

from benchmarks.clients.drivers.checks import KEY, MESSAGES, PROMPT, SCHEMA, SCHEMA_TOKENS, TOOL, Checks


def main() -> int:
    """The command."""
    checks = Checks()
    made = openai.OpenAI(base_url=f"{checks.url}/v1", api_key=KEY, timeout=60)
    _whole(checks, made.with_options(max_retries=0))
    _formats(checks, made.with_options(max_retries=0))
    _prompt_logprobs(checks, made.with_options(max_retries=0))
    _streams(checks, made.with_options(max_retries=0))
    _errors(checks, made.with_options(max_retries=0))
    _transport(checks, made)
    _asynchronous(checks)
    return checks.finish()


def _whole(checks: Checks, client: openai.OpenAI) -> None:
    def chat(**more: Any) -> Any:
        return client.chat.completions.create(model=checks.model, messages=_messages(), max_tokens=8, **more)

    def text(**more: Any) -> Any:
        return client.completions.create(model=checks.model, prompt=PROMPT, max_tokens=8, **more)

    def continued() -> bool:
        first = chat().choices[0].message
        turns: Any = [*MESSAGES, first, {"role": "user", "content": "and then?"}]
        answer = client.chat.completions.create(model=checks.model, messages=turns, max_tokens=4)
        return answer.usage is not None and answer.usage.prompt_tokens > chat().usage.prompt_tokens

    checks.check("models", lambda: checks.model in [one.id for one in client.models.list()])
    checks.check("model", lambda: client.models.retrieve(checks.model).id == checks.model)
    checks.check("chat", lambda: chat().choices[0].message.role == "assistant")
    checks.check("completion", lambda: text().choices[0].finish_reason in ("length", "stop"))
    checks.check("chat n", lambda: [one.index for one in chat(n=3).choices] == [0, 1, 2])
    checks.check("completion of prompts", lambda: len(_prompts(client, checks.model).choices) == 4)
    checks.check("chat logprobs", lambda: len(chat(logprobs=True, top_logprobs=3).choices[0].logprobs.content) > 0)
    checks.check("completion logprobs", lambda: len(text(logprobs=5).choices[0].logprobs.tokens) > 0)
    checks.check("usage", lambda: text(extra_body={"ignore_eos": True}).usage.completion_tokens == 8)
    checks.check("seed", lambda: text(seed=3).choices[0].text == text(seed=3).choices[0].text)
    checks.check("stop", lambda: text(temperature=0, stop=["a", "e"]).choices[0].finish_reason in ("stop", "length"))
    checks.check("a turn handed back", continued)
    checks.check("sampling", lambda: chat(temperature=0.5, top_p=0.9, presence_penalty=1, frequency_penalty=1).id)
    checks.check("logit_bias", lambda: text(logit_bias={"5": -100}, user="ann").id)


def _formats(checks: Checks, client: openai.OpenAI) -> None:
    def chat(**more: Any) -> str:
        asked = {"model": checks.model, "messages": _messages(), "max_tokens": SCHEMA_TOKENS, **more}
        return client.chat.completions.create(**asked).choices[0].message.content or ""

    schema: Any = {"type": "json_schema", "json_schema": {"name": "bird", "schema": SCHEMA}}
    body = {"extra_body": {"min_tokens": 3}, "max_tokens": 4}
    checks.check("json_schema", lambda: json.loads(chat(response_format=schema))["colour"] in ("grey", "red"))
    checks.check("json_object", lambda: chat(response_format={"type": "json_object"}, max_tokens=8).strip()[0] == "{")
    checks.check("choice", lambda: chat(extra_body={"guided_choice": ["heron", "owl"]}) in ("heron", "owl"))
    checks.check("regex", lambda: chat(extra_body={"structured_outputs": {"regex": "ab+c"}}, temperature=0)[:2] == "ab")
    checks.check("min_tokens", lambda: chat(**body))


def _prompt_logprobs(checks: Checks, client: openai.OpenAI) -> None:
    def text(**more: Any) -> Any:
        return client.completions.create(**{"model": checks.model, "prompt": PROMPT, "max_tokens": 4, **more})

    def echoed(**more: Any) -> bool:
        (choice,) = text(echo=True, logprobs=2, **more).choices
        first, *others = choice.logprobs.token_logprobs
        return choice.text.startswith(PROMPT) and first is None and all(one <= 0 for one in others)

    def streamed() -> bool:
        chunks = list(text(echo=True, stream=True))
        return "".join(chunk.choices[0].text for chunk in chunks).startswith(PROMPT)

    def scored() -> bool:
        first, *others = text(extra_body={"prompt_logprobs": 1}).choices[0].prompt_logprobs
        return first is None and all(1 <= len(one) <= 2 for one in others)

    bad = openai.BadRequestError
    checks.check("echo with logprobs", echoed)
    checks.check("echo alone", lambda: echoed(max_tokens=0))
    checks.check("echo in a stream", streamed)
    checks.check("prompt_logprobs", scored)
    checks.refuses(
        "prompt_logprobs in a stream", lambda: text(stream=True, extra_body={"prompt_logprobs": 1}), bad,
        "prompt_logprobs:",
    )  # fmt: skip
    checks.refuses("no text without echo", lambda: text(max_tokens=0), bad, "max_tokens:")


def _prompts(client: openai.OpenAI, model: str) -> Any:
    return client.completions.create(model=model, prompt=[PROMPT, "there was"], n=2, best_of=2, max_tokens=4)


def _messages() -> Any:
    return MESSAGES


def _streams(checks: Checks, client: openai.OpenAI) -> None:
    def chat(**more: Any) -> list[Any]:
        made = client.chat.completions.create(
            model=checks.model, messages=_messages(), max_tokens=8, stream=True, **more
        )
        return list(made)

    def text(**more: Any) -> list[Any]:
        return list(client.completions.create(model=checks.model, prompt=PROMPT, max_tokens=8, stream=True, **more))

    def usage(chunks: list[Any]) -> bool:
        return chunks[-1].usage.completion_tokens > 0 and all(chunk.usage is None for chunk in chunks[:-1])

    def helper() -> bool:
        # An answer that is cut by its length is an error of this helper's.
        made = client.chat.completions.stream(
            model=checks.model, messages=_messages(), max_tokens=500, stop=["e"], temperature=0
        )
        with made as events:
            kinds = {event.type for event in events}
            return {"chunk", "content.delta", "content.done"} <= kinds and bool(events.get_final_completion().id)

    def left() -> bool:
        stream = client.completions.create(model=checks.model, prompt=PROMPT, max_tokens=900, stream=True)
        next(iter(stream))
        stream.close()
        return bool(text())

    with_usage = {"stream_options": {"include_usage": True}}
    running = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    checks.check("chat stream", lambda: chat()[0].choices[0].delta.role == "assistant")
    checks.check("completion stream", lambda: text()[-1].choices[0].finish_reason in ("length", "stop"))
    checks.check("chat stream usage", lambda: usage(chat(**with_usage)))
    checks.check("completion stream usage", lambda: usage(text(**with_usage)))
    checks.check("running usage", lambda: all(chunk.usage.total_tokens > 0 for chunk in chat(extra_body=running)))
    checks.check("stream of choices", lambda: {c.choices[0].index for c in chat(n=2)} == {0, 1})
    checks.check("stream logprobs", lambda: any(c.choices[0].logprobs for c in chat(logprobs=True)))
    checks.check("chat.completions.stream()", helper)
    checks.check("a stream that is left", left)


def _errors(checks: Checks, client: openai.OpenAI) -> None:
    def chat(**more: Any) -> Any:
        return client.chat.completions.create(**{"model": checks.model, "messages": MESSAGES, "max_tokens": 4, **more})

    def extra(**fields: Any) -> Any:
        return chat(extra_body=fields)

    bad, gone = openai.BadRequestError, openai.NotFoundError
    checks.refuses("unknown model", lambda: chat(model="gpt-0"), gone, "gpt-0")
    checks.refuses("tools", lambda: chat(tools=[TOOL]), bad, "tools:", "param=tools")
    checks.refuses("functions", lambda: chat(functions=[TOOL["function"]]), bad, "functions:")
    checks.refuses("temperature", lambda: chat(temperature=11), bad, "temperature: must be")
    checks.refuses("too long", lambda: chat(max_tokens=2**30), bad, "context_length_exceeded")
    checks.refuses("n", lambda: chat(n=1000), bad, "n: must be between")
    checks.refuses("top_logprobs alone", lambda: chat(top_logprobs=3), bad, "top_logprobs:")
    checks.refuses("vocabulary", lambda: chat(logit_bias={"99999999": 1}), bad, "logit_bias:", "vocabulary")
    checks.refuses("stop ids", lambda: extra(stop_token_ids=[99999999]), bad, "stop_token_ids:", "vocabulary")
    checks.refuses("two limits", lambda: chat(max_completion_tokens=9), bad, "max_completion_tokens:")
    checks.refuses("min_tokens", lambda: extra(min_tokens=-3), bad, "min_tokens:")
    checks.refuses("no schema", lambda: extra(response_format={"type": "xml"}), bad, "response_format")
    checks.refuses("an unknown field", lambda: extra(frobnicate=3), bad, "frobnicate:")
    checks.refuses("name", lambda: chat(messages=[{**MESSAGES[0], "name": "ann"}]), bad, "messages.0.name")
    checks.refuses("deadline", lambda: extra(timeout_s=1e-6), openai.InternalServerError, "deadline_exceeded")
    checks.refuses("embeddings", lambda: client.embeddings.create(model=checks.model, input="x"), gone)
    checks.refuses("responses", lambda: client.responses.create(model=checks.model, input="x"), gone)


def _transport(checks: Checks, client: openai.OpenAI) -> None:
    def text(**more: Any) -> Any:
        return client.completions.create(model=checks.model, prompt=PROMPT, max_tokens=6, **more)

    def raw() -> bool:
        answer = client.completions.with_raw_response.create(model=checks.model, prompt=PROMPT, max_tokens=2)
        return bool(answer.headers["x-request-id"]) and answer.parse().id == answer.headers["x-request-id"]

    def streamed() -> bool:
        made = client.completions.with_streaming_response.create(model=checks.model, prompt=PROMPT, max_tokens=2)
        with made as answer:
            return "text_completion" in "".join(answer.iter_text())

    def twice() -> bool:
        named = {"extra_headers": {"Idempotency-Key": f"twice-{id(client)}"}}
        first, second = text(**named), text(**named)
        return bool(first.id == second.id and first.choices[0].text == second.choices[0].text)

    def retried() -> bool:
        """The first connection is cut before an answer; the retry, with the same key, gets it."""
        with _Cutting(checks.url) as url:
            retrying = openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=2, timeout=60)
            key = {"Idempotency-Key": f"retried-{id(client)}"}
            return bool(
                retrying.completions.create(model=checks.model, prompt=PROMPT, max_tokens=4, extra_headers=key).id
            )

    def late() -> Any:
        hasty = client.with_options(timeout=0.2, max_retries=0)
        return hasty.completions.create(
            model=checks.model, prompt=PROMPT, max_tokens=8000, extra_body={"ignore_eos": True}
        )

    checks.check("with_raw_response", raw)
    checks.check("with_streaming_response", streamed)
    checks.check("the same key twice", twice)
    checks.check("a retry with a key", retried)
    checks.refuses("timeout", late, openai.APITimeoutError)


class _Cutting:
    """A forwarder that takes one request, hangs up, and passes every later connection on."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._door = (host, int(port))
        self._listening = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> str:
        threading.Thread(target=self._serve, daemon=True).start()
        return "http://{}:{}".format(*self._listening.getsockname())

    def __exit__(self, *ended: object) -> None:
        self._listening.close()

    def _serve(self) -> None:
        first, _ = self._listening.accept()
        first.recv(1 << 16)
        first.close()
        while True:
            try:
                there, _ = self._listening.accept()
            except OSError:
                return
            door = socket.create_connection(self._door)
            for ends in ((there, door), (door, there)):
                threading.Thread(target=_forward, args=ends, daemon=True).start()


def _forward(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # either end may be gone


def _asynchronous(checks: Checks) -> None:
    def client() -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=f"{checks.url}/v1", api_key=KEY, timeout=60, max_retries=0)

    async def chat() -> bool:
        async with client() as made:
            answer = await made.chat.completions.create(model=checks.model, messages=_messages(), max_tokens=4)
            return answer.usage is not None

    async def stream() -> bool:
        async with client() as made:
            chunks = await made.completions.create(model=checks.model, prompt=PROMPT, max_tokens=4, stream=True, n=2)
            return {chunk.choices[0].index async for chunk in chunks} == {0, 1}

    async def refused() -> bool:
        async with client() as made:
            try:
                await made.completions.create(model=checks.model, prompt=PROMPT, suffix="x")
            except openai.BadRequestError as error:
                return error.param == "suffix"
            return False

    checks.check("async chat", chat)
    checks.check("async stream", stream)
    checks.check("async refusal", refused)


if __name__ == "__main__":
    sys.exit(main())
