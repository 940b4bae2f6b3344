"""Requests from a caller's arguments: types are checked before anything is sent."""

from typing import Any

import pytest

from dunlin.client.errors import InvalidRequest
from dunlin.client.requests import INTEGER_OPTIONS, NUMBER_OPTIONS, Message, Options, build_request
from dunlin.messages.public import ChatMessage, GenerateRequest
from dunlin.messages.types import i32


def test_prompts_and_messages_of_every_form() -> None:
    assert build_request("x", None, {"max_tokens": 3, "stop": "a"}) == GenerateRequest("x", max_tokens=3, stop=("a",))
    assert build_request([1, 2], None, {"stop": ["a", "b"]}) == GenerateRequest(
        prompt_tokens=i32((1, 2)), stop=("a", "b")
    )
    messages: list[Message] = [ChatMessage("user", "a"), ("assistant", "b"), {"role": "user", "content": "c"}]
    sent = build_request(None, messages, {})
    assert [(one.role, one.content) for one in sent.messages] == [("user", "a"), ("assistant", "b"), ("user", "c")]


@pytest.mark.parametrize(
    ("prompt", "messages", "options", "text"),
    [
        (None, None, {}, "exactly one of prompt and messages"),
        ("x", [("user", "x")], {}, "exactly one of prompt and messages"),
        ("x", None, {"seed": 1 << 63}, "seed: must be a whole number"),
        ("x", None, {"max_tokens": 1.5}, "max_tokens: must be a whole number"),
        ("x", None, {"top_p": "1"}, "top_p: must be a number"),
        ("x", None, {"stop_token_ids": [1 << 31]}, "stop_token_ids: not a list of token ids"),
        (["a"], None, {}, "prompt: not a list of token ids"),
        (None, ["hi"], {}, "no \\(role, content\\)"),
        (None, 5, {}, "messages: must be a list of messages, not 5"),
        ("x", None, {"wrong": 1}, "wrong"),
        ("x", None, {"stop": 5}, "stop: must be a text or a list of texts, not 5"),
        ("x", None, {"stop": [1]}, "stop: must be a text or a list of texts, not \\[1\\]"),
        ("x", None, {"bad_words": 5}, "bad_words: must be a text or a list of texts, not 5"),
        ("x", None, {"structured_output": 5}, "structured_output: must have exactly one of"),
        ("x", None, {"structured_output": {"choice": 5}}, "choice: must be a text or a list of texts, not 5"),
        ("x", None, {"structured_output": {"json": {"a": {1}}}}, "structured_output: json is no JSON schema"),
    ],
)
def test_what_cannot_be_sent_is_refused(prompt: Any, messages: Any, options: Any, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        build_request(prompt, messages, options)


def test_an_option_that_is_none_has_its_default() -> None:
    nothing: Any = dict.fromkeys(Options.__annotations__)
    assert build_request("x", None, nothing) == build_request("x", None, {})


def test_every_number_is_checked() -> None:
    assert {*INTEGER_OPTIONS, *NUMBER_OPTIONS} < set(Options.__annotations__)
