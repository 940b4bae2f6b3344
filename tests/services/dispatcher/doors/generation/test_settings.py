"""One schema: what is not a setting, or out of its range, is refused by its name and changes nothing else."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.limits import InvalidField
from dunlin.messages.types import RequestClass, SamplingParams
from services.dispatcher.doors.generation.settings import GREEDY_BELOW, SETTING_CHECKS, RequestSettings, parse_settings
from services.dispatcher.doors.openai.request import parse_chat, parse_completion

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
FIELDS = (
    *SETTING_CHECKS,
    "prompt",
    "messages",
    "n",
    "stream",
    "stream_options",
    "model",
    "top_logprobs",
    "echo",
    "tools",
    "x",
)


def test_nothing_given_is_all_defaults() -> None:
    assert parse_settings({}) == RequestSettings() == parse_settings(dict.fromkeys(SETTING_CHECKS))
    assert parse_settings({}).sampling == SamplingParams()


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("temperature", 0, 0.0),
        ("temperature", GREEDY_BELOW / 2, 0.0),
        ("temperature", GREEDY_BELOW, GREEDY_BELOW),
        ("temperature", 10, 10.0),
        ("top_k", -1, 0),
        ("top_k", 3, 3),
        ("top_p", 1, 1.0),
        ("min_p", 0, 0.0),
        ("logprobs", 0, 0),
        ("logprobs", 20, 20),
    ],
)
def test_sampling_values_at_their_limits_are_accepted(name: str, value: Any, taken: Any) -> None:
    assert getattr(parse_settings({name: value}).sampling, name) == taken


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.0001),
        ("temperature", 10.001),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", True),
        ("top_k", -2),
        ("top_k", 1 << 31),
        ("top_k", 1.0),
        ("top_p", 0.0),
        ("top_p", 1.0001),
        ("min_p", -0.1),
        ("repetition_penalty", 0.0),
        ("seed", 1 << 63),
        ("seed", -(1 << 63) - 1),
        ("max_tokens", 0),
        ("max_tokens", 1 << 31),
        ("stop", [b"x"]),
        ("stop", {"a": 1}),
        ("stop_token_ids", "12"),
        ("stop_token_ids", [1] * 257),
        ("ignore_eos", 0),
        ("timeout_s", 86_400.1),
        ("request_class", "urgent"),
        ("request_class", []),
        ("tenant", 7),
        ("logit_bias", [1]),
        ("logit_bias", dict.fromkeys(range(1025), 0)),
        ("logit_bias", {"1": float("nan")}),
        ("logit_bias", {"9" * 5000: 1}),
        ("logit_bias", {"2147483648": 1}),
        ("logit_bias", {"²": 1}),
        ("frobnicate", None),
    ],
)
def test_limits_that_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidField) as caught:
        parse_settings({"max_tokens": 5, name: value})
    assert caught.value.name.split(".")[0] == name
    assert len(str(caught.value)) < 200


def test_classes_by_name_and_by_value() -> None:
    assert parse_settings({"request_class": "batch"}).request_class is RequestClass.BATCH
    assert parse_settings({"request_class": RequestClass.BATCH}).request_class is RequestClass.BATCH


def test_biases_keep_their_tokens() -> None:
    sampling = parse_settings({"logit_bias": {"7": -1, "3": 2.5}}).sampling
    assert (list(sampling.bias_tokens), list(sampling.bias_values)) == ([7, 3], [-1.0, 2.5])


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6))
def test_no_json_does_anything_but_pass_or_be_refused_by_name(body: dict[str, Any]) -> None:
    for reads in (parse_completion, parse_chat):
        with suppress(InvalidField):
            settings = reads(body)
            assert settings.prompts
            assert settings.choices >= 1


@given(JSON)
def test_a_body_that_is_no_object_is_refused(body: Any) -> None:
    if not isinstance(body, dict):
        with pytest.raises(InvalidField, match="JSON object"):
            parse_completion(body)
