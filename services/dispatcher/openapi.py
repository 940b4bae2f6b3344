"""The OpenAPI document of the HTTP door: what it takes and what it answers, with the very limits that it checks.

Generators of clients and fuzzers read it. Knows no HTTP server.
"""

from collections.abc import Mapping
from typing import Any

import dunlin
from dunlin.limits import (
    BIAS,
    I32_MOST,
    MOST_BIASES,
    MOST_CHOICES,
    MOST_LOGPROBS,
    MOST_NAME_CHARACTERS,
    MOST_STOP_CHARACTERS,
    MOST_STOP_IDS,
    MOST_STOPS,
    TEMPERATURE,
    TOKEN,
    Number,
    Whole,
)
from services.dispatcher.openai_request import CHAT_NEUTRAL, COMPLETION_NEUTRAL
from services.dispatcher.settings import CHECKS, TOP_K

Json = dict[str, Any]


def document() -> Json:
    """OpenAPI 3.1, as JSON."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "dunlin", "version": dunlin.__version__, "license": {"name": "Apache-2.0"}},
        "paths": {
            "/v1/models": {"get": _get("The model that is served.", "models")},
            "/v1/models/{model}": {"get": _get("One model.", "model", _path("model"), 404)},
            "/v1/completions": {"post": _post("Continue a text.", "CompletionRequest", "completion")},
            "/v1/chat/completions": {"post": _post("Answer a conversation.", "ChatRequest", "chat completion")},
            "/health": {"get": _get("Whether an instance can serve.", "health", (), 503)},
            "/metrics": {"get": _text("Counters for Prometheus.")},
            "/version": {"get": _get("The version that runs.", "version")},
        },
        "components": {
            "schemas": {"CompletionRequest": _completion(), "ChatRequest": _chat(), "Error": ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
TOKENS: Json = {
    "type": "array",
    "items": {"type": "integer", "minimum": TOKEN.lowest, "maximum": TOKEN.highest},
    "minItems": 1,
}
PROMPT: Json = {
    "anyOf": [
        {"type": "string"},
        TOKENS,
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MOST_CHOICES},
        {"type": "array", "items": TOKENS, "minItems": 1, "maxItems": MOST_CHOICES},
    ]
}
PART: Json = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
}
MESSAGE: Json = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant"]},
        "content": {"anyOf": [{"type": "string"}, {"type": "array", "items": PART}]},
        "name": {"type": ["string", "null"]},
    },
    "additionalProperties": False,
}
STOP: Json = {"type": "string", "minLength": 1, "maxLength": MOST_STOP_CHARACTERS}
SPELLED: dict[str, Json] = {
    "stop": {"anyOf": [STOP, {"type": "array", "items": STOP, "maxItems": MOST_STOPS}]},
    "stop_token_ids": {**TOKENS, "minItems": 0, "maxItems": MOST_STOP_IDS},
    "ignore_eos": {"type": "boolean"},
    "request_class": {"enum": ["interactive", "batch"]},
    "logit_bias": {"type": "object", "maxProperties": MOST_BIASES, "propertyNames": {"pattern": "^[0-9]{1,9}$"}},
}
"""Settings whose check is not a mere range."""


def _settings() -> Json:
    """Every setting with its range; null says nothing."""
    ranges: dict[str, Any] = {**CHECKS, "temperature": TEMPERATURE, "top_k": TOP_K}
    found = {name: _range(check) for name, check in ranges.items() if isinstance(check, Whole | Number)}
    bias = {**SPELLED["logit_bias"], "additionalProperties": _range(BIAS)}
    return {**found, **SPELLED, "logit_bias": bias}


def _range(check: Whole | Number) -> Json:
    least = "exclusiveMinimum" if isinstance(check, Number) and check.above else "minimum"
    kind = "integer" if isinstance(check, Whole) else "number"
    return {"type": kind, least: check.lowest, "maximum": check.highest}


def _shared() -> Json:
    return {
        **_settings(),
        "model": {"type": "string"},
        "n": _range(Whole(1, MOST_CHOICES)),
        "stream": {"type": "boolean"},
        "stream_options": {
            "type": "object",
            "properties": {"include_usage": {"type": "boolean"}, "include_obfuscation": {}},
            "additionalProperties": False,
        },
    }


def _completion() -> Json:
    own = {"prompt": PROMPT, "logprobs": _range(Whole(0, MOST_LOGPROBS))}
    return _request({**_shared(), **own}, ["prompt"], COMPLETION_NEUTRAL)


def _chat() -> Json:
    own = {
        "messages": {"type": "array", "items": MESSAGE, "minItems": 1},
        "max_completion_tokens": _range(Whole(1, I32_MOST)),
        "logprobs": {"type": "boolean"},
        "top_logprobs": _range(Whole(0, MOST_LOGPROBS)),
    }
    return _request({**_shared(), **own}, ["messages"], CHAT_NEUTRAL)


def _request(properties: Json, required: list[str], neutral: Mapping[str, object]) -> Json:
    nullable = {name: schema if name in required else _or_null(schema) for name, schema in properties.items()}
    ignored = {name: {"description": "Taken where it changes nothing."} for name in neutral}
    return {
        "type": "object",
        "required": required,
        "properties": {**nullable, **ignored},
        "additionalProperties": False,
    }


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}


def _get(summary: str, what: str, parameters: tuple[Json, ...] = (), *errors: int) -> Json:
    operation: Json = {"summary": summary, "responses": {"200": _json(f"The {what}.", {"type": "object"})}}
    for status in errors:
        operation["responses"][str(status)] = _json(STATUSES[status], {"type": "object"})
    return {**operation, "parameters": list(parameters)} if parameters else operation


def _path(name: str) -> tuple[Json, ...]:
    return ({"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}},)


def _text(summary: str) -> Json:
    return {"summary": summary, "responses": {"200": {"description": "Text.", "content": {"text/plain": {}}}}}


STATUSES = {
    400: "The request cannot be taken; `param` names the field.",
    401: "The API key is missing or unknown.",
    403: "The tenant may not do this.",
    404: "There is no such model.",
    408: "The body did not come in time.",
    409: "The idempotency key belongs to a request that cannot be joined.",
    413: "The body is too large.",
    415: "The body's encoding is not known.",
    422: "The idempotency key belongs to another request.",
    429: "Too much is waiting, or a quota is spent; Retry-After says when to come back.",
    499: "The request was cancelled.",
    500: "The request was given up.",
    503: "No instance can serve just now; Retry-After says when to come back.",
    504: "The deadline passed.",
}


IDEMPOTENCY: Json = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The tenant's own name for this request: sent again with the same body, it gets the same answer.",
    "schema": {"type": "string", "pattern": "^[ -~]*$", "maxLength": MOST_NAME_CHARACTERS},
}


def _post(summary: str, schema: str, what: str) -> Json:
    body = {"$ref": f"#/components/schemas/{schema}"}
    refusals = {str(code): _json(text, {"$ref": "#/components/schemas/Error"}) for code, text in STATUSES.items()}
    done = _json(f"The {what}; with stream: true, server-sent events that end with [DONE].", {"type": "object"})
    done["content"]["text/event-stream"] = {}
    return {
        "summary": summary,
        "security": [{}, {"key": []}],
        "parameters": [IDEMPOTENCY],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": {"200": done, **refusals},
    }


def _json(text: str, schema: Json) -> Json:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
