"""A gRPC request: parsed into the same settings and prompts as OpenAI's, with one kind of prompt."""

from typing import Any

import pytest

from dunlin.client.requests import build_request
from dunlin.limits import InvalidField
from dunlin.messages.public import ChatMessage, GenerateRequest
from dunlin.messages.types import RequestClass, i32
from dunlin.wire.codec import encode
from services.dispatcher.admission.refusals import MalformedRequest
from services.dispatcher.doors.preprocess.grpc_request import SETTING_FIELDS, parse_generate

CHAT = (ChatMessage("user", "Hi"),)


@pytest.mark.parametrize(
    ("given", "prompt"),
    [({"prompt": "x"}, "x"), ({"prompt_tokens": i32((1, 2))}, i32((1, 2))), ({"messages": CHAT}, CHAT)],
)
def test_each_kind_of_prompt(given: dict[str, Any], prompt: Any) -> None:
    request, retry = parse_generate(encode(GenerateRequest(**given, max_tokens=3, request_class=RequestClass.BATCH)))
    assert request.prompts == (prompt,)
    assert (request.settings.max_tokens, request.settings.request_class) == (3, RequestClass.BATCH)
    assert retry.idempotency_key == ""


@pytest.mark.parametrize("given", [{}, {"prompt": "x", "messages": CHAT}, {"prompt": "x", "prompt_tokens": i32((1,))}])
def test_exactly_one_prompt_is_given(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidField, match="exactly one") as raised:
        parse_generate(encode(GenerateRequest(**given)))
    assert raised.value.name == "prompt"


def test_every_setting_is_a_field_of_the_message() -> None:
    assert set(SETTING_FIELDS) < set(GenerateRequest.__dataclass_fields__)
    with pytest.raises(InvalidField) as raised:
        parse_generate(encode(GenerateRequest(prompt="x", top_p=2.0)))
    assert raised.value.name == "top_p"


def test_other_bytes_are_malformed() -> None:
    with pytest.raises(MalformedRequest):
        parse_generate(b"\xff\xff")


def test_objectives_of_the_sdk_reach_the_settings() -> None:
    asked = build_request("x", None, {"ttft_objective_s": 0.75, "tpot_objective_s": 0.25})
    request, _ = parse_generate(encode(asked))
    assert (request.settings.ttft_objective_s, request.settings.tpot_objective_s) == (0.75, 0.25)
    request, _ = parse_generate(encode(build_request("x", None, {})))
    assert (request.settings.ttft_objective_s, request.settings.tpot_objective_s) == (None, None)


def test_what_bounds_the_output_comes_from_the_sdks_arguments() -> None:
    options: Any = {"min_tokens": 3, "allowed_token_ids": [5, 6], "bad_words": ["egret"]}
    settings = parse_generate(encode(build_request("x", None, options)))[0].settings
    assert (settings.sampling.min_tokens, list(settings.sampling.allowed_tokens)) == (3, [5, 6])
    assert settings.bad_words == ("egret",)
    assert not parse_generate(encode(GenerateRequest(prompt="x")))[0].settings.sampling.allowed_tokens
