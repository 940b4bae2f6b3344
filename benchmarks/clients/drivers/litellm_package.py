"""litellm: chats and completions, streamed and not, and how it names the door's refusals."""

import json
import sys
from typing import Any

import litellm

from benchmarks.clients.drivers.checks import KEY, MESSAGES, PROMPT, SCHEMA, SCHEMA_TOKENS, TOOL, Checks


def main() -> int:
    """The command."""
    checks = Checks()
    litellm.suppress_debug_info = True
    shared = {"api_base": f"{checks.url}/v1", "api_key": KEY, "num_retries": 0, "max_tokens": 8}
    chats = {"model": f"openai/{checks.model}", "messages": MESSAGES, **shared}
    texts = {"model": f"text-completion-openai/{checks.model}", "prompt": PROMPT, **shared}

    def chat(**more: Any) -> Any:
        return litellm.completion(**{**chats, **more})

    def text(**more: Any) -> Any:
        return litellm.text_completion(**{**texts, **more})

    def continued() -> bool:
        turns = [*MESSAGES, chat().choices[0].message, {"role": "user", "content": "and then?"}]
        return bool(chat(messages=turns).id)

    def said(**more: Any) -> str:
        return str(chat(**more).choices[0].message.content)

    async def asynchronous() -> bool:
        stream = await litellm.acompletion(**chats, stream=True)
        return len([chunk async for chunk in stream]) > 1

    bad = litellm.BadRequestError
    schema = {"type": "json_schema", "json_schema": {"name": "bird", "schema": SCHEMA}}
    checks.check("chat", lambda: chat().usage.completion_tokens > 0)
    checks.check("chat n", lambda: len(chat(n=2).choices) == 2)
    checks.check("chat logprobs", lambda: chat(logprobs=True, top_logprobs=2).choices[0].logprobs is not None)
    checks.check("chat stream", lambda: len(list(chat(stream=True, stream_options={"include_usage": True}))) > 1)
    checks.check("completion", lambda: text().choices[0].finish_reason in ("length", "stop"))
    checks.check("completion stream", lambda: len(list(text(stream=True))) > 1)
    checks.check("a turn handed back", continued)
    checks.check("async stream", asynchronous)
    checks.check("json mode", lambda: said(response_format={"type": "json_object"}).strip()[0] == "{")
    checks.check("json schema", lambda: json.loads(said(response_format=schema, max_tokens=SCHEMA_TOKENS))["colour"])
    checks.check("an extra format", lambda: said(extra_body={"guided_regex": "ab"}) == "ab")
    checks.refuses("tools", lambda: chat(tools=[TOOL]), bad, "tools:")
    checks.refuses("a format that is none", lambda: chat(response_format={"type": "xml"}), bad, "response_format")
    checks.refuses("unknown model", lambda: chat(model="openai/gpt-0"), litellm.NotFoundError, "gpt-0")
    checks.refuses("an extra field", lambda: chat(extra_body={"logits_processors": ["a"]}), bad, "logits_processors:")
    return checks.finish()


if __name__ == "__main__":
    sys.exit(main())
