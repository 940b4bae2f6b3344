"""What a client may ask for besides its prompt: one schema for both doors. Knows no protocol and no text.

A value outside its range is refused by name, never bent; the one exception is documented at `GREEDY_BELOW`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import Any

from dunlin.messages.types import I32, RequestClass, Sampling, f32, i32

GREEDY_BELOW = 1e-5
"""Temperatures below are taken as 0: dividing logits by less overflows, and the choice is the same."""

I64_LEAST, I64_MOST = -(1 << 63), (1 << 63) - 1
I32_MOST = (1 << 31) - 1
MOST_STOPS = 16
MOST_STOP_CHARACTERS = 1024
MOST_STOP_IDS = 256
MOST_BIASES = 1024
MOST_LOGPROBS = 20
MOST_TENANT_CHARACTERS = 256


class BadField(ValueError):
    """A field that cannot be taken; `str()` says what is allowed."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


@dataclass(frozen=True, slots=True)
class Settings:
    """A request's limits, checked. `seed` None: the door draws one. `max_tokens` None: what the context leaves."""

    sampling: Sampling = field(default_factory=Sampling)
    seed: int | None = None
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    stop_ids: I32 = field(default_factory=i32)
    ignore_eos: bool = False
    timeout_s: float | None = None
    request_class: RequestClass = RequestClass.INTERACTIVE
    tenant: str = ""


def settings_of(values: Mapping[str, Any]) -> Settings:
    """Settings out of named values; what is missing or None has its default.

    Raises:
        BadField: an unknown name, a wrong type, or a value out of its range.
    """
    for name in values:
        if name not in CHECKS:
            raise BadField(name, "is not a setting")
    checked = {name: CHECKS[name](name, value) for name, value in values.items() if value is not None}
    biases: Mapping[int, float] = checked.pop("logit_bias", {})
    inner = {name: checked.pop(name) for name in SAMPLING if name in checked}
    sampling = Sampling(**inner, bias_tokens=i32(biases), bias_values=f32(biases.values()))
    stops, stop_ids = checked.pop("stop", ()), checked.pop("stop_token_ids", i32())
    return Settings(sampling, stops=stops, stop_ids=stop_ids, **checked)


Check = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number; 3.0 is none, and neither is true."""

    lowest: int
    highest: int

    def __call__(self, name: str, value: Any) -> int:
        """The value, or BadField."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadField(name, f"must be a whole number, not {_shown(value)}")
        if not self.lowest <= value <= self.highest:
            raise BadField(name, f"must be between {self.lowest} and {self.highest}, not {_shown(value)}")
        return value


@dataclass(frozen=True, slots=True)
class Number:
    """A finite number; `above`: greater than `lowest`."""

    lowest: float
    highest: float
    above: bool = False

    def __call__(self, name: str, value: Any) -> float:
        """The value, or BadField."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadField(name, f"must be a number, not {_shown(value)}")
        if isnan(value) or not self.lowest <= value <= self.highest or (self.above and value == self.lowest):
            least = f"above {self.lowest:g}" if self.above else f"at least {self.lowest:g}"
            raise BadField(name, f"must be {least} and at most {self.highest:g}, not {_shown(value)}")
        return float(value)


def flag(name: str, value: Any) -> bool:
    """True or false and nothing like it."""
    if not isinstance(value, bool):
        raise BadField(name, f"must be true or false, not {_shown(value)}")
    return value


def _temperature(name: str, value: Any) -> float:
    checked = TEMPERATURE(name, value)
    return 0.0 if checked < GREEDY_BELOW else checked


def _top_k(name: str, value: Any) -> int:
    return max(0, TOP_K(name, value))  # other servers write "no limit" as -1


def _stops(name: str, value: Any) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else value
    if not isinstance(stops, Sequence) or not all(isinstance(stop, str) for stop in stops):
        raise BadField(name, "must be a string or a list of strings")
    if len(stops) > MOST_STOPS:
        raise BadField(name, f"has {len(stops)} strings; at most {MOST_STOPS} are allowed")
    if not all(1 <= len(stop) <= MOST_STOP_CHARACTERS for stop in stops):
        raise BadField(name, f"each stop string must have 1 to {MOST_STOP_CHARACTERS} characters")
    return tuple(stops)


def token_ids(name: str, value: Any, most: int = I32_MOST) -> I32:
    """Token ids as a column."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise BadField(name, "must be a list of token ids")
    if len(value) > most:
        raise BadField(name, f"has {len(value)} token ids; at most {most} are allowed")
    # Millions may come: in C where all is well, one by one only to say what is wrong.
    if {*map(type, value)} - {int} or (value and not 0 <= min(value) <= max(value) <= I32_MOST):
        for token in value:
            TOKEN(name, token)
    return i32(value)


def _stop_ids(name: str, value: Any) -> I32:
    return token_ids(name, value, MOST_STOP_IDS)


def _logit_bias(name: str, value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise BadField(name, "must be an object of token ids and numbers")
    if len(value) > MOST_BIASES:
        raise BadField(name, f"has {len(value)} entries; at most {MOST_BIASES} are allowed")
    return {_token(name, token): BIAS(f"{name}.{token}", bias) for token, bias in value.items()}


def _token(name: str, spelled: Any) -> int:
    text = str(spelled)
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and int(text) <= I32_MOST):
        raise BadField(name, f"{_shown(spelled)} is not a token id")
    return int(text)


def _tenant(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > MOST_TENANT_CHARACTERS:
        raise BadField(name, f"must be a string of at most {MOST_TENANT_CHARACTERS} characters")
    return value


def _class(name: str, value: Any) -> RequestClass:
    if isinstance(value, RequestClass):
        return value
    classes = {one.name.lower(): one for one in RequestClass}
    if not isinstance(value, str) or value not in classes:
        raise BadField(name, f"must be one of {', '.join(classes)}, not {_shown(value)}")
    return classes[value]


def _shown(value: Any) -> str:
    """A client's value in a message: short, whatever it was."""
    text = repr(value) if not isinstance(value, int) or abs(value) <= I64_MOST else "a number of more than 64 bits"
    return text if len(text) <= 40 else f"{text[:40]}…"


TEMPERATURE = Number(0.0, 10.0)
TOP_K = Whole(-1, I32_MOST)
TOKEN = Whole(0, I32_MOST)
BIAS = Number(-100.0, 100.0)
SAMPLING: dict[str, Check] = {
    "temperature": _temperature,
    "top_k": _top_k,
    "top_p": Number(0.0, 1.0, above=True),
    "min_p": Number(0.0, 1.0),
    "presence_penalty": Number(-2.0, 2.0),
    "frequency_penalty": Number(-2.0, 2.0),
    "repetition_penalty": Number(0.0, 10.0, above=True),
    "logprobs": Whole(0, MOST_LOGPROBS),
}
CHECKS: dict[str, Check] = {
    **SAMPLING,
    "seed": Whole(I64_LEAST, I64_MOST),
    "max_tokens": Whole(1, I32_MOST),
    "stop": _stops,
    "stop_token_ids": _stop_ids,
    "ignore_eos": flag,
    "timeout_s": Number(0.0, 86_400.0, above=True),
    "request_class": _class,
    "tenant": _tenant,
    "logit_bias": _logit_bias,
}
