"""langchain-openai: the chat model and the completion model, streams, batches, a schema, and tools refused."""

import sys

import openai
from langchain_openai import ChatOpenAI, OpenAI

from benchmarks.clients.drivers.checks import KEY, PROMPT, SCHEMA, SCHEMA_TOKENS, TOOL, Checks


def main() -> int:
    """The command."""
    checks = Checks()
    shared = {"base_url": f"{checks.url}/v1", "api_key": KEY, "model": checks.model, "max_retries": 0}
    chat = ChatOpenAI(**shared, max_tokens=8)
    usage = ChatOpenAI(**shared, max_tokens=8, stream_usage=True, n=1, seed=1, logprobs=True, temperature=0.5)
    text = OpenAI(**shared, max_tokens=8)
    turns = [("system", "Be brief"), ("human", PROMPT), ("ai", "there"), ("human", "and then?")]

    async def asynchronous() -> bool:
        return len([chunk async for chunk in chat.astream(PROMPT)]) > 1

    bad = openai.BadRequestError
    checks.check("invoke", lambda: bool(chat.invoke(PROMPT).usage_metadata))
    checks.check("turns", lambda: bool(chat.invoke(turns).response_metadata["finish_reason"]))
    checks.check("stream", lambda: len(list(chat.stream(PROMPT))) > 1)
    checks.check("usage and logprobs", lambda: any(chunk.usage_metadata for chunk in usage.stream(PROMPT)))
    checks.check("batch", lambda: len(chat.batch([PROMPT, "there was"])) == 2)
    checks.check("async stream", asynchronous)
    checks.check("completion", lambda: isinstance(text.invoke(PROMPT), str))
    checks.check("completion stream", lambda: len(list(text.stream(PROMPT))) > 1)
    checks.check("completion batch", lambda: len(text.generate([PROMPT, "there was"]).generations) == 2)
    checks.refuses("tools", lambda: chat.bind_tools([TOOL]).invoke(PROMPT), bad, "tools:")
    roomy = ChatOpenAI(**shared, max_tokens=SCHEMA_TOKENS)
    bird = roomy.with_structured_output(SCHEMA, method="json_schema")
    called = roomy.with_structured_output(SCHEMA, method="function_calling")
    checks.check("structured output", lambda: bird.invoke(PROMPT)["colour"] in ("grey", "red"))
    checks.refuses("structured output by a call", lambda: called.invoke(PROMPT), bad, "tools:")
    return checks.finish()


if __name__ == "__main__":
    sys.exit(main())
