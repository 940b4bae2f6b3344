"""OpenAI's requests: stream options, limits under two names, messages that are sent back."""

from typing import Any

import pytest

from dunlin.limits import InvalidField
from services.dispatcher.doors.openai.request import parse_chat, parse_completion

CHAT_BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}


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
def test_accepted_stop_strings(stop: Any) -> None:
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
def test_an_answers_message_may_be_sent_back_with_its_empty_fields(empty: Any) -> None:
    message = {"role": "assistant", "content": "x"}
    asked = parse_chat({"messages": [{**message, "tool_calls": empty}]})
    assert asked == parse_chat({"messages": [message]})
    part = {"type": "text", "text": "x", "cache_control": empty}
    assert asked == parse_chat({"messages": [{**message, "content": [part]}]})


@pytest.mark.parametrize("full", [["x"], {}, {"a": 1}, "", 0, False, [None], {"a": {}}])
def test_an_extra_field_with_content_is_refused_by_its_place(full: Any) -> None:
    with pytest.raises(InvalidField) as caught:
        parse_chat({"messages": [{"role": "assistant", "content": "x", "audio": full}]})
    assert caught.value.name == "messages.0.audio"
