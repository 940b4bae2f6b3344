"""One schema: whatever a door takes an instance takes, and what no door takes no engine gets."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.limits import (
    I32_MOST,
    MOST_ALLOWED_TOKENS,
    MOST_BIASES,
    MOST_EOS_IDS,
    MOST_GRAMMAR_BYTES,
    MOST_LOGPROBS,
    MOST_STOP_IDS,
    MOST_TENANT_CHARACTERS,
    SAMPLING,
    InvalidField,
    RealNumber,
    WholeNumber,
    check_vocabulary,
    placement_error,
)
from dunlin.messages.dispatch import Place
from dunlin.messages.types import Grammar, GrammarKind, SamplingParams, f32, i32
from services.dispatcher.doors.generation.settings import parse_settings

VOCABULARY = 100


def place(sampling: SamplingParams | None = None, **changes: Any) -> Place:
    made = Place(1, 1, i32([5, 6, 7, 8]), prompt_tokens=3, max_tokens=4, sampling=sampling or SamplingParams())
    return dataclasses.replace(made, **changes)


def sampling(**changes: Any) -> Place:
    return place(SamplingParams(**changes))


def test_an_ordinary_request_has_no_fault() -> None:
    assert placement_error(place(), VOCABULARY) == ""


def values(check: WholeNumber | RealNumber) -> st.SearchStrategy[Any]:
    if isinstance(check, WholeNumber):
        return st.integers(check.lowest, check.highest)
    return st.floats(check.lowest, check.highest, exclude_min=check.above)


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        **{name: values(check) for name, check in SAMPLING.items()},
        "top_k": st.integers(-1, I32_MOST),
        "max_tokens": st.integers(1, I32_MOST),
        "tenant": st.text(max_size=MOST_TENANT_CHARACTERS),
        "logit_bias": st.dictionaries(st.integers(0, VOCABULARY - 1), st.floats(-100, 100), max_size=20),
        "stop_token_ids": st.lists(st.integers(0, I32_MOST), max_size=20),
    },
)


@given(OPTIONS, st.integers(-(1 << 63), (1 << 63) - 1))
def test_what_a_door_takes_an_instance_takes(options: dict[str, Any], seed: int) -> None:
    settings = parse_settings(options)
    wanted = place(
        dataclasses.replace(settings.sampling, seed=seed, choice=127),
        stop_ids=i32([*settings.stop_ids, *range(MOST_EOS_IDS)]),
        max_tokens=settings.max_tokens or 1,
        tenant=settings.tenant,
    )
    assert placement_error(wanted, VOCABULARY) == ""


@pytest.mark.parametrize(
    ("name", "value"), [("stop_token_ids", [5, VOCABULARY]), ("logit_bias", {"5": 1, str(VOCABULARY): 1})]
)
def test_a_token_that_the_model_does_not_have_is_refused_by_name(name: str, value: Any) -> None:
    settings = parse_settings({name: value})
    check_vocabulary(settings.sampling, settings.stop_ids, VOCABULARY + 1)
    with pytest.raises(InvalidField, match=f"^{name}: token id 100 is outside the vocabulary of 100$"):
        check_vocabulary(settings.sampling, settings.stop_ids, VOCABULARY)


def test_the_largest_lists_of_a_door_are_taken() -> None:
    biases = {str(token): 1.0 for token in range(MOST_BIASES)}
    settings = parse_settings({"logit_bias": biases, "stop_token_ids": list(range(MOST_STOP_IDS))})
    wanted = place(settings.sampling, stop_ids=i32([*settings.stop_ids, *range(MOST_EOS_IDS)]))
    check_vocabulary(settings.sampling, settings.stop_ids, MOST_BIASES)
    assert placement_error(wanted, MOST_BIASES) == ""


FAULTS = [
    (sampling(temperature=-0.1), "temperature: must be at least 0"),
    (sampling(temperature=math.nan), "temperature: must be"),
    (sampling(temperature=math.inf), "temperature: must be"),
    (sampling(top_k=-1), "top_k: must be between 0"),
    (sampling(top_k=1 << 31), "top_k: must be"),
    (sampling(top_p=0.0), "top_p: must be above 0"),
    (sampling(top_p=1.1), "top_p: must be"),
    (sampling(min_p=-1.0), "min_p: must be"),
    (sampling(presence_penalty=2.5), "presence_penalty: must be"),
    (sampling(frequency_penalty=math.nan), "frequency_penalty: must be"),
    (sampling(repetition_penalty=0.0), "repetition_penalty: must be above 0"),
    (sampling(logprobs=MOST_LOGPROBS + 1), "logprobs: must be between 0 and 20"),
    (sampling(logprobs=-1), "logprobs: must be"),
    (sampling(prompt_logprobs=MOST_LOGPROBS + 1), "prompt_logprobs: must be between 0 and 20"),
    (sampling(prompt_logprobs=-1), "prompt_logprobs: must be"),
    (place(scored=-1), "scored: must be"),
    (place(scored=4), "scored: must be between 0 and 2"),
    (sampling(choice=-1), "choice: must be"),
    (sampling(choice=128), "choice: must be"),
    (sampling(bias_tokens=i32([1, 2]), bias_values=f32([1.0])), "logit_bias: 1 values for 2 tokens"),
    (sampling(bias_tokens=i32([1]), bias_values=f32([math.nan])), "logit_bias: must be"),
    (sampling(bias_tokens=i32([1]), bias_values=f32([101.0])), "logit_bias: must be"),
    (sampling(bias_tokens=i32([-1]), bias_values=f32([1.0])), "logit_bias: must be"),
    (sampling(bias_tokens=i32([VOCABULARY]), bias_values=f32([1.0])), "logit_bias: token id 100 is outside"),
    (sampling(bias_tokens=i32(range(1025)), bias_values=f32([0.0] * 1025)), "logit_bias: has 1025 entries"),
    (sampling(min_tokens=-1), "min_tokens: must be"),
    (sampling(grammar=Grammar(GrammarKind.REGEX, "ä" * MOST_GRAMMAR_BYTES)), "grammar: has 131072 bytes"),
    (sampling(allowed_tokens=i32(range(MOST_ALLOWED_TOKENS + 1))), "allowed_token_ids: has 4097 entries"),
    (sampling(allowed_tokens=i32([VOCABULARY])), "allowed_token_ids: token id 100 is outside"),
    (sampling(bad_tokens=i32([1]), bad_stops=i32([2])), "bad_words: their columns do not fit"),
    (sampling(bad_tokens=i32([1, 2]), bad_stops=i32([2, 1])), "bad_words: their columns do not fit"),
    (sampling(bad_tokens=i32([1, 2]), bad_stops=i32([0, 2])), "bad_words: their columns do not fit"),
    (sampling(bad_tokens=i32([-1]), bad_stops=i32([1])), "bad_words: must be"),
    (sampling(bad_tokens=i32([1] * 8193), bad_stops=i32([8193])), "bad_words: has 8193 entries"),
    (place(stop_ids=i32(range(MOST_STOP_IDS + MOST_EOS_IDS + 1))), "stop_token_ids: has 321 entries"),
    (place(stop_ids=i32([-1])), "stop_token_ids: must be"),
    (place(max_tokens=0), "max_tokens: must be between 1"),
    (place(max_tokens=-5), "max_tokens: must be"),
    (place(prompt_tokens=0), "prompt_tokens: must be between 1 and 4"),
    (place(prompt_tokens=5), "prompt_tokens: must be between 1 and 4"),
    (place(tokens=i32()), "prompt_tokens: must be"),
    (place(tokens=i32([5, -1, 6])), "the model has no such token as -1"),
    (place(tokens=i32([5, VOCABULARY, 6])), "the model has no such token as 100"),
    (place(tenant="x" * 257), "tenant: has 257 characters"),
    (place(key="x" * 1025), "key: has 1025 characters"),
    (place(idempotency="x" * 1025), "idempotency: has"),
    (place(trace="x" * 1025), "trace: has"),
]


@pytest.mark.parametrize(("wanted", "text"), FAULTS)
def test_what_no_door_takes_is_a_fault(wanted: Place, text: str) -> None:
    assert text in placement_error(wanted, VOCABULARY)


def test_every_field_of_sampling_is_checked() -> None:
    """A new field comes with its limit, or this fails."""
    checked = {wanted_text.split(":")[0] for _, wanted_text in FAULTS}
    names = {field.name for field in dataclasses.fields(SamplingParams)}
    unnamed = {"bias_tokens", "bias_values", "allowed_tokens", "bad_tokens", "bad_stops"}  # as the doors call them
    assert {"logit_bias", "allowed_token_ids", "bad_words"} <= checked
    assert names - checked == {"seed"} | unnamed  # any 64 bits
