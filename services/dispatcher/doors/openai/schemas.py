"""JSON schemas of the HTTP door's request fields, made of the limits that the checks use. Test: `test_openapi.py`."""

from typing import Any

from dunlin.limits import (
    BIAS,
    MOST_ALLOWED_TOKENS,
    MOST_BAD_WORD_CHARACTERS,
    MOST_BAD_WORDS,
    MOST_BIASES,
    MOST_CHOICES,
    MOST_GRAMMAR_BYTES,
    MOST_NAME_CHARACTERS,
    MOST_STOP_CHARACTERS,
    MOST_STOP_IDS,
    MOST_STOPS,
    TEMPERATURE,
    TOKEN,
    RealNumber,
    WholeNumber,
)
from services.dispatcher.doors.generation.grammars import MOST_CHOICE_TEXTS
from services.dispatcher.doors.generation.settings import SETTING_CHECKS, TOP_K
from services.dispatcher.doors.openai.output_format import SCHEMA_NAME_CHARACTERS
from services.dispatcher.doors.tools.request import MODES, MOST_CALL_ID_CHARACTERS, MOST_TOOLS, NAME_PATTERN

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
_CALL_ID: Json = {"type": "string", "minLength": 1, "maxLength": MOST_CALL_ID_CHARACTERS}
_FUNCTION_NAME: Json = {"type": "string", "pattern": NAME_PATTERN}
_CALL: Json = {
    "type": "object",
    "required": ["function"],
    "properties": {
        "id": _CALL_ID,
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name", "arguments"],
            "properties": {"name": STRING, "arguments": STRING},
        },
    },
}
MESSAGE: Json = {
    "type": "object",
    "required": ["role"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"anyOf": [STRING, {"type": "array", "items": TEXT_PART}, {"type": "null"}]},
        "name": {"anyOf": [NAME, {"type": "null"}]},
        "tool_calls": {"anyOf": [{"type": "array", "items": _CALL, "maxItems": MOST_TOOLS}, {"type": "null"}]},
        "tool_call_id": {"anyOf": [_CALL_ID, {"type": "null"}]},
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
TOOLS_SCHEMA: Json = {
    "type": "array",
    "maxItems": MOST_TOOLS,
    "items": {
        "type": "object",
        "required": ["type", "function"],
        "properties": {
            "type": {"const": "function"},
            "function": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": _FUNCTION_NAME,
                    "description": {"type": ["string", "null"]},
                    "parameters": {"type": ["object", "null"]},
                    "strict": {"type": ["boolean", "null"]},
                },
                "additionalProperties": False,
            },
        },
        "additionalProperties": False,
    },
}
TOOL_CHOICE: Json = {
    "anyOf": [
        {"enum": [*MODES]},
        {
            "type": "object",
            "required": ["type", "function"],
            "properties": {
                "type": {"const": "function"},
                "function": {"type": "object", "required": ["name"], "properties": {"name": _FUNCTION_NAME}},
            },
        },
    ]
}
SERVICE_TIERS = ("auto", "default", "flex")
_STOP: Json = {"type": "string", "minLength": 1, "maxLength": MOST_STOP_CHARACTERS}
_NULLABLE_BOOLEAN: Json = {"type": ["boolean", "null"]}
RESPONSE_FORMAT: Json = {
    "anyOf": [
        {"type": "object", "required": ["type"], "properties": {"type": {"enum": ["text", "json_object"]}}},
        {
            "type": "object",
            "required": ["type", "json_schema"],
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "required": ["name", "schema"],
                    "properties": {
                        "name": {"type": "string", "minLength": 1, "maxLength": SCHEMA_NAME_CHARACTERS},
                        "description": {"type": ["string", "null"]},
                        "schema": OBJECT,
                        "strict": _NULLABLE_BOOLEAN,
                    },
                    "additionalProperties": False,
                },
            },
        },
    ]
}
GRAMMAR_TEXT: Json = {"type": "string", "minLength": 1, "maxLength": MOST_GRAMMAR_BYTES}
CHOICE: Json = {"type": "array", "items": GRAMMAR_TEXT, "minItems": 1, "maxItems": MOST_CHOICE_TEXTS}
JSON_SCHEMA: Json = {"anyOf": [OBJECT, GRAMMAR_TEXT]}
STRUCTURED_OUTPUTS: Json = {
    "type": "object",
    "properties": {
        "json": JSON_SCHEMA,
        "json_object": _NULLABLE_BOOLEAN,
        "regex": GRAMMAR_TEXT,
        "choice": CHOICE,
        "grammar": GRAMMAR_TEXT,
        "whitespace_pattern": {"type": ["string", "null"]},
        "disable_any_whitespace": _NULLABLE_BOOLEAN,
        "disable_fallback": _NULLABLE_BOOLEAN,
    },
    "additionalProperties": False,
}
_RANGES: dict[str, Any] = {**SETTING_CHECKS, "temperature": TEMPERATURE, "top_k": TOP_K}

SETTING_SCHEMAS: dict[str, Json] = {
    **{name: range_of(check) for name, check in _RANGES.items() if isinstance(check, WholeNumber | RealNumber)},
    "stop": {"anyOf": [_STOP, {"type": "array", "items": _STOP, "maxItems": MOST_STOPS}]},
    "stop_token_ids": {**TOKENS, "minItems": 0, "maxItems": MOST_STOP_IDS},
    "ignore_eos": BOOLEAN,
    "request_class": {"enum": ["interactive", "batch"]},
    "allowed_token_ids": {**TOKENS, "maxItems": MOST_ALLOWED_TOKENS},
    "bad_words": {
        "type": "array",
        "items": {"type": "string", "minLength": 1, "maxLength": MOST_BAD_WORD_CHARACTERS},
        "maxItems": MOST_BAD_WORDS,
    },
    "logit_bias": {
        "type": "object",
        "maxProperties": MOST_BIASES,
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": range_of(BIAS),
    },
}
"""The schema of each setting that both endpoints share, by its name."""
