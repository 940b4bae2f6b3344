"""The settings of a generation request besides its prompt: one set of checks for both doors. Knows no protocol.

A value outside its range is refused with the field's name, never clamped; the one exception is `GREEDY_BELOW`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dunlin.limits import (
    BIAS,
    I32_MOST,
    MAX_TOKENS,
    MOST_ALLOWED_TOKENS,
    MOST_BAD_WORD_CHARACTERS,
    MOST_BAD_WORDS,
    MOST_BIASES,
    MOST_STOP_CHARACTERS,
    MOST_STOP_IDS,
    MOST_STOPS,
    MOST_TENANT_CHARACTERS,
    OBJECTIVE_S,
    SAMPLING,
    SEED,
    TEMPERATURE,
    TOKEN,
    InvalidField,
    RealNumber,
    WholeNumber,
    brief_repr,
)
from dunlin.messages.types import I32, Grammar, RequestClass, SamplingParams, f32, i32

GREEDY_BELOW = 1e-5
"""Temperatures below count as 0: dividing logits by less overflows, and greedy sampling chooses the same tokens."""


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """A request's checked settings. `seed` None: the gateway draws one. `max_tokens` None: what the context leaves.

    `ttft_objective_s` and `tpot_objective_s` None: the tenant's, or the cluster's. `adapter` is the digest of the LoRA
    adapter that the request's `model` names; "": of none.
    """

    sampling: SamplingParams = field(default_factory=SamplingParams)
    seed: int | None = None
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    stop_ids: I32 = field(default_factory=i32)
    ignore_eos: bool = False
    timeout_s: float | None = None
    request_class: RequestClass = RequestClass.INTERACTIVE
    tenant: str = ""
    ttft_objective_s: float | None = None
    tpot_objective_s: float | None = None
    bad_words: tuple[str, ...] = ()
    adapter: str = ""


def parse_settings(values: Mapping[str, Any], grammar: Grammar | None = None) -> RequestSettings:
    """Check named values and make settings of them; one that is missing or None gets its default.

    Raises:
        InvalidField: an unknown name, a wrong type, or a value out of its range; or one that `grammar` leaves no room
            for.
    """
    for name in values:
        if name not in SETTING_CHECKS:
            raise InvalidField(name, "is not a setting")
    checked = {name: SETTING_CHECKS[name](name, value) for name, value in values.items() if value is not None}
    biases: Mapping[int, float] = checked.pop("logit_bias", {})
    inner = {name: checked.pop(name) for name in SAMPLING if name in checked}
    if grammar is not None:
        check_beside_grammar(checked)
    sampling = SamplingParams(
        **inner,
        bias_tokens=i32(biases),
        bias_values=f32(biases.values()),
        grammar=grammar,
        allowed_tokens=checked.pop("allowed_token_ids", i32()),
    )
    stops, stop_ids = checked.pop("stop", ()), checked.pop("stop_token_ids", i32())
    return RequestSettings(sampling, stops=stops, stop_ids=stop_ids, **checked)


def check_beside_grammar(checked: Mapping[str, Any]) -> None:
    """A format that leaves no token to choose would end in an error: what may lead there is refused."""
    for name in ("ignore_eos", "allowed_token_ids", "bad_words"):
        if checked.get(name):
            raise InvalidField(name, "cannot be given where the output is constrained to a format")


SettingCheck = Callable[[str, Any], Any]
"""From a setting's name and value to the checked value; raises InvalidField."""


def flag(name: str, value: Any) -> bool:
    """A boolean. Raises InvalidField for any other type, 0 and 1 included."""
    if not isinstance(value, bool):
        raise InvalidField(name, f"must be true or false, not {brief_repr(value)}")
    return value


def _temperature(name: str, value: Any) -> float:
    checked = TEMPERATURE(name, value)
    return 0.0 if checked < GREEDY_BELOW else checked


def _top_k(name: str, value: Any) -> int:
    return max(0, TOP_K(name, value))  # other servers write "no limit" as -1


def _stops(name: str, value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else value
    if not isinstance(stops, Sequence) or not all(isinstance(stop, str) for stop in stops):
        raise InvalidField(name, "must be a string or a list of strings")
    if len(stops) > MOST_STOPS:
        raise InvalidField(name, f"has {len(stops)} strings; at most {MOST_STOPS} are allowed")
    if not all(1 <= len(stop) <= MOST_STOP_CHARACTERS for stop in stops):
        raise InvalidField(name, f"each stop string must have 1 to {MOST_STOP_CHARACTERS} characters")
    return tuple(stops)


def token_ids(name: str, value: Any, most: int = I32_MOST) -> I32:
    """A list of at most `most` token ids, as a column. Raises InvalidField."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InvalidField(name, "must be a list of token ids")
    if len(value) > most:
        raise InvalidField(name, f"has {len(value)} token ids; at most {most} are allowed")
    # A prompt may have millions of ids: checked in C, and one by one only to name the first that is wrong.
    if {*map(type, value)} - {int} or (value and not 0 <= min(value) <= max(value) <= I32_MOST):
        for token in value:
            TOKEN(name, token)
    return i32(value)


def _stop_ids(name: str, value: Any) -> I32:
    return token_ids(name, value, MOST_STOP_IDS)


def _allowed_tokens(name: str, value: Any) -> I32:
    tokens = token_ids(name, value, MOST_ALLOWED_TOKENS)
    if not tokens:
        raise InvalidField(name, "must have at least one token id")
    return tokens


def _bad_words(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(word, str) for word in value):
        raise InvalidField(name, "must be a list of strings")
    if len(value) > MOST_BAD_WORDS:
        raise InvalidField(name, f"has {len(value)} words; at most {MOST_BAD_WORDS} are allowed")
    if not all(1 <= len(word) <= MOST_BAD_WORD_CHARACTERS for word in value):
        raise InvalidField(name, f"each word must have 1 to {MOST_BAD_WORD_CHARACTERS} characters")
    return tuple(value)


def _logit_bias(name: str, value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise InvalidField(name, "must be an object of token ids and numbers")
    if len(value) > MOST_BIASES:
        raise InvalidField(name, f"has {len(value)} entries; at most {MOST_BIASES} are allowed")
    biases = {_token(name, token): BIAS(f"{name}.{token}", bias) for token, bias in value.items()}
    if len(biases) < len(value):
        raise InvalidField(name, "names a token id twice, spelled in two ways")
    return biases


def _token(name: str, spelled: Any) -> int:
    text = str(spelled)
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= I32_MOST):
        raise InvalidField(name, f"{brief_repr(spelled)} is not a token id")
    return int(text)


def _tenant(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MOST_TENANT_CHARACTERS:
        raise InvalidField(name, f"must be a string of at most {MOST_TENANT_CHARACTERS} characters")
    return value


def _class(name: str, value: Any) -> RequestClass:
    if isinstance(value, RequestClass):
        return value
    classes = {one.name.lower(): one for one in RequestClass}
    if not isinstance(value, str) or value not in classes:
        raise InvalidField(name, f"must be one of {', '.join(classes)}, not {brief_repr(value)}")
    return classes[value]


TOP_K = WholeNumber(-1, I32_MOST)
SETTING_CHECKS: dict[str, SettingCheck] = {
    **SAMPLING,
    "temperature": _temperature,
    "top_k": _top_k,
    "seed": SEED,
    "max_tokens": MAX_TOKENS,
    "stop": _stops,
    "stop_token_ids": _stop_ids,
    "ignore_eos": flag,
    "timeout_s": RealNumber(0.0, 86_400.0, above=True),
    "ttft_objective_s": OBJECTIVE_S,
    "tpot_objective_s": OBJECTIVE_S,
    "request_class": _class,
    "tenant": _tenant,
    "logit_bias": _logit_bias,
    "allowed_token_ids": _allowed_tokens,
    "bad_words": _bad_words,
}
