"""One schema: what is not a setting, or out of its range, is refused by its name and changes nothing else."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.limits import BadField
from dunlin.messages.types import RequestClass, Sampling
from services.dispatcher.openai_request import chat_of, completion_of
from services.dispatcher.settings import CHECKS, GREEDY_BELOW, Settings, settings_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
FIELDS = (*CHECKS, "prompt", "messages", "n", "stream", "stream_options", "model", "top_logprobs", "echo", "tools", "x")


def test_nothing_given_is_all_defaults() -> None:
    assert settings_of({}) == Settings() == settings_of(dict.fromkeys(CHECKS))
    assert settings_of({}).sampling == Sampling()


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
def test_sampling_limits_that_are_taken(name: str, value: Any, taken: Any) -> None:
    assert getattr(settings_of({name: value}).sampling, name) == taken


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
    with pytest.raises(BadField) as caught:
        settings_of({"max_tokens": 5, name: value})
    assert caught.value.name.split(".")[0] == name
    assert len(str(caught.value)) < 200


def test_classes_by_name_and_by_value() -> None:
    assert settings_of({"request_class": "batch"}).request_class is RequestClass.BATCH
    assert settings_of({"request_class": RequestClass.BATCH}).request_class is RequestClass.BATCH


def test_biases_keep_their_tokens() -> None:
    sampling = settings_of({"logit_bias": {"7": -1, "3": 2.5}}).sampling
    assert (list(sampling.bias_tokens), list(sampling.bias_values)) == ([7, 3], [-1.0, 2.5])


@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6))
def test_no_json_does_anything_but_pass_or_be_refused_by_name(body: dict[str, Any]) -> None:
    for reads in (completion_of, chat_of):
        with suppress(BadField):
            asked = reads(body)
            assert asked.prompts
            assert asked.choices >= 1


@given(JSON)
def test_a_body_that_is_no_object_is_refused(body: Any) -> None:
    if not isinstance(body, dict):
        with pytest.raises(BadField, match="JSON object"):
            completion_of(body)
