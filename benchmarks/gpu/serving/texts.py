"""Texts of the built-in chat model through the OpenAI-compatible door, by the `openai` package."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from cli.launch.cluster_process import ClusterProcess

MODEL = "builtin:chat"
QUESTIONS = (
    "Who are you?", "Tell me a story about a dog and the sea.", "What is the capital of France?", "Count to ten.",
    "Why is the sky blue?", "Name three animals.", "What can you do?", "Write a short poem.",
)  # fmt: skip
SCHEMA = {
    "type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"], "additionalProperties": False,
}  # fmt: skip


def served_texts(flags: Sequence[str]) -> dict[str, str]:
    """What a cluster with these flags answers to all questions at once: greedy, with a seed, streamed, in a schema."""
    with ClusterProcess("--model", MODEL, "--instances", "1", *flags) as cluster:
        return _ask(cluster.http)


def _ask(door: str) -> dict[str, str]:
    from openai import OpenAI

    client = OpenAI(base_url=f"{door}/v1", api_key="none", timeout=60.0)

    def ask(question: str, **options: Any) -> str:
        messages: Any = [{"role": "user", "content": question}]
        answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=48, **options)
        return str(answer.choices[0].message.content)

    def streamed(question: str) -> str:
        messages: Any = [{"role": "user", "content": question}]
        parts = client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=48, temperature=0, stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        found = list(parts)
        assert found[-1].usage is not None
        return "".join(part.choices[0].delta.content or "" for part in found if part.choices)

    def in_schema(question: str) -> str:
        wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
        return ask(question, temperature=0, response_format=wanted)

    with ThreadPoolExecutor(16) as pool:
        waiting = {}
        for question in QUESTIONS:
            waiting[f"greedy: {question}"] = pool.submit(ask, question, temperature=0)
            waiting[f"seed: {question}"] = pool.submit(ask, question, temperature=0.8, top_p=0.9, seed=11)
        waiting["streamed"] = pool.submit(streamed, QUESTIONS[1])
        waiting["schema"] = pool.submit(in_schema, "Give a person with a name and an age.")
        return {name: each.result() for name, each in waiting.items()}
