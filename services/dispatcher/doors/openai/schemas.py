"""JSON schemas of the HTTP door's request fields, made of the limits that the checks use. Test: `test_openapi.py`."""

from typing import Any

from dunlin.limits import (
    BIAS,
    MOST_BIASES,
    MOST_CHOICES,
    MOST_NAME_CHARACTERS,
    MOST_STOP_CHARACTERS,
    MOST_STOP_IDS,
    MOST_STOPS,
    TEMPERATURE,
    TOKEN,
    RealNumber,
    WholeNumber,
)
from services.dispatcher.doors.generation.settings import SETTING_CHECKS, TOP_K

Json = dict[str, Any]

STRING: Json = {"type": "string"}
BOOLEAN: Json = {"type": "boolean"}
OBJECT: Json = {"type": "object"}


def range_of(check: WholeNumber | RealNumber) -> Json:
    """The schema of the numbers that `check` accepts."""
    least = "exclusiveMinimum" if isinstance(check, RealNumber) and check.above else "minimum"
    kind = "integer" if isinstance(check, WholeNumber) else "number"
    return {"type": kind, least: check.lowest, "maximum": check.highest}


TOKENS: Json = {"type": "array", "items": range_of(TOKEN), "minItems": 1}
PROMPT: Json = {
    "anyOf": [
        STRING,
        TOKENS,
        {"type": "array", "items": STRING, "minItems": 1, "maxItems": MOST_CHOICES},
        {"type": "array", "items": TOKENS, "minItems": 1, "maxItems": MOST_CHOICES},
    ]
}
TEXT_PART: Json = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": STRING},
    "additionalProperties": False,
}
NAME: Json = {"type": "string", "minLength": 1, "maxLength": MOST_NAME_CHARACTERS}
MESSAGE: Json = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant"]},
        "content": {"anyOf": [STRING, {"type": "array", "items": TEXT_PART}]},
        "name": {"anyOf": [NAME, {"type": "null"}]},
    },
    "additionalProperties": False,
}
STREAM_OPTIONS: Json = {
    "type": "object",
    "properties": {
        "include_usage": {"type": ["boolean", "null"]},
        "continuous_usage_stats": {"type": ["boolean", "null"]},
        "include_obfuscation": {"enum": [False, None]},
    },
    "additionalProperties": False,
}
SERVICE_TIERS = ("auto", "default", "flex")
_STOP: Json = {"type": "string", "minLength": 1, "maxLength": MOST_STOP_CHARACTERS}
_RANGES: dict[str, Any] = {**SETTING_CHECKS, "temperature": TEMPERATURE, "top_k": TOP_K}

SETTING_SCHEMAS: dict[str, Json] = {
    **{name: range_of(check) for name, check in _RANGES.items() if isinstance(check, WholeNumber | RealNumber)},
    "stop": {"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MOST_STOPS}]},
    "stop_token_ids": {**TOKENS, "minItems": 0, "maxItems": MOST_STOP_IDS},
    "ignore_eos": BOOLEAN,
    "request_class": {"enum": ["interactive", "batch"]},
    "logit_bias": {
        "type": "object",
        "maxProperties": MOST_BIASES,
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": range_of(BIAS),
    },
}
"""The schema of each setting that both endpoints share, by its name."""
