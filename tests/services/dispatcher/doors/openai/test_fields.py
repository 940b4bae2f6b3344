"""Every field of the two endpoints: honoured, without effect, or refused by name; and the docs say which."""

from collections.abc import Callable
from typing import Any

import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params

from benchmarks.doors.openai_tables import PAGE, page_of
from dunlin.limits import InvalidField
from dunlin.messages.types import RequestClass
from services.dispatcher.doors.openai.fields import CHAT_FIELDS, COMPLETION_FIELDS, FieldSupport, RequestField
from services.dispatcher.doors.openai.request import ParsedRequest, parse_chat, parse_completion

CHAT_BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
COMPLETION_BODY: dict[str, Any] = {"prompt": "x"}
ENDPOINTS: dict[str, tuple[dict[str, RequestField], dict[str, Any], Callable[[Any], ParsedRequest]]] = {
    "completions": (COMPLETION_FIELDS, COMPLETION_BODY, parse_completion),
    "chat": (CHAT_FIELDS, CHAT_BODY, parse_chat),
}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
WITH: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    "best_of": {"n": 2},
    "tool_choice": {"tools": TOOLS},
    "parallel_tool_calls": {"tools": TOOLS},
    "guided_whitespace_pattern": {"guided_json": {"type": "object"}},
}
"""What a field needs beside it."""
SAMPLES: dict[str, Any] = {
    "prompt": "y", "messages": [{"role": "user", "content": "y"}], "model": "m", "n": 2, "best_of": None,
    "stream": True, "stream_options": {"include_usage": True}, "logprobs": 2, "top_logprobs": 2,
    "max_completion_tokens": 5, "max_tokens": 5, "temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.5,
    "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 0.5, "seed": 5, "stop": ["a"],
    "stop_token_ids": [5], "ignore_eos": True, "logit_bias": {"5": 1}, "request_class": "batch", "timeout_s": 5,
    "ttft_objective_s": 5, "tpot_objective_s": 5, "min_tokens": 5, "allowed_token_ids": [5], "bad_words": ["a"],
    "response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a+"}, "guided_choice": ["a"],
    "guided_grammar": 'start: "a"', "guided_json": {"type": "object"}, "guided_regex": "a+",
    "guided_whitespace_pattern": " ?",
    "echo": True, "prompt_logprobs": 0,
    "service_tier": "flex", "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False,
}  # fmt: skip
"""A value of each honoured field that asks for something else than the default. `best_of` only repeats `n`."""
OTHERS: list[Any] = [0, 1, -1, 2.5, True, False, "", "x", [], ["x"], {}, {"type": "json_object"}, {"x": 1}]


def rows(*fates: FieldSupport) -> list[tuple[str, str]]:
    tables = ((endpoint, fields) for endpoint, (fields, _, _) in ENDPOINTS.items())
    return [(endpoint, name) for endpoint, fields in tables for name, field in fields.items() if field.support in fates]


def beside(endpoint: str, name: str) -> dict[str, Any]:
    """What a field needs beside it."""
    return {"echo": True} if (endpoint, name) == ("completions", "max_tokens") else WITH.get(name, {})


def ask(endpoint: str, name: str, value: Any) -> ParsedRequest:
    _, body, reads = ENDPOINTS[endpoint]
    return reads({**body, **beside(endpoint, name), name: value})


def without(endpoint: str, name: str) -> ParsedRequest:
    _, body, reads = ENDPOINTS[endpoint]
    return reads({**body, **beside(endpoint, name)})


def refused(endpoint: str, name: str, value: Any) -> str:
    with pytest.raises(InvalidField) as caught:
        ask(endpoint, name, value)
    assert caught.value.name.split(".")[0] == name, (name, value)
    return str(caught.value)


def test_every_field_of_the_openai_package_is_declared() -> None:
    completions = completion_params.CompletionCreateParamsBase.__annotations__
    chats = chat_params.CompletionCreateParamsBase.__annotations__
    assert {*completions, "stream"} <= set(COMPLETION_FIELDS)
    assert {*chats, "stream"} <= set(CHAT_FIELDS)


def test_the_docs_say_what_the_code_does() -> None:
    text = PAGE.read_text()
    assert text == page_of(text), "docs/openai.md is out of date: python -m benchmarks.doors.openai_tables"
    for name in (*COMPLETION_FIELDS, *CHAT_FIELDS):
        assert f"| `{name}` |" in text


@pytest.mark.parametrize(("endpoint", "name"), rows(*FieldSupport))
def test_null_says_nothing(endpoint: str, name: str) -> None:
    if name in ENDPOINTS[endpoint][1]:
        refused(endpoint, name, None)
    else:
        assert ask(endpoint, name, None) == without(endpoint, name)


@pytest.mark.parametrize(("endpoint", "name"), rows(FieldSupport.HONOURED))
def test_an_honoured_field_changes_the_request(endpoint: str, name: str) -> None:
    value = True if (endpoint, name) == ("chat", "logprobs") else SAMPLES[name]
    if value is not None:
        assert ask(endpoint, name, value) != without(endpoint, name)


@pytest.mark.parametrize(("endpoint", "name"), rows(FieldSupport.HONOURED))
def test_what_is_honoured_has_one_type(endpoint: str, name: str) -> None:
    for value in ({"x": [1]}, [{"x": 1}], [[True]], 0.5j):
        refused(endpoint, name, value)


@pytest.mark.parametrize(("endpoint", "name"), rows(FieldSupport.HONOURED))
def test_numbers_are_accepted_at_their_bounds_and_refused_beyond(endpoint: str, name: str) -> None:
    schema = ENDPOINTS[endpoint][0][name].schema
    if schema.get("type") not in ("integer", "number") or name == "best_of":
        return
    low, high = schema["minimum" if "minimum" in schema else "exclusiveMinimum"], schema["maximum"]
    step = 1 if schema["type"] == "integer" else 1e-6
    for value in (high, low + step if "exclusiveMinimum" in schema else low):
        ask(endpoint, name, value)
    for value in (high + 1, low if "exclusiveMinimum" in schema else low - 1, True, str(low), [low], float("nan")):
        refused(endpoint, name, value)
    if schema["type"] == "integer":
        refused(endpoint, name, low + 0.5)


@pytest.mark.parametrize(("endpoint", "name"), rows(FieldSupport.ONLY))
def test_only_the_value_without_effect_is_accepted(endpoint: str, name: str) -> None:
    values = ENDPOINTS[endpoint][0][name].schema["enum"]
    for value in values:
        assert ask(endpoint, name, value) == without(endpoint, name)
    for value in OTHERS:
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values):
            assert "is supported only as " in refused(endpoint, name, value)


@pytest.mark.parametrize(("endpoint", "name"), rows(FieldSupport.NO_EFFECT))
def test_fields_without_effect_are_accepted_in_their_type(endpoint: str, name: str) -> None:
    good = {"string": "x", "object": {"a": "b"}, "boolean": True}
    kind = ENDPOINTS[endpoint][0][name].schema["type"]
    assert ask(endpoint, name, good.pop(kind)) == without(endpoint, name)
    for value in (*good.values(), 7, []):
        assert f"must be of type {kind}" in refused(endpoint, name, value)


@pytest.mark.parametrize(("endpoint", "name"), rows(FieldSupport.REFUSED))
def test_what_is_refused_is_refused_whatever_it_says(endpoint: str, name: str) -> None:
    for value in OTHERS:
        assert refused(endpoint, name, value).startswith(f"{name}: is not supported here: ")


def test_flex_is_the_batch_class() -> None:
    assert parse_chat({**CHAT_BODY, "service_tier": "flex"}).settings.request_class is RequestClass.BATCH
    both = {**CHAT_BODY, "service_tier": "flex", "request_class": "batch"}
    assert parse_chat(both).settings.request_class is RequestClass.BATCH
    plain = {**CHAT_BODY, "service_tier": "default", "request_class": "batch"}
    assert parse_chat(plain).settings.request_class is RequestClass.BATCH
    with pytest.raises(InvalidField, match="give one, or both alike"):
        parse_chat({**CHAT_BODY, "service_tier": "flex", "request_class": "interactive"})
