"""Every field of the two endpoints: honoured, without effect, or refused by name; and the docs say which."""

from collections.abc import Callable
from typing import Any

import pytest
from openai.types import completion_create_params as completion_params
from openai.types.chat import completion_create_params as chat_params

from benchmarks.doors.openai_tables import PAGE, page_of
from dunlin.limits import InvalidField
from services.dispatcher.doors.openai.fields import CHAT_FIELDS, COMPLETION_FIELDS, FieldSupport, RequestField
from services.dispatcher.doors.openai.request import ParsedRequest, parse_chat, parse_completion

CHAT_BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
COMPLETION_BODY: dict[str, Any] = {"prompt": "x"}
ENDPOINTS: dict[str, tuple[dict[str, RequestField], dict[str, Any], Callable[[Any], ParsedRequest]]] = {
    "completions": (COMPLETION_FIELDS, COMPLETION_BODY, parse_completion),
    "chat": (CHAT_FIELDS, CHAT_BODY, parse_chat),
}
WITH: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    "best_of": {"n": 2},
}
"""What a field needs beside it."""
SAMPLES: dict[str, Any] = {
    "prompt": "y", "messages": [{"role": "user", "content": "y"}], "model": "m", "n": 2, "best_of": None,
    "stream": True, "stream_options": {"include_usage": True}, "logprobs": 2, "top_logprobs": 2,
    "max_completion_tokens": 5, "max_tokens": 5, "temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.5,
    "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 0.5, "seed": 5, "stop": ["a"],
    "stop_token_ids": [5], "ignore_eos": True, "logit_bias": {"5": 1}, "request_class": "batch", "timeout_s": 5,
}  # fmt: skip
"""A value of each honoured field that asks for something else than the default. `best_of` only repeats `n`."""
OTHERS: list[Any] = [0, 1, -1, 2.5, True, False, "", "x", [], ["x"], {}, {"type": "json_object"}, {"x": 1}]


def rows(*fates: FieldSupport) -> list[tuple[str, str]]:
    tables = ((endpoint, fields) for endpoint, (fields, _, _) in ENDPOINTS.items())
    return [(endpoint, name) for endpoint, fields in tables for name, field in fields.items() if field.support in fates]


def ask(endpoint: str, name: str, value: Any) -> ParsedRequest:
    _, body, reads = ENDPOINTS[endpoint]
    return reads({**body, **WITH.get(name, {}), name: value})


def without(endpoint: str, name: str) -> ParsedRequest:
    _, body, reads = ENDPOINTS[endpoint]
    return reads({**body, **WITH.get(name, {})})


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
def test_what_is_honoured_changes_what_is_asked(endpoint: str, name: str) -> None:
    value = True if (endpoint, name) == ("chat", "logprobs") else SAMPLES[name]
    if value is not None:
        assert ask(endpoint, name, value) != without(endpoint, name)


@pytest.mark.parametrize(("endpoint", "name"), rows(FieldSupport.HONOURED))
def test_what_is_honoured_has_one_type(endpoint: str, name: str) -> None:
    for value in ({"x": [1]}, [{"x": 1}], [[True]], 0.5j):
        refused(endpoint, name, value)


@pytest.mark.parametrize(("endpoint", "name"), rows(FieldSupport.HONOURED))
def test_numbers_are_taken_at_their_bounds_and_refused_beyond(endpoint: str, name: str) -> None:
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
def test_only_what_changes_nothing_is_taken(endpoint: str, name: str) -> None:
    values = ENDPOINTS[endpoint][0][name].schema["enum"]
    for value in values:
        assert ask(endpoint, name, value) == without(endpoint, name)
    for value in OTHERS:
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in values):
            assert "is supported only as " in refused(endpoint, name, value)


@pytest.mark.parametrize(("endpoint", "name"), rows(FieldSupport.NO_EFFECT))
def test_what_has_no_effect_is_taken_in_its_type(endpoint: str, name: str) -> None:
    good = {"string": "x", "object": {"a": "b"}, "boolean": True}
    kind = ENDPOINTS[endpoint][0][name].schema["type"]
    assert ask(endpoint, name, good.pop(kind)) == without(endpoint, name)
    for value in (*good.values(), 7, []):
        assert f"must be of type {kind}" in refused(endpoint, name, value)


@pytest.mark.parametrize(("endpoint", "name"), rows(FieldSupport.REFUSED))
def test_what_is_refused_is_refused_whatever_it_says(endpoint: str, name: str) -> None:
    for value in OTHERS:
        assert refused(endpoint, name, value).startswith(f"{name}: is not supported here: ")


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"include_obfuscation": True}, "stream_options.include_obfuscation"),
        ({"include_usage": 1}, "stream_options.include_usage"),
        ({"include_usage": False, "continuous_usage_stats": True}, "stream_options.continuous_usage_stats"),
        ({"continuous_usage_stats": "yes"}, "stream_options.continuous_usage_stats"),
        ({"x": None}, "stream_options.x"),
        ([], "stream_options"),
    ],
)
def test_stream_options_are_refused_by_name(options: Any, name: str) -> None:
    with pytest.raises(InvalidField) as caught:
        parse_completion({"prompt": "x", "stream": True, "stream_options": options})
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("options", "usage", "running"),
    [
        ({}, False, False),
        ({"include_usage": None, "include_obfuscation": False}, False, False),
        ({"include_usage": True, "continuous_usage_stats": False}, True, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
        ({"continuous_usage_stats": True}, True, True),
    ],
)
def test_stream_options(options: Any, usage: bool, running: bool) -> None:
    asked = parse_completion({"prompt": "x", "stream": True, "stream_options": options})
    assert (asked.wants_usage, asked.wants_running_usage) == (usage, running)


@pytest.mark.parametrize("stop", ["a", [], ["a"] * 16])
def test_stops_that_are_taken(stop: Any) -> None:
    assert parse_completion({"prompt": "x", "stop": stop}).settings.stops == ((stop,) if stop == "a" else tuple(stop))


def test_two_names_of_one_limit_must_agree() -> None:
    asked = parse_chat({**CHAT_BODY, "max_tokens": 5, "max_completion_tokens": 5})
    assert asked == parse_chat({**CHAT_BODY, "max_tokens": 5}) == parse_chat({**CHAT_BODY, "max_completion_tokens": 5})
    with pytest.raises(
        InvalidField, match=r"^max_completion_tokens: is 5, and max_tokens, its older name, 6: give one"
    ):
        parse_chat({**CHAT_BODY, "max_tokens": 6, "max_completion_tokens": 5})


def test_best_of_is_n() -> None:
    assert parse_completion({"prompt": "x", "n": 3, "best_of": 3}).choices == 3
    for n, best_of in ((1, 2), (2, 1), (None, 2)):
        with pytest.raises(InvalidField, match=r"^best_of: must be equal to n"):
            parse_completion({"prompt": "x", "n": n, "best_of": best_of})


@pytest.mark.parametrize("empty", [None, [], {"refusal": None}])
def test_an_answers_message_may_be_handed_back_with_its_empty_fields(empty: Any) -> None:
    message = {"role": "assistant", "content": "x"}
    asked = parse_chat({"messages": [{**message, "tool_calls": empty}]})
    assert asked == parse_chat({"messages": [message]})
    part = {"type": "text", "text": "x", "cache_control": empty}
    assert asked == parse_chat({"messages": [{**message, "content": [part]}]})


@pytest.mark.parametrize("full", [["x"], {}, {"a": 1}, "", 0, False, [None], {"a": {}}])
def test_a_field_that_says_something_is_refused_by_its_place(full: Any) -> None:
    with pytest.raises(InvalidField) as caught:
        parse_chat({"messages": [{"role": "assistant", "content": "x", "tool_calls": full}]})
    assert caught.value.name == "messages.0.tool_calls"
